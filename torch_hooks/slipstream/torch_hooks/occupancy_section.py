# SPDX-License-Identifier: Apache-2.0
"""The one way to write a GPU's memory: one writer at a time, over memory that is in order."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from slipstream.torch_hooks.occupancy_errors import OccupancyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.torch_hooks.occupancy_table import Table
    from slipstream.wire.gpu_locks import GpuLock
    from slipstream.wire.gpu_state import Gpu

T = TypeVar("T")

CHECK_NS = 5_000_000  # how old the last look for dead processes may get while somebody is active


class Section:
    """Runs functions with the GPU's lock held, its memory in order and its dead retired."""

    __slots__ = ("_gpu", "_lock", "_table")

    def __init__(self, gpu: Gpu, lock: GpuLock, table: Table) -> None:
        self._gpu = gpu
        self._lock = lock
        self._table = table

    def run(self, body: Callable[..., T], *arguments: object) -> T:
        """Call `body` with the time in ns and the arguments.

        A refusal (OccupancyError) may leave it, and leaves the memory in order. After any other
        exception, a signal handler's say, the memory counts as half-written, just as if the process
        had been killed: the next holder of the lock repairs it.
        """
        result: T = self._lock.run(self._write, body, arguments)
        return result

    def _write(self, body: Callable[..., T], arguments: tuple[object, ...]) -> T:
        gpu = self._gpu
        now_ns = time.monotonic_ns()
        if gpu.sequence & 1:
            self._table.repair(now_ns)
        else:
            gpu.sequence += 1
        if now_ns - gpu.checked_at_ns >= CHECK_NS:
            self._table.reap(now_ns)
        try:
            result = body(now_ns, *arguments)
        except OccupancyError:
            gpu.sequence += 1
            raise
        gpu.sequence += 1
        return result
