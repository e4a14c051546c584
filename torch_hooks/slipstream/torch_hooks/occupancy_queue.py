# SPDX-License-Identifier: Apache-2.0
"""One engine of an occupancy GPU: a queue of timed, non-preemptive work of all processes.

An entry starts when the one before it ends, or at once. So all times are known at launch, nobody
has to run for time to pass, and only a death changes them: what the dead process had not started
is dropped and those behind move up. All methods that write are for the holder of the GPU's lock;
each may be killed between any two stores and done again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slipstream.wire.gpu_state import DROPPED, MAX_UNFINISHED, RING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from slipstream.wire.gpu_state import Entry, Gpu


class Span(NamedTuple):
    """When an entry runs, on the clock of time.monotonic_ns."""

    start_ns: int
    end_ns: int


class Queue:
    """A view of one engine; holds nothing of its own."""

    __slots__ = ("_engine", "_entries", "_kind", "_processes")

    def __init__(self, gpu: Gpu, kind: int) -> None:
        self._kind = kind
        self._engine = gpu.engines[kind]
        self._entries = self._engine.entries
        self._processes = gpu.processes

    def full_until_ns(self, now_ns: int) -> int:
        """0 if there is room for one more launch, else when there may be."""
        # Ends never fall along the queue: one look at the entry MAX_UNFINISHED back is enough.
        end_ns = _end_ns(self._entries[(self._engine.tail + 1 - MAX_UNFINISHED) % RING])
        return end_ns if end_ns > now_ns else 0

    def append(self, slot: int, duration_ns: int, flags: int, now_ns: int) -> int:
        """Queue work of the process in `slot`; returns its number. Needs room."""
        tail = self._engine.tail
        number = tail + 1
        process = self._processes[slot]
        total_ns = process.launched_ns[self._kind] + duration_ns
        entry = self._entries[number % RING]
        entry.sequence = number  # first: who still looks for the overwritten one sees it is gone
        entry.slot = slot
        entry.flags = flags
        entry.generation = process.generation
        entry.start_ns = max(now_ns, _end_ns(self._entries[tail % RING]))
        entry.duration_ns = duration_ns
        entry.launched_total_ns = total_ns
        self._engine.tail = number  # from here on it is queued; finish_launch could do the rest
        process.launched_ns[self._kind] = total_ns
        return number

    def span(self, number: int) -> Span | None:
        """When an entry runs; None once it is overwritten, long after its end. Needs no lock."""
        entry = self._entries[number % RING]
        if entry.sequence != number:
            return None
        span = Span(entry.start_ns, _end_ns(entry))
        return span if entry.sequence == number else None

    def ends_ns(self) -> int:
        """When all that is queued has ended, as things stand. Needs no lock."""
        return _end_ns(self._entries[self._engine.tail % RING])

    def unfinished_ns(self, now_ns: int, owner: tuple[int, int] | None = None) -> int:
        """Device time still to come, of all processes or of one (slot, generation)."""
        left_ns = 0
        for entry in self._recent(newest_first=True):
            end_ns = _end_ns(entry)
            if end_ns <= now_ns:
                break
            if owner is None or owner == (entry.slot, entry.generation):
                left_ns += end_ns - max(entry.start_ns, now_ns)
        return left_ns

    def drop_unstarted(self, owners: Collection[tuple[int, int]], now_ns: int) -> None:
        """Take out what these (slot, generation) have not started; the others close up.

        Nobody moves to before `now_ns`. All the dead at once: what one of them leaves free must not
        be filled by another. They never launch again, so doing it twice gives the same totals.
        """
        free_at_ns = now_ns
        kept_ns: dict[tuple[int, int], int] = {}
        dropped_ns = dict.fromkeys(owners, 0)
        self._engine.moves |= 1
        for entry in self._recent():
            owner = (entry.slot, entry.generation)
            if owner in dropped_ns:
                if entry.start_ns > now_ns:
                    entry.flags |= DROPPED
                if entry.flags & DROPPED:
                    dropped_ns[owner] += entry.duration_ns
                kept_ns[owner] = entry.launched_total_ns - dropped_ns[owner]
            if entry.start_ns > now_ns:
                entry.start_ns = free_at_ns
            free_at_ns = max(free_at_ns, _end_ns(entry))
        for (slot, _), total_ns in kept_ns.items():
            self._processes[slot].launched_ns[self._kind] = total_ns
        self._engine.moves += 1

    def finish_launch(self) -> None:
        """Count the newest entry, whose process may not have come to do so itself."""
        last = self._entries[self._engine.tail % RING]
        process = self._processes[last.slot]
        if process.generation == last.generation and not last.flags & DROPPED:
            process.launched_ns[self._kind] = last.launched_total_ns

    def _recent(self, *, newest_first: bool = False) -> Iterator[Entry]:
        # Nothing older than this can be unfinished.
        numbers = range(max(1, self._engine.tail + 1 - MAX_UNFINISHED), self._engine.tail + 1)
        for number in reversed(numbers) if newest_first else numbers:
            yield self._entries[number % RING]


def _end_ns(entry: Entry) -> int:
    return entry.start_ns if entry.flags & DROPPED else entry.start_ns + entry.duration_ns
