# SPDX-License-Identifier: Apache-2.0
"""Where a mini-batch runs: the CPU, a CUDA GPU or the occupancy GPU, behind one small protocol."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import torch
from torch import Tensor

if TYPE_CHECKING:
    from occupancy_device import Occupancy

DEVICES: Final = ("auto", "cpu", "cuda", "occupancy")


class DeviceError(Exception):
    """The device cannot be had, or its memory is too small; says what would help."""


@dataclass(frozen=True)
class Work:
    """What a training asks of an occupancy GPU: kernels for each mini-batch, memory throughout."""

    kernel_ms: float
    kernels_per_minibatch: int
    memory_mib: float


class Device(Protocol):
    """What the training loop needs of a device."""

    @property
    def name(self) -> str:
        """What the log calls it."""

    @property
    def torch_device(self) -> torch.device:
        """Where the parameters live."""

    def put(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Copy a mini-batch to the device."""

    def launch(self) -> None:
        """Queue what a mini-batch computes, where torch does not do that itself."""

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def random_state(self) -> Tensor:
        """Return the state of the generator that dropout draws from."""

    def set_random_state(self, state: Tensor) -> None:
        """Bring a state of that generator back."""


class Cpu:
    """Everything at once, in this process."""

    name = "cpu"
    torch_device = torch.device("cpu")

    def put(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Leave the mini-batch where it is."""
        return inputs, targets

    def launch(self) -> None:
        """Do nothing: torch computes as it is called."""

    def synchronize(self) -> None:
        """Do nothing: there is no queue."""

    def random_state(self) -> Tensor:
        """Return the state of torch's CPU generator."""
        return torch.get_rng_state()

    def set_random_state(self, state: Tensor) -> None:
        """Bring a state of torch's CPU generator back."""
        torch.set_rng_state(state)


class Cuda:
    """A real GPU: torch launches the model's own kernels."""

    def __init__(self, ordinal: int) -> None:
        self.torch_device = torch.device("cuda", ordinal)
        self.name = f"cuda:{ordinal} ({torch.cuda.get_device_name(self.torch_device)})"
        torch.cuda.set_device(self.torch_device)

    def put(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Copy the mini-batch to the GPU."""
        return inputs.to(self.torch_device), targets.to(self.torch_device)

    def launch(self) -> None:
        """Do nothing: torch launches as it is called."""

    def synchronize(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize(self.torch_device)

    def random_state(self) -> Tensor:
        """Return the state of the GPU's generator."""
        return torch.cuda.get_rng_state(self.torch_device)

    def set_random_state(self, state: Tensor) -> None:
        """Bring a state of the GPU's generator back."""
        torch.cuda.set_rng_state(state, self.torch_device)


@contextmanager
def opened(wanted: str, work: Work, *, local_rank: int = 0) -> Iterator[Device]:
    """Open a device for a training; what the device refuses meanwhile is a DeviceError."""
    name = _auto() if wanted == "auto" else wanted
    if name == "cpu":
        yield Cpu()
    elif name == "cuda":
        with _cuda(local_rank) as cuda:
            yield cuda
    else:
        with _occupancy().opened(local_rank, work) as occupancy:
            yield occupancy


def _auto() -> str:
    if torch.cuda.is_available():
        return "cuda"
    if "SLIPSTREAM_GPU_STATE" in os.environ and _occupancy().sees_a_gpu():
        return "occupancy"
    return "cpu"


@contextmanager
def _cuda(local_rank: int) -> Iterator[Cuda]:
    if not torch.cuda.is_available():
        raise DeviceError("torch sees no CUDA GPU; --device can be auto, cpu or occupancy")
    try:
        # A task sees all GPUs of its node or, bound by Slurm, only its own.
        yield Cuda(local_rank % torch.cuda.device_count())
    except torch.OutOfMemoryError as error:
        raise DeviceError(str(error)) from error


def _occupancy() -> "type[Occupancy]":
    try:
        from occupancy_device import Occupancy  # noqa: PLC0415 (cpu and cuda need no Slipstream)
    except ModuleNotFoundError as missing:
        raise DeviceError(
            f"the occupancy GPU needs {missing.name} of the Python package slurm-slipstream-hooks"
        ) from missing
    return Occupancy
