# SPDX-License-Identifier: Apache-2.0
"""Who waits for its tenant's quota, in line: a large job is not passed by small ones for ever.

Room in a quota comes in small pieces, and each would be taken by a smaller job of the same tenant.
Whoever has waited for it as long as a job waits for a level keeps those behind it back.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from slipstream.core.cluster.jobs import Standing
from slipstream.core.cluster.rules import Rule

if TYPE_CHECKING:
    from slipstream.core.cluster.floor import Floor
    from slipstream.core.cluster.jobs import Job


class QuotaLine:
    """One line for each tenant."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self._lines: defaultdict[str, dict[int, Job]] = defaultdict(dict)

    def has_room(self, job: Job) -> bool:
        """Whether a guaranteed job may own its GPUs now; if not it is in line."""
        tenant = job.ask.tenant
        if not self._floor.tenants.may_own(job):
            self._lines[tenant][job.number] = job
            return False
        first = self._first(self._lines[tenant])
        return first is None or first is job or not self._is_patient_no_more(first)

    def _is_patient_no_more(self, job: Job) -> bool:
        floor = self._floor
        if job.ask.gpus > floor.tenants.gpus or not floor.rules.has(Rule.AGEING):
            return False  # for one that no cluster of this size can hold, nobody waits
        return floor.now_s - job.since_s > floor.rules.patience_s

    def _first(self, line: dict[int, Job]) -> Job | None:
        """Of those who are still waiting, for whatever."""
        while line:
            number, job = next(iter(line.items()))
            if job.standing is Standing.WAITING and self._floor.jobs.get(job.ref) is job:
                return job
            del line[number]
        return None
