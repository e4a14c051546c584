# SPDX-License-Identifier: Apache-2.0
"""Durable copies of trainings, and when one may go. Pure.

A copy is kept for as long as Slurm knows its job in any state: a job that has ended can be requeued
until Slurm forgets it, and would go on from its copy. From then on it is kept for a grace time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

ASK_AGAIN_S: Final = 600.0
"""After a removal that failed, or that nobody has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """What was carried of one job to the shared filesystem."""

    job_id: str
    """What its nodes know it by."""
    token: str
    uid: int
    saved_at_s: float
    bytes_carried: int = 0
    spilled: bool = False
    """Whether the ramdisk had no room for it, so that its training wrote it there itself."""
    forgotten_at_s: float | None = None
    """Since when Slurm does not know the job any more."""
    asked_at_s: float | None = None
    """When a node was last asked to remove it."""
    problem: str = ""
    """Why it could not be removed then."""

    @property
    def key(self) -> str:
        """Numbers of jobs may come again; with the token they are one submission's."""
        return f"{self.job_id}-{self.token}"

    def looked_for(self, at_s: float, *, known: bool) -> Copy:
        """After a look at Slurm: whether it knows the job."""
        if known:
            return replace(self, forgotten_at_s=None, asked_at_s=None)
        return self if self.forgotten_at_s is not None else replace(self, forgotten_at_s=at_s)

    def goes_at_s(self, keep_s: float) -> float | None:
        """When it may be removed; None while Slurm knows its job."""
        return None if self.forgotten_at_s is None else self.forgotten_at_s + keep_s

    def is_due(self, at_s: float, keep_s: float) -> bool:
        """Whether a node is to be asked to remove it."""
        goes_at_s = self.goes_at_s(keep_s)
        asked = self.asked_at_s is not None and at_s - self.asked_at_s < ASK_AGAIN_S
        return goes_at_s is not None and goes_at_s <= at_s and not asked
