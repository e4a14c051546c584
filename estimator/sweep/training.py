# SPDX-License-Identifier: Apache-2.0
"""One training of the sweep: real torch on the CPU, and the GPU time and memory it stands for.

The first mini-batch is metered operation by operation. From then on each part of a mini-batch
(forward, backward, optimizer) queues its kernels on the occupancy GPU just before the CPU computes
it, as launches run ahead of CUDA's kernels; the wait comes when the loss is read.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist
import torch.distributed.nn  # before the ranks have joined: examples/ddp.py says why
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import ranks
from slipstream.torch_hooks import occupancy
from sweep.models import KINDS, Samples
from sweep.roofline import Meter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ranks import Place

_BLOCK: Final = 512
"""Torch's allocator on CUDA rounds up to so many bytes. What it takes from the driver it rounds to
2 MiB, which is nothing to the models it is made for, and would be a third of these."""
_AHEAD: Final = 1
_CHUNK_S: Final = 0.5e-3
"""Kernels shorter than that are queued together: the queue is a file, not a ring in the GPU."""


def main(kind: str) -> None:
    """Train as the command line says."""
    told = _options(kind)
    torch.set_num_threads(1)
    torch.manual_seed(told.seed)
    place = _place()
    if place is None:  # several ranks on few cores take turns as the kernel has it
        _go_first()
    with ExitStack() as stack:
        if place:
            stack.enter_context(_joined(place))
        gpu = stack.enter_context(occupancy.open_gpu())
        training = Training(kind, told, gpu, place)
        for loss in training.minibatches():
            print(f"loss {loss:.6f}", flush=True)
        training.save()


def _go_first() -> None:
    """Imported as everybody else; what is measured from here on is the training.

    Not by being less nice: the kernel counts that among processes of one session only.
    """
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_AHEAD))


class Training:
    """A model, its optimizer, its data and its GPU."""

    def __init__(
        self, kind: str, told: argparse.Namespace, gpu: occupancy.Gpu, place: Place | None
    ) -> None:
        self._told, self._gpu = told, gpu
        self._rank = place.rank if place else 0
        self._model = KINDS[kind].build(told.input_size, told.width, told.depth)
        self._replica: nn.Module = DistributedDataParallel(self._model) if place else self._model
        self._optimizer = _optimizer(told.optimizer, self._model, told.lr)
        self._loader = _loader(kind, told, place)
        self._meter = Meter()
        self._chunks_us: dict[str, list[float]] = {}
        resident = (*self._model.parameters(), *self._model.buffers())
        self._resident_bytes = sum(one.nbytes for one in resident)
        self._held = gpu.allocate(_rounded(self._resident_bytes))

    def minibatches(self) -> Iterator[float]:
        """Train to the end; the loss of every mini-batch."""
        done = 0
        while True:
            for inputs, targets in self._loader:
                yield self._learn(inputs, targets) if done else self._learn_metered(inputs, targets)
                done += 1
                if done == self._told.minibatches:
                    return

    def save(self) -> None:
        """As people do at the end of a training: rank 0, everything."""
        if self._rank == 0:
            with tempfile.TemporaryDirectory(dir=os.environ.get("SWEEP_SAVES")) as folder:
                state = {
                    "model": self._model.state_dict(),
                    "optimizer": self._optimizer.state_dict(),
                }
                torch.save(state, Path(folder) / "last.pt")

    def _learn(self, inputs: Tensor, targets: Tensor) -> float:
        self._gpu.copy(inputs.nbytes + targets.nbytes)
        self._queue("forward")
        loss = self._loss(inputs, targets)
        self._queue("backward")
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        self._queue("optimizer")
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._gpu.synchronize()
        return loss.item()

    def _learn_metered(self, inputs: Tensor, targets: Tensor) -> float:
        """The first one: what it costs is learned, and paid before its boundary."""
        meter = self._meter
        with meter.part("forward"):
            loss = self._loss(inputs, targets)
        with meter.part("backward"):
            loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        self._plan()
        moving_bytes = meter.peak_bytes + inputs.nbytes + targets.nbytes
        before_bytes = meter.live_bytes
        self._queue("forward")
        self._queue("backward")
        self._gpu.synchronize()
        with meter.part("optimizer", setting_up=True):
            self._optimizer.step()
        kept_bytes = sum(
            one.nbytes
            for state in self._optimizer.state.values()
            for one in state.values()
            if isinstance(one, Tensor)
        )
        updating_bytes = meter.peak_bytes - before_bytes  # beside gradients, state included
        self._plan()
        self._optimizer.zero_grad()
        # The state is there from now on, beside whatever a mini-batch needs at its highest.
        gradient_bytes = sum(one.nbytes for one in self._model.parameters())
        highest = max(moving_bytes + kept_bytes, gradient_bytes + updating_bytes)
        self._held.free()
        self._held = self._gpu.allocate(_rounded(self._resident_bytes + highest))
        self._queue("optimizer")
        return loss.item()

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        half = self._told.precision == "bf16"
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            logits = self._replica(inputs)
        return cross_entropy(logits.float().flatten(0, -2), targets.flatten())

    def _plan(self) -> None:
        self._chunks_us = {
            part: list(_chunks_us(kernels_s)) for part, kernels_s in self._meter.kernels_s.items()
        }

    def _queue(self, part: str) -> None:
        for chunk_us in self._chunks_us[part]:
            self._gpu.launch(duration_us=chunk_us)


def _chunks_us(kernels_s: list[float]) -> Iterator[float]:
    chunk_s = 0.0
    for one_s in kernels_s:
        chunk_s += one_s
        if chunk_s >= _CHUNK_S:
            yield chunk_s * 1e6
            chunk_s = 0.0
    if chunk_s:
        yield chunk_s * 1e6


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _BLOCK) * _BLOCK


def _optimizer(name: str, model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """One kernel for all parameters, as is CUDA's default."""
    if name in ("sgd", "momentum"):
        momentum = 0.9 if name == "momentum" else 0.0
        return torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum, foreach=True)
    if name == "adam":
        return torch.optim.Adam(model.parameters(), lr=rate, foreach=True)
    return torch.optim.AdamW(model.parameters(), lr=rate, foreach=True)


def _loader(
    kind: str, told: argparse.Namespace, place: Place | None
) -> DataLoader[tuple[Tensor, Tensor]]:
    samples = Samples(kind, told.input_size)
    sampler: DistributedSampler[tuple[Tensor, Tensor]] = DistributedSampler(
        samples,
        num_replicas=place.ranks if place else 1,
        rank=place.rank if place else 0,
        seed=told.seed,
        drop_last=True,
    )
    return DataLoader(
        samples,
        batch_size=max(1, told.batch_size // (place.ranks if place else 1)),  # shared among ranks
        sampler=sampler,
        num_workers=told.loader_workers,
        drop_last=True,
    )


def _options(kind: str) -> argparse.Namespace:
    default = KINDS[kind]
    parser = argparse.ArgumentParser(description=f"Train a small {kind} on a simulated GPU.")
    add = parser.add_argument
    add("--input-size", type=int, default=default.input_size)
    add("--width", type=int, default=default.width)
    add("--depth", type=int, default=default.depth)
    add("--batch-size", type=int, default=32)
    add("--optimizer", choices=("sgd", "momentum", "adam", "adamw"), default="adam")
    add("--precision", choices=("f32", "bf16"), default="f32")
    add("--loader-workers", type=int, default=0)
    add("--minibatches", type=int, default=20)
    add("--lr", type=float, default=0.001)
    add("--seed", type=int, default=0)
    return parser.parse_args()


def _place() -> Place | None:
    """Which rank this is, in a step of several tasks."""
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) == 1:
        return None
    return ranks.place(os.environ, ranks.ask_slurm_for_address)


@contextmanager
def _joined(place: Place) -> Iterator[None]:
    interface = ranks.interface_towards(place.address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    os.environ.update(MASTER_ADDR=place.address, MASTER_PORT=str(place.port))
    dist.init_process_group("gloo", rank=place.rank, world_size=place.ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()
