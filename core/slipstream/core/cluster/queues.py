# SPDX-License-Identifier: Apache-2.0
"""Who waits, by level, number of GPUs and tenant: whoever fits is found without a search."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from slipstream.core.cluster.jobs import Job

Key = tuple[int, float, int]
_LONG_LINE: Final = 32
"""In a shorter one, a newcomer is worth a search: it may fit where the others do not."""


class Queues:
    """Waiting and parked jobs that are not guaranteed."""

    __slots__ = ("_cells", "_jobs")

    def __init__(self) -> None:
        self._cells: dict[int, dict[int, dict[str, list[Key]]]] = {}
        self._jobs: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """It waits from now on."""
        sizes = self._cells.setdefault(job.level, {})
        line = sizes.setdefault(job.ask.gpus, {}).setdefault(job.ask.tenant, [])
        insort(line, job.key)
        self._jobs[job.number] = job

    def remove(self, job: Job) -> None:
        """It does not wait any more."""
        sizes = self._cells[job.level]
        tenants = sizes[job.ask.gpus]
        line = tenants[job.ask.tenant]
        del line[bisect_left(line, job.key)]
        del self._jobs[job.number]
        if not line:
            del tenants[job.ask.tenant]
            if not tenants:
                del sizes[job.ask.gpus]
                if not sizes:
                    del self._cells[job.level]

    def is_behind(self, job: Job) -> bool:
        """Whether a long line of its tenant's jobs of the same level and size waits already."""
        return len(self._cells[job.level][job.ask.gpus][job.ask.tenant]) > _LONG_LINE

    def sizes(self, level: int) -> list[int]:
        """Numbers of GPUs that are waited for, the largest first: it is the hardest to place."""
        return sorted(self._cells.get(level, ()), reverse=True)

    def waits(self, level: int, size: int) -> bool:
        """Whether anybody of this level and size waits."""
        return size in self._cells.get(level, ())

    def heads(
        self,
        level: int,
        size: int,
        order: Callable[[str], tuple[float, str]] | None,
        each: int,
        may_come: Callable[[Job], bool],
    ) -> Iterator[Job]:
        """The first of each tenant, in the order of tenants, if that counts, or in their own."""
        tenants = self._cells.get(level, {}).get(size)
        if not tenants:
            return
        if order is None:
            firsts = [job for name in tenants for job in self._first(tenants[name], each, may_come)]
            yield from sorted(firsts, key=lambda job: job.key)
        else:
            for name in sorted(tenants, key=order):
                yield from self._first(tenants[name], each, may_come)

    def _first(
        self, line: Iterable[Key], each: int, may_come: Callable[[Job], bool]
    ) -> Iterator[Job]:
        return islice(filter(may_come, (self._jobs[key[2]] for key in line)), each)
