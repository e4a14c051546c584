# SPDX-License-Identifier: Apache-2.0
"""The training of the chaos campaign: it writes down every mini-batch, and in what state it ended.

    training.py MINIBATCHES PAUSE_MS

Each line of the file HISTORY is one JSON object. `chain` is carried in the model's state from
mini-batch to mini-batch and mixes in the number and the loss to the bit: a mini-batch that was left
out, done twice or done from another state shows in every line after it.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

from slipstream.torch_hooks.run import session

_PER_EPOCH = 10
_MIX = 6364136223846793005
_BITS = (1 << 62) - 1


class Model(torch.nn.Module):
    """Two layers, something random between them, and the chain."""

    chain: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(8, 32), torch.nn.Dropout(0.3), torch.nn.Linear(32, 1)
        )
        self.register_buffer("chain", torch.zeros(1, dtype=torch.int64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """What comes of the inputs."""
        found: torch.Tensor = self.layers(inputs)
        return found

    def link(self, number: int, loss: torch.Tensor) -> int:
        """The chain, longer by a mini-batch."""
        bits = int(loss.detach().view(torch.int32)) & 0xFFFFFFFF
        value = ((int(self.chain) + bits) * _MIX + number) & _BITS
        self.chain.fill_(value)
        return value


def main() -> None:
    """Train as the command line says."""
    count, pause_ms = int(sys.argv[1]), float(sys.argv[2])
    torch.set_num_threads(1)
    torch.manual_seed(1)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    samples = TensorDataset(torch.randn(8 * _PER_EPOCH, 8), torch.randn(8 * _PER_EPOCH, 1))
    loader = DataLoader(samples, 8, shuffle=True)
    with session(model=model, optimizer=optimizer) as run:
        note("start", run.minibatches, int(model.chain))
        for _epoch, batches in run.epochs(loader, count // _PER_EPOCH):
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss = (model(inputs) - targets).square().mean()
                loss.backward()
                optimizer.step()
                note("minibatch", run.minibatches, model.link(run.minibatches, loss))
                time.sleep(pause_ms / 1e3)
    held = [*model.parameters(), *model.buffers()]
    bits = sum(int(one.detach().view(torch.int32).sum(dtype=torch.int64)) for one in held)
    note("end", count, bits)


def note(what: str, number: int, bits: int) -> None:
    """Append a line, at once and whole: the process may be killed at any moment."""
    # Guests are told of their GPUs under the same name, and own none of them.
    is_guest = "role=guest" in os.environ.get("SLURM_SLIPSTREAM", "")
    line = {
        "what": what,
        "minibatch": number,
        "bits": bits,
        "at_s": time.time(),
        "pid": os.getpid(),
        "restart": int(os.environ.get("SLURM_RESTART_COUNT", "0")),
        "node": os.environ.get("SLURMD_NODENAME", ""),
        "gpus": "" if is_guest else os.environ.get("SLURM_JOB_GPUS", ""),
    }
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    descriptor = os.open(os.environ["HISTORY"], flags, 0o644)
    try:
        os.write(descriptor, (json.dumps(line) + "\n").encode())
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    main()
