# SPDX-License-Identifier: Apache-2.0
"""The occupancy GPU: a simulated GPU that a training process shares with others, as with CUDA.

Kernels are durations. They queue first-in-first-out behind those of all processes on the GPU, run
one at a time, cannot be stopped once queued, and launching returns at once. Memory is a number of
bytes with a limit that refuses. Copies go through one engine of limited bandwidth. There is no
server: the queue lives in the node's shared memory (SLIPSTREAM_GPU_STATE), and a process that is
killed leaves the GPU as a killed CUDA process would.

    gpu = occupancy.open_gpu()
    with gpu.allocate(2 << 30):
        gpu.copy(batch_bytes)
        gpu.launch(duration_us=1500)
        gpu.synchronize()
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.torch_hooks import first_use, visible_devices
from slipstream.torch_hooks.occupancy_context import Usage, open_context, open_node
from slipstream.torch_hooks.occupancy_errors import (
    DeviceLostError,
    NoDeviceError,
    OccupancyError,
    OutOfMemoryError,
)
from slipstream.torch_hooks.occupancy_queue import Span
from slipstream.wire.gpu_state import COMPUTE, COPY, ENVIRONMENT_VARIABLE, TO_HOST

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from slipstream.torch_hooks.occupancy_context import Context
    from slipstream.torch_hooks.occupancy_table import Seat

__all__ = [
    "Allocation",
    "DeviceLostError",
    "Gpu",
    "GpuInfo",
    "NoDeviceError",
    "OccupancyError",
    "OutOfMemoryError",
    "Span",
    "Usage",
    "Work",
    "open_gpu",
    "visible_gpus",
]


@dataclass(frozen=True)
class GpuInfo:
    """A GPU this process may open: its number here, its number on the node, and what it is."""

    ordinal: int
    index: int
    uuid: str
    name: str
    memory_bytes: int


def visible_gpus() -> tuple[GpuInfo, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves to this process, in its order."""
    gpus = open_node(_state_path()).gpus
    uuids = [gpu.uuid.decode() for gpu in gpus]
    chosen = visible_devices.parse(os.environ.get(visible_devices.ENVIRONMENT_VARIABLE), uuids)
    return tuple(
        GpuInfo(ordinal, index, uuids[index], gpus[index].name.decode(), gpus[index].memory_bytes)
        for ordinal, index in enumerate(chosen)
    )


def open_gpu(*, ordinal: int = 0) -> Gpu:
    """Open the `ordinal`-th visible GPU. A process counts once on a GPU, however often it opens."""
    visible = visible_gpus()
    if not 0 <= ordinal < len(visible):
        name = visible_devices.ENVIRONMENT_VARIABLE
        raise NoDeviceError(
            f"no GPU {ordinal} for this process: it sees {len(visible)} "
            f"({name}={os.environ.get(name, '(not set)')!r})"
        )
    first_use.device_is_wanted()
    return Gpu(visible[ordinal], open_context(_state_path(), visible[ordinal].index))


class Gpu:
    """An open GPU. Safe for threads; in a forked child it works on as the child's own."""

    def __init__(self, info: GpuInfo, context: Context) -> None:
        self.info = info
        self._context: Context | None = context

    def launch(self, *, duration_us: float) -> Work:
        """Queue a kernel of this length. Returns at once, or waits while 1024 are unfinished."""
        if not 0 <= duration_us < math.inf:
            raise ValueError(f"a kernel cannot take {duration_us} us: say 0 or more")
        context = self._open()
        return Work(context, COMPUTE, context.enqueue(COMPUTE, round(duration_us * 1000)))

    def copy_async(self, nbytes: int, *, to_host: bool = False) -> Work:
        """Queue a copy to the GPU (or back) on the copy engine, beside any kernels."""
        if nbytes < 0:
            raise ValueError(f"cannot copy {nbytes} bytes: say 0 or more")
        context = self._open()
        duration_ns = -(-nbytes * 1_000_000_000 // context.gpu.copy_bytes_per_s)
        flags = TO_HOST if to_host else 0
        return Work(context, COPY, context.enqueue(COPY, duration_ns, flags))

    def copy(self, nbytes: int, *, to_host: bool = False) -> None:
        """Copy after the kernels this process has queued, and wait until it is done."""
        self._open().wait_for_last((COMPUTE,))
        self.copy_async(nbytes, to_host=to_host).wait()

    def synchronize(self) -> None:
        """Wait until all kernels and copies of this process have ended."""
        self._open().synchronize()

    def allocate(self, nbytes: int) -> Allocation:
        """Take memory, or raise OutOfMemoryError and take none."""
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes: say 0 or more")
        context = self._open()
        return Allocation(context, context.allocate(nbytes), nbytes)

    def usage(self) -> Usage:
        """What this process and all of them have used and hold, exact to the nanosecond."""
        return self._open().usage()

    def close(self) -> None:
        """Wait for this process's work, then give the GPU back; memory still held is freed."""
        context, self._context = self._context, None
        if context is None:
            return
        try:
            context.synchronize()
        except DeviceLostError:
            pass  # nothing will end any more; the place is given back all the same
        finally:
            context.close()

    def _open(self) -> Context:
        if self._context is None:
            raise OccupancyError(f"this Gpu (ordinal {self.info.ordinal}) is closed")
        return self._context

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()


class Work:
    """A queued kernel or copy."""

    __slots__ = ("_context", "_kind", "_number", "_span")

    def __init__(self, context: Context, kind: int, number: int) -> None:
        self._context = context
        self._kind = kind
        self._number = number
        self._span: Span | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self._context.has_ended(self._kind, self._number)

    def wait(self) -> None:
        """Sleep until it has ended."""
        self._context.wait(self._kind, self._number)
        if self._span is None:
            self._span = self._context.span(self._kind, self._number)

    def times_ns(self) -> Span:
        """(start, end) on the clock of time.monotonic_ns; waits for the end, it may come sooner."""
        self.wait()
        if self._span is None:
            raise LookupError(
                "too long ago: the GPU remembers its latest 8192 launches; "
                "ask or wait before that many have followed"
            )
        return self._span


class Allocation:
    """Memory of a GPU; free it, or leave a `with` block, or end the process."""

    def __init__(self, context: Context, seat: Seat, nbytes: int) -> None:
        self.nbytes = nbytes
        self._context = context
        self._seat: Seat | None = seat

    def free(self) -> None:
        """Give it back; a second time does nothing."""
        seat, self._seat = self._seat, None
        if seat is not None:
            self._context.free(seat, self.nbytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.free()


def _state_path() -> str:
    path = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if not path:
        raise NoDeviceError(
            f"{ENVIRONMENT_VARIABLE} is not set: this process runs on no node with simulated GPUs"
        )
    return path
