# SPDX-License-Identifier: Apache-2.0
"""Training on Slipstream's simulated GPU.

The model learns on the CPU, so that its losses are real; beside it, timed kernels as the user chose
them pass through the GPU's queue, and memory is held. As on CUDA, launching returns at once, and
the wait comes when the loss is read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from torch import Tensor

from devices import Cpu, DeviceError, Work
from slipstream.torch_hooks import occupancy
from slipstream.wire.gpu_state import GpuStateError

MIB: Final = 1024 * 1024


class Occupancy(Cpu):
    """An open occupancy GPU, and the work that a mini-batch gives it."""

    def __init__(self, gpu: occupancy.Gpu, work: Work) -> None:
        self.name = f"occupancy GPU {gpu.info.index}"
        self._gpu = gpu
        self._work = work

    @staticmethod
    def sees_a_gpu() -> bool:
        """Say whether this process may use a simulated GPU of its node."""
        with _refusals():
            return bool(occupancy.visible_gpus())

    @classmethod
    @contextmanager
    def opened(cls, local_rank: int, work: Work) -> Iterator["Occupancy"]:
        """Open a rank's GPU and hold the memory that the work asks for."""
        with _refusals():
            # A task sees all GPUs of its node or, bound by Slurm, only its own.
            ordinal = local_rank % max(1, len(occupancy.visible_gpus()))
            memory_bytes = round(work.memory_mib * MIB)
            with occupancy.open_gpu(ordinal=ordinal) as gpu, gpu.allocate(memory_bytes):
                yield cls(gpu, work)

    def put(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Take the time of copying the mini-batch to the GPU."""
        self._gpu.copy(inputs.nbytes + targets.nbytes)
        return inputs, targets

    def launch(self) -> None:
        """Queue the mini-batch's kernels; the CPU computes the model while they run."""
        for _ in range(self._work.kernels_per_minibatch):
            self._gpu.launch(duration_us=self._work.kernel_ms * 1e3)

    def synchronize(self) -> None:
        """Wait for all that this process has queued."""
        self._gpu.synchronize()


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except (occupancy.OccupancyError, GpuStateError) as error:
        raise DeviceError(str(error)) from error
