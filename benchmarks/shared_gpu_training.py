# SPDX-License-Identifier: Apache-2.0
"""A training of the benchmarks `guarantee` and `turns`: real torch, its kernels on a simulated GPU.

    shared_gpu_training.py KIND [MINIBATCHES]

It says nothing: how far it is stands in its control block.
"""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, Dataset

from slipstream.torch_hooks import occupancy

MIB = 1 << 20
_FOR_EVER = 1 << 40


@dataclass(frozen=True)
class Kind:
    """What a mini-batch asks of the GPU, and how long its data lets it wait."""

    kernels: int = 4
    kernel_ms: float = 5.0
    wait_ms: float = 0.0
    stall_every: int = 0
    """After so many mini-batches the data comes late,"""
    stall_ms: float = 0.0
    memory_mib: int = 2048
    surge_mib: int = 0
    """So much more for 15 of 75 mini-batches."""
    ahead: bool = False
    """It launches a mini-batch before the one before has ended."""


KINDS = {
    "busy60": Kind(wait_ms=13.3),
    "bursty": Kind(stall_every=12, stall_ms=160.0),
    "surge": Kind(wait_ms=13.3, surge_mib=8192),
    "saturated": Kind(ahead=True),
    "guest": Kind(kernel_ms=2.0, memory_mib=3072),
    "shared": Kind(kernels=2, kernel_ms=10.0, memory_mib=6144),
}


class Data(Dataset[torch.Tensor]):
    """Samples that come as late as the kind says."""

    def __init__(self, kind: Kind, count: int) -> None:
        self._kind = kind
        self._count = count
        self._samples = torch.randn(64, 32, 16)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> torch.Tensor:
        kind = self._kind
        late = kind.stall_every and number % kind.stall_every == kind.stall_every - 1
        time.sleep((kind.wait_ms + (kind.stall_ms if late else 0.0)) / 1e3)
        return self._samples[number % 64]


def main() -> None:
    """Train."""
    kind = KINDS[sys.argv[1]]
    count = int(sys.argv[2]) if sys.argv[2:] else _FOR_EVER
    torch.set_num_threads(1)
    model = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = DataLoader(Data(kind, count), batch_size=None, sampler=range(count))
    with occupancy.open_gpu() as gpu, gpu.allocate(kind.memory_mib * MIB):
        before: occupancy.Work | None = None
        for number, batch in enumerate(batches):
            surges = kind.surge_mib and number % 75 >= 60  # noqa: PLR2004 (15 of 75)
            more = gpu.allocate(kind.surge_mib * MIB) if surges else contextlib.nullcontext()
            with more:
                for _ in range(kind.kernels):
                    last = gpu.launch(duration_us=1e3 * kind.kernel_ms)
                optimizer.zero_grad()
                model(batch).square().mean().backward()
                (before if kind.ahead and before else last).wait()
                before = last
                optimizer.step()


if __name__ == "__main__":
    main()
