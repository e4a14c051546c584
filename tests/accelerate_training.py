# SPDX-License-Identifier: Apache-2.0
"""A loop with Hugging Face's accelerate and the two lines; run by tests in processes of its own.

Its losses are appended to the file LOSSES, and at the end the sum of its parameters' bits.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from slipstream.torch_hooks.run import session  # before torch: any order will do

import torch  # isort: skip
from accelerate import Accelerator  # isort: skip
from torch.utils.data import DataLoader, Dataset  # isort: skip


class Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples with random changes."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """An input and what should come of it."""
        return torch.randn(4) + number / 10, torch.tensor([number / 32])


def note(line: str) -> None:
    """Append a line to the file of losses, at once: the process may be killed at any moment."""
    with open(os.environ["LOSSES"], "a", encoding="utf-8") as file:  # noqa: PTH123 (one line)
        file.write(f"{line}\n")


def main() -> None:
    """Train as the command line says: form, workers, batches for a step."""
    form, workers, accumulated = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulated)
    model: Any = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
    )
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler: Any = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=40)
    loader: Any = DataLoader(
        Samples(), 4, shuffle=True, num_workers=workers, persistent_workers=workers > 0
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    own: dict[str, Any] = {"save": accelerator.save_state, "load": accelerator.load_state}
    parts = (model, optimizer, scheduler)
    with session(*(() if form == "own" else parts), **(own if form == "own" else {})) as run:
        for _, batches in run.epochs(loader, 4):
            for inputs, targets in batches:
                with accelerator.accumulate(model):
                    loss = (model(inputs) - targets).square().mean()
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                note(f"{run.minibatches} {loss.item().hex()}")
    bits = [one.detach().view(torch.int32).sum().item() for one in model.parameters()]
    note(f"end {sum(bits)}")


if __name__ == "__main__":
    main()
