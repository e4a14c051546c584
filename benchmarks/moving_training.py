# SPDX-License-Identifier: Apache-2.0
"""The training of bench_move: a small real model with as much state as is asked for.

Each mini-batch is a line of the file LOSSES: number, loss to the bit, when by the clock, and whose
process. The last line is the sum of the bits of everything it holds.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

from slipstream.torch_hooks.run import session


class Model(torch.nn.Module):
    """Two layers, and a buffer that makes it as large as a model of today."""

    ballast: torch.Tensor

    def __init__(self, state_mb: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 64), torch.nn.Dropout(0.3), torch.nn.Linear(64, 1)
        )
        self.register_buffer("ballast", torch.arange(float(state_mb * 250_000)))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The buffer goes on a little with each mini-batch, so that it must be saved anew."""
        self.ballast[:1000] += inputs.mean()
        found: torch.Tensor = self.layers(inputs) + self.ballast[:1].detach()
        return found


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--state-mb", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=20, help="of ten mini-batches")
    parser.add_argument("--pause-ms", type=float, default=0.0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Model(asked.state_mb)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    samples = TensorDataset(torch.randn(80, 8), torch.randn(80, 1))
    loader = DataLoader(samples, 8, shuffle=True)
    with session(model=model, optimizer=optimizer) as run:
        for _epoch, batches in run.epochs(loader, asked.epochs):
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss = (model(inputs) - targets).square().mean()
                loss.backward()
                optimizer.step()
                note(f"{run.minibatches} {loss.item().hex()} {time.time()} {os.getpid()}")
                time.sleep(asked.pause_ms / 1e3)
    held = [*model.parameters(), *model.buffers()]
    bits = sum(int(one.detach().view(torch.int32).sum(dtype=torch.int64)) for one in held)
    note(f"end {bits} {time.time()} {os.getpid()}")


def note(line: str) -> None:
    """Append a line, at once: the process may be killed at any moment."""
    with open(os.environ["LOSSES"], "a", encoding="utf-8") as file:  # noqa: PTH123 (one line)
        file.write(f"{line}\n")


if __name__ == "__main__":
    main()
