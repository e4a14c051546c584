# SPDX-License-Identifier: Apache-2.0
"""Which job is saved next though nobody asks: each once in an interval, one at a time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


class Periodic:
    """Since when each job of the node has not been saved.

    Args:
        every_s: the interval; 0: nobody is saved by this.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._since_s: dict[int, float] = {}

    def due(self, now_s: float, seated: Collection[int], able: Collection[int]) -> int | None:
        """Who is to be saved now, of those who can; an interval counts from a job's first sight."""
        self._since_s = {job: self._since_s.get(job, now_s) for job in seated}
        late = [job for job in able if now_s - self._since_s[job] >= self._every_s > 0]
        return min(late, key=lambda job: (self._since_s[job], job), default=None)

    def begun(self, job_id: int, now_s: float) -> None:
        """Somebody saves it: the next time is an interval away, however this one ends."""
        self._since_s[job_id] = now_s
