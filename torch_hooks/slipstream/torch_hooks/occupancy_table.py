# SPDX-License-Identifier: Apache-2.0
"""The processes on one occupancy GPU: who sits where, who died, what memory they hold.

All methods that write are for the holder of the GPU's lock. A place is given back last of all, so
that a process killed while it retires a dead one leaves a dead one for the next to retire.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from slipstream.torch_hooks.occupancy_errors import OccupancyError
from slipstream.torch_hooks.occupancy_queue import Queue
from slipstream.wire.gpu_state import ENGINES, MAX_PROCESSES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from slipstream.wire.gpu_locks import LockFile
    from slipstream.wire.gpu_state import Gpu, Process


class Seat(NamedTuple):
    """A process's place in the table; the generation tells it from those who sat there before."""

    slot: int
    generation: int


class Table:
    """A view of one GPU's processes and of the queues that hold their work."""

    def __init__(self, gpu: Gpu, index: int, locks: LockFile) -> None:
        self._gpu = gpu
        self._index = index
        self._locks = locks
        self.queues = tuple(Queue(gpu, kind) for kind in ENGINES)

    def sit(self, now_ns: int) -> Seat:
        """Take a free place for this process."""
        slot = self._free_slot()
        if slot is None:
            self.reap(now_ns)
            slot = self._free_slot()
        if slot is None:
            pids = sorted(process.pid for _, process in self.occupied())
            raise OccupancyError(
                f"GPU {self._index} serves {MAX_PROCESSES} processes at a time, and has: {pids}"
            )
        process = self._gpu.processes[slot]
        process.generation += 1
        process.opened_at_ns = now_ns
        process.memory_bytes = process.peak_memory_bytes = 0
        for kind in ENGINES:
            process.base_ns[kind] = process.launched_ns[kind]
        process.pid = os.getpid()
        return Seat(slot, process.generation)

    def retire(self, slots: Collection[int], now_ns: int) -> None:
        """Free what processes held. What they have started runs to its end, as on a GPU."""
        leaving = [(slot, self._gpu.processes[slot]) for slot in slots]
        owners = [(slot, process.generation) for slot, process in leaving]
        for queue in self.queues:
            queue.drop_unstarted(owners, now_ns)
        for _, process in leaving:
            process.memory_bytes = 0
            process.pid = 0

    def reap(self, now_ns: int) -> None:
        """Retire all who have died."""
        dead = [slot for slot, _ in self.occupied() if not self._locks.is_alive(self._index, slot)]
        if dead:
            self.retire(dead, now_ns)
        self._gpu.checked_at_ns = now_ns

    def repair(self, now_ns: int) -> None:
        """Bring the memory of a GPU in order whose last writer did not come to its end."""
        for queue in self.queues:
            queue.finish_launch()
        self.reap(now_ns)  # if it was moving entries up, the dead it did so for are still there

    def occupied(self) -> Iterator[tuple[int, Process]]:
        """Who sits where, the dead included until they are reaped."""
        for slot, process in enumerate(self._gpu.processes):
            if process.pid:
                yield slot, process

    def memory_bytes(self) -> int:
        """Memory held by all of them."""
        return sum(process.memory_bytes for _, process in self.occupied())

    def _free_slot(self) -> int | None:
        for slot, process in enumerate(self._gpu.processes):
            if not process.pid and self._locks.begin_life(self._index, slot):
                return slot
        return None
