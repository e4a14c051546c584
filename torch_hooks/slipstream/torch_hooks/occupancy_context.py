# SPDX-License-Identifier: Apache-2.0
"""What one process has on one occupancy GPU: one place in its table, however often it is opened."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from slipstream.torch_hooks.occupancy_errors import (
    DeviceLostError,
    OccupancyError,
    OutOfMemoryError,
)
from slipstream.torch_hooks.occupancy_section import CHECK_NS, Section
from slipstream.torch_hooks.occupancy_table import Seat, Table
from slipstream.wire.gpu_locks import open_locks
from slipstream.wire.gpu_state import COMPUTE, COPY, ENGINES, GpuStateError, map_node

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.torch_hooks.occupancy_queue import Queue, Span
    from slipstream.wire.gpu_state import Node

LONGEST_SLEEP_NS = 10_000_000
_ASKED_AT_MOST = 8  # for leave to launch, while others launch meanwhile

_LEFT = Seat(-1, 0)
_GIB, _MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class Usage:
    """What one process, and all processes together (`gpu_…`), have used and hold of a GPU."""

    busy_ns: int
    copying_ns: int
    memory_bytes: int
    peak_memory_bytes: int
    gpu_busy_ns: int
    gpu_copying_ns: int
    gpu_memory_bytes: int


class Context:
    """This process's place on one GPU. Safe for threads; a forked child takes its own."""

    def __init__(self, node: Node, index: int) -> None:
        locks = open_locks(node.path)
        self.gpu = node.gpus[index]
        self.index = index
        self.opened = 0  # how many times it is open
        self._locks = locks
        self._table = Table(self.gpu, index, locks)
        self._queues = self._table.queues
        self._section = Section(self.gpu, locks.gpu(index), self._table)
        self.forget()

    def forget(self) -> None:
        """Have no place: to begin with, and in a forked child, where it is the parent's."""
        self.seat = _LEFT
        self.away_bytes = 0
        """Of the memory taken, what is in host memory for now and not on the GPU's books."""
        self.cap_bytes: int | None = None
        """What of it may be on the GPU; with a cap, memory that is refused there is away."""
        self._health = 0
        self._last = [0 for _ in ENGINES]

    def open(self) -> None:
        """One more user of the context; the first takes a place on the GPU."""
        self.check()
        self.opened += 1

    def close(self) -> None:
        """One user less; the last gives the place back, with all that is held or queued from it."""
        with _opening:
            self.opened -= 1
            if self.opened:
                return
        self._section.run(self._stand_up)

    def _stand_up(self, now_ns: int) -> None:
        seat = self.seat
        if seat is not _LEFT:
            self.forget()  # first: from a place that is being given back nothing may be launched
            self._locks.end_life(self.index, seat.slot)
            self._table.retire([seat.slot], now_ns)

    def _sit_down(self, now_ns: int) -> None:
        if self.seat is not _LEFT:
            return  # another thread was faster
        if self.gpu.health & 1:
            raise self._lost()
        self._health = self.gpu.health
        self.seat = self._table.sit(now_ns)

    def check(self) -> None:
        """What uses the GPU begins here: the device must be there, and this process on it."""
        if self.seat is _LEFT:
            self._section.run(self._sit_down)
        elif self.gpu.health != self._health:
            raise self._lost()

    def _check_device(self) -> None:
        # What only looks begins here: it needs no place, so that waiting for the work of a GPU that
        # was closed since, or of the parent, does not put this process on it.
        lost = self.gpu.health & 1 if self.seat is _LEFT else self.gpu.health != self._health
        if lost:
            raise self._lost()

    def enqueue(self, kind: int, duration_ns: int, flags: int = 0) -> int:
        """Queue work on an engine and return its number; waits only if the queue is full."""
        self.check()
        _stand()
        gate = _launch_gate if kind == COMPUTE else None
        begins_ns = self._admitted(gate, self._queues[kind], duration_ns) if gate else 0
        while True:
            number, full_until_ns = self._section.run(self._append, kind, duration_ns, flags)
            if number:
                break
            self._sleep_until(full_until_ns)
        if gate is not None:
            # Whoever came between the leave and the launch is ahead of it and lost nothing to it.
            ends_ns = min(self._queues[kind].ends_ns(), begins_ns + duration_ns)
            gate.charge(duration_ns, ends_ns)
        return number

    def _admitted(self, gate: LaunchGate, queue: Queue, duration_ns: int) -> int:
        """Wait for leave; when the work may begin. Who slept looks what others launched since."""
        asked_ns = queue.ends_ns()
        for _ in range(_ASKED_AT_MOST):
            gate.admit(asked_ns, duration_ns)
            before_ns, asked_ns = asked_ns, queue.ends_ns()
            if asked_ns == before_ns:
                break
        return max(asked_ns, time.monotonic_ns())

    def _append(self, now_ns: int, kind: int, duration_ns: int, flags: int) -> tuple[int, int]:
        queue = self._queues[kind]
        full_until_ns = queue.full_until_ns(now_ns)
        if full_until_ns:
            return 0, full_until_ns
        number = queue.append(self._seated().slot, duration_ns, flags, now_ns)
        self._last[kind] = number
        return number, 0

    def wait(self, kind: int, number: int) -> None:
        """Sleep until the work has ended, looking after dead processes ahead of it."""
        queue = self._queues[kind]
        self._check_device()
        while (span := queue.span(number)) and span.end_ns > time.monotonic_ns():
            self._sleep_until(span.end_ns)

    def wait_for_last(self, kinds: tuple[int, ...]) -> None:
        """Sleep until all that this process has queued on these engines has ended."""
        for kind in kinds:
            self.wait(kind, self._last[kind])

    def synchronize(self) -> None:
        """Sleep until all that this process has queued has ended."""
        self.wait_for_last(ENGINES)

    def span(self, kind: int, number: int) -> Span | None:
        """When the work runs, as things stand; None when that is long forgotten."""
        return self._queues[kind].span(number)

    def last_end_ns(self, kind: int) -> int:
        """When the last work of this process ends; 0 when that is long forgotten."""
        span = self._queues[kind].span(self._last[kind]) if self._last[kind] else None
        return span.end_ns if span else 0

    def has_ended(self, kind: int, number: int) -> bool:
        """Whether the work has ended."""
        self._check_device()
        span = self._queues[kind].span(number)
        return span is None or span.end_ns <= time.monotonic_ns()

    def allocate(self, nbytes: int) -> Seat:
        """Take memory for this process or refuse; returns for whom it was taken."""
        self.check()
        _stand()
        return self._section.run(self._take, nbytes)

    def _take(self, now_ns: int, nbytes: int) -> Seat:
        seat = self._seated()
        if self.cap_bytes is None:
            self._book(now_ns, seat, nbytes)
            return seat
        own_bytes = self.gpu.processes[seat.slot].memory_bytes
        fitting = min(nbytes, max(0, self.cap_bytes - own_bytes), self._free_bytes(now_ns))
        self._book(now_ns, seat, fitting)
        self.away_bytes += nbytes - fitting
        return seat

    def _book(self, now_ns: int, seat: Seat, nbytes: int) -> None:
        if self._table.memory_bytes() + nbytes > self.gpu.memory_bytes:
            free_bytes = self._free_bytes(now_ns)
            if nbytes > free_bytes:
                raise OutOfMemoryError(self._memory_sentence(nbytes, free_bytes))
        process = self.gpu.processes[seat.slot]
        process.memory_bytes += nbytes
        process.peak_memory_bytes = max(process.peak_memory_bytes, process.memory_bytes)

    def _free_bytes(self, now_ns: int) -> int:
        self._table.reap(now_ns)
        return max(0, self.gpu.memory_bytes - self._table.memory_bytes())

    def free(self, seat: Seat, nbytes: int) -> None:
        """Give memory back, unless its process was another one or has closed the GPU since."""
        self._section.run(self._give_back, seat, nbytes)

    def _give_back(self, _: int, seat: Seat, nbytes: int) -> None:
        if seat == self.seat:
            away = min(nbytes, self.away_bytes)
            self.away_bytes -= away
            self.gpu.processes[seat.slot].memory_bytes -= nbytes - away

    def held_bytes(self) -> int:
        """What of this process's memory is on the GPU.

        One word that only this process writes while it lives: asked at each boundary under a cap,
        so nobody else's launches wait for it.
        """
        self.check()
        return self.gpu.processes[self._seated().slot].memory_bytes

    def wanted_bytes(self) -> int:
        """What of this process's memory is away and would be on the GPU if there were room."""
        below_cap = self.away_bytes
        if self.cap_bytes is not None:
            below_cap = max(0, self.cap_bytes - self.held_bytes())
        return min(self.away_bytes, below_cap)

    def move_out(self, nbytes: int) -> None:
        """Take so much off the GPU's books; it counts as away, and others may have the room."""
        self._section.run(self._move_out, nbytes)

    def _move_out(self, _: int, nbytes: int) -> None:
        process = self.gpu.processes[self._seated().slot]
        nbytes = min(nbytes, process.memory_bytes)
        self.away_bytes += nbytes
        process.memory_bytes -= nbytes

    def move_in(self, nbytes: int) -> None:
        """Bring so much of what is away back; all of it, or OutOfMemoryError and nothing."""
        self._section.run(self._move_in, nbytes)

    def _move_in(self, now_ns: int, nbytes: int) -> None:
        nbytes = min(nbytes, self.away_bytes)
        self._book(now_ns, self._seated(), nbytes)
        self.away_bytes -= nbytes

    def usage(self) -> Usage:
        """What this process and all of them have used and hold."""
        self.check()
        return self._section.run(self._measure)

    def _measure(self, now_ns: int) -> Usage:
        self._table.reap(now_ns)
        seat = self._seated()
        process = self.gpu.processes[seat.slot]
        return Usage(
            busy_ns=self._own_ns(COMPUTE, seat, now_ns),
            copying_ns=self._own_ns(COPY, seat, now_ns),
            memory_bytes=process.memory_bytes,
            peak_memory_bytes=process.peak_memory_bytes,
            gpu_busy_ns=self._total_ns(COMPUTE, now_ns),
            gpu_copying_ns=self._total_ns(COPY, now_ns),
            gpu_memory_bytes=self._table.memory_bytes(),
        )

    def _own_ns(self, kind: int, seat: Seat, now_ns: int) -> int:
        process = self.gpu.processes[seat.slot]
        launched_ns = process.launched_ns[kind] - process.base_ns[kind]
        return launched_ns - self._queues[kind].unfinished_ns(now_ns, seat)

    def _total_ns(self, kind: int, now_ns: int) -> int:
        launched_ns = sum(process.launched_ns[kind] for process in self.gpu.processes)
        return launched_ns - self._queues[kind].unfinished_ns(now_ns)

    def _seated(self) -> Seat:
        if self.seat is _LEFT:
            raise OccupancyError(f"GPU {self.index} was closed by another thread")
        return self.seat

    def _sleep_until(self, wake_at_ns: int) -> None:
        now_ns = time.monotonic_ns()
        time.sleep(min(max(wake_at_ns - now_ns, 0), LONGEST_SLEEP_NS) / 1e9)
        self._check_device()
        if time.monotonic_ns() - self.gpu.checked_at_ns >= CHECK_NS:
            self._section.run(lambda _: None)  # which looks for the dead

    def _lost(self) -> DeviceLostError:
        return DeviceLostError(
            f"GPU {self.index} ({self.gpu.uuid.decode()}) is lost: it fell off the bus or was "
            "reset after this process opened it; the process has to start anew"
        )

    def _memory_sentence(self, nbytes: int, free_bytes: int) -> str:
        total_bytes = self.gpu.memory_bytes
        holders = "".join(
            f" Process {process.pid} has {_size(process.memory_bytes)} memory in use."
            for _, process in self._table.occupied()
            if process.memory_bytes
        )
        return (
            f"Occupancy GPU out of memory. Tried to allocate {_size(nbytes)}. "
            f"GPU {self.index} has a total capacity of {_size(total_bytes)} "
            f"of which {_size(free_bytes)} is free.{holders}"
        )


def _size(nbytes: int) -> str:
    return f"{nbytes / _GIB:.2f} GiB" if nbytes >= _GIB else f"{nbytes / _MIB:.2f} MiB"


class LaunchGate(Protocol):
    """Where a launch waits while this process is kept to a share."""

    def admit(self, begin_ns: int, duration_ns: int) -> None:
        """Wait until a kernel may be queued that begins then at the earliest."""

    def charge(self, device_ns: int, ends_ns: int) -> None:
        """It was queued, and ends then."""


_launch_gate: LaunchGate | None = None


def hold_launches(gate: LaunchGate | None) -> None:
    """From now on kernels pass this gate, or none."""
    global _launch_gate  # noqa: PLW0603 (one share per process)
    _launch_gate = gate


_stand_before_use: Callable[[], int] | None = None


def stand_before_use(stand: Callable[[], int] | None) -> None:
    """From now on what uses a GPU waits for this to return 0; None: for nothing."""
    global _stand_before_use  # noqa: PLW0603 (one hold per process)
    _stand_before_use = stand


def _stand() -> None:
    """Python looks at signals each time it returns something else."""
    stand = _stand_before_use
    while stand is not None and stand():
        stand = _stand_before_use


def is_open() -> bool:
    """Whether this process has a place on any GPU."""
    return any(context.opened for context in _contexts.values())


def drained_ns() -> int:
    """When all kernels have ended that this process has queued; may have been long ago."""
    ends = (context.last_end_ns(COMPUTE) for context in _contexts.values() if context.opened)
    return max(ends, default=0)


_nodes: dict[tuple[int, int], Node] = {}
_contexts: dict[tuple[int, int, int], Context] = {}
_opening = threading.Lock()


def open_node(path: str) -> Node:
    """The node whose GPUs' memory is at `path`; mapped once per process."""
    with _opening:
        return _map_once(path)[1]


def open_context(path: str, index: int) -> Context:
    """This process's context on a GPU, one more time open. `Context.close` as often."""
    with _opening:
        key, node = _map_once(path)
        context = _contexts.get((*key, index))
        if context is None:
            context = _contexts[(*key, index)] = Context(node, index)
        context.open()
        return context


def open_contexts() -> list[Context]:
    """Those through which this process is on a GPU."""
    return [context for context in _contexts.values() if context.seat is not _LEFT]


def _map_once(path: str) -> tuple[tuple[int, int], Node]:
    try:
        status = os.stat(path)  # noqa: PTH116 (no Path in a user's process for one call)
    except OSError as error:
        raise GpuStateError(f"no GPUs' memory at {path!r}: {error.strerror}") from error
    key = status.st_dev, status.st_ino
    if key not in _nodes:
        _nodes[key] = map_node(path)
    return key, _nodes[key]


def _forget_in_child() -> None:
    global _opening  # noqa: PLW0603 (a child cannot release the lock of a thread it does not have)
    _opening = threading.Lock()
    hold_launches(None)  # the share is the parent's
    for context in _contexts.values():
        context.forget()


os.register_at_fork(after_in_child=_forget_in_child)
