# SPDX-License-Identifier: Apache-2.0
"""Nodes kept for guaranteed jobs until all of what they need is there.

No other guaranteed job sits on kept nodes; all others do, and leave when it can start. Nodes are
kept all at once or not at all, so two gangs never hold what the other needs. Whoever waits for
longest comes before those whose nodes are kept already: it starts when the owners on its nodes have
ended, and so does everybody in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.core.cluster.jobs import Standing
from slipstream.core.cluster.rules import Rule
from slipstream.core.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.core.cluster.floor import Floor
    from slipstream.core.cluster.jobs import Job


class Reservations:
    """Who found no GPUs though its quota has room, the longest first."""

    def __init__(self, floor: Floor, may_start: Callable[[Job], bool]) -> None:
        self._floor = floor
        self._may_start = may_start
        self._waiting: dict[int, Job] = {}

    def keep(self, job: Job) -> bool:
        """A guaranteed job found no seat; whether nodes are kept for it now."""
        ground = self._floor.ground
        if not self._floor.rules.has(Rule.RESERVATIONS):
            return False
        self._waiting.setdefault(job.number, job)
        # One GPU needs no waiting for a second: it takes the first that is nobody's.
        return bool(ground.kept_for(job.number)) or (job.ask.gpus > 1 and self._kept(job))

    def over(self, job: Job) -> tuple[int, ...]:
        """It has a seat, or has gone; the nodes that were kept for it."""
        self._waiting.pop(job.number, None)
        return self._floor.ground.release(job.number)

    def left(self, node: int) -> None:
        """A node takes no more jobs: those it was kept for want others."""
        number = self._floor.ground.reserved.get(node)
        if number is not None:
            self._floor.ground.release(number)

    def renew(self) -> set[int]:
        """Whoever waits for longest has its nodes, even if others had them; the nodes given up."""
        ground, job = self._floor.ground, self._first()
        if job is None or ground.kept_for(job.number):
            return set()
        given_up: set[int] = set()
        if not self._kept(job):
            for other in self._waiting.values():
                if nodes := ground.release(other.number):
                    given_up.update(nodes)
                    other.reason = Reason.NO_FREE_GPU
            if not self._kept(job):
                return given_up
        job.reason = Reason.RESERVING
        return given_up

    def _first(self) -> Job | None:
        """Who is over its quota holds nobody up, and gets in line again when it is not."""
        while self._waiting:
            job = next(iter(self._waiting.values()))
            here = self._floor.jobs.get(job.ref) is job and job.standing is Standing.WAITING
            if here and self._may_start(job):
                return job
            self.over(job)
        return None

    def _kept(self, job: Job) -> bool:
        """Keep the nodes that are nearest to being free, if there are enough."""
        ground = self._floor.ground
        largest = max(1, ground.largest)
        count = -(-job.ask.gpus // largest)
        nodes: list[int] = []
        for node in ground.unowned.downwards(largest, count):
            if len(ground.gpus_of[node]) >= min(job.ask.gpus, largest):
                nodes.append(node)
            if len(nodes) == count:
                ground.reserve(nodes, job.number)
                return True
        return False
