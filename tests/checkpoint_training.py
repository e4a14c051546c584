# SPDX-License-Identifier: Apache-2.0
"""A training as people write them, with the two lines; run by tests in processes of its own.

Its losses are appended to the file LOSSES, and at the end the sum of its parameters' bits.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from slipstream.torch_hooks.run import session


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples with random changes."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """An input and what should come of it."""
        noise = random.random() / 10  # noqa: S311 (its state is what is tested)
        return torch.randn(8) + noise, torch.tensor([number / 40])


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--optimizer", default="adam", choices=["adam", "momentum"])
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--persistent", action="store_true", help="workers outlive an epoch")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--pause-ms", type=float, default=0, help="between two mini-batches")
    parser.add_argument("--find", action="store_true", help="name only the model")
    parser.add_argument("--odd", action="store_true", help="name something without a state")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    random.seed(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, asked.width),
        torch.nn.BatchNorm1d(asked.width),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(asked.width, 1),
    )
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if asked.optimizer == "momentum":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1_000_000)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=3)
    how: dict[str, Any] = {"num_workers": asked.workers, "persistent_workers": asked.persistent}
    loader = DataLoader(Samples(), 8, shuffle=True, **how)
    named: dict[str, Any] = {
        "optimizer": optimizer,
        "scheduler": scheduler,
        "plateau": plateau,
        "scaler": scaler,
    }
    if asked.find:
        named = {}
    if asked.odd:
        named["odd"] = object()
    with session(model=model, **named) as run:
        for _epoch, batches in run.epochs(loader, asked.epochs):
            total = 0.0
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss = (model(inputs) - targets).square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                scheduler.step()
                total += loss.item()
                note(f"{run.minibatches} {loss.item().hex()}")
                rest(asked.pause_ms / 1e3)
            plateau.step(0.5)
    bits = [one.detach().view(torch.int32).sum().item() for one in model.parameters()]
    note(f"end {sum(bits)}")


def rest(pause_s: float) -> None:
    """Between two mini-batches; no more once the file that says so is gone."""
    while_there = os.environ.get("SLOW", "")
    if not while_there or os.path.exists(while_there):  # noqa: PTH110 (each mini-batch)
        time.sleep(pause_s)


def note(line: str) -> None:
    """Append a line to the file of losses, at once: the process may be killed at any moment."""
    with open(os.environ["LOSSES"], "a", encoding="utf-8") as file:  # noqa: PTH123 (one line)
        file.write(f"{line}\n")


if __name__ == "__main__":
    main()
