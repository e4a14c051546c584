# SPDX-License-Identifier: Apache-2.0
"""Nobody waits for ever: whoever is overdue for longest is next on some nodes.

GPUs become free one by one, and where many are overdue each would be taken by a smaller one. On
promised nodes no other overdue job sits, and all who are not overdue leave: however large a job is
and however many are overdue, it has its turn when those who sit there have had theirs.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from slipstream.core.cluster.jobs import Standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.core.cluster.floor import Floor
    from slipstream.core.cluster.jobs import Job


class Promises:
    """One at a time, to the one who is overdue for longest."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor

    def after(self) -> None:
        """After an event: promise nodes, or others where guaranteed jobs have come to them."""
        ground = self._floor.ground
        job = next(iter(self._floor.overdue.values()), None)
        if job is None:
            return
        whole, rest = divmod(job.ask.gpus, max(1, ground.largest))
        wanted = [ground.largest] * whole + [rest] * (rest > 0)
        kept = ground.kept_for(job.number)
        if kept and self._has_unowned(kept, wanted):
            return
        ground.release(job.number)
        nodes = self._nodes(job, len(wanted))
        if self._has_unowned(nodes, wanted):
            ground.promise(nodes, job.number)

    def _nodes(self, job: Job, count: int) -> list[int]:
        ground = self._floor.ground
        if job.standing is Standing.PARKED and not job.ask.restorable:
            return sorted(ground.nodes_of(job.left_gpus))
        return list(islice(ground.unowned.downwards_all(count), count))

    def _has_unowned(self, nodes: Sequence[int], wanted: Sequence[int]) -> bool:
        """Whether guaranteed jobs leave so many GPUs on each of these nodes."""
        number = self._floor.ground.unowned.number
        return len(nodes) == len(wanted) and all(
            (number(node) or 0) >= gpus for node, gpus in zip(nodes, wanted, strict=True)
        )
