# SPDX-License-Identifier: Apache-2.0
"""One job as the cluster's policies keep it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import Role
from slipstream.core.reasons import Reason

if TYPE_CHECKING:
    from slipstream.core.cluster.asks import Ask

GUARANTEED: Final = -2
"""The level of guaranteed jobs: before all others."""
OVERDUE: Final = -1
"""The level of those who waited long at the first one: before all of it."""


class Standing(StrEnum):
    """Where a job is. It waits, sits, is parked and sits again, until it has left."""

    WAITING = "waiting"
    SEATED = "seated"
    PARKED = "parked"


@dataclass(slots=True, eq=False)
class Job:
    """What is known of it, and where it is."""

    ask: Ask
    number: int
    """In which order jobs came: the last word in every choice."""
    is_guaranteed: bool
    """Nobody parks it: it is of that class, or Slurm gives it GPUs of its own."""
    use_pct: float
    memory_mib: int
    standing: Standing = Standing.WAITING
    reason: Reason = Reason.NO_FREE_GPU
    role: Role = Role.OWNER
    gpus: tuple[int, ...] = ()
    left_gpus: tuple[int, ...] = ()
    """Where it was parked."""
    level: int = 0
    served_gpu_s: float = 0.0
    """Service that counts for its level."""
    seated_s: float = 0.0
    """How long it has sat on GPUs, in all."""
    since_s: float = 0.0
    """When it sat down or began to wait."""
    moved_at_s: float = float("-inf")
    guards: bool = False
    """Whether it owns its GPUs so that nobody takes them: guaranteed, and seated."""
    seen: bool = False
    """Whether somebody saw it on its GPUs, or it was only told to go there."""
    version: int = 0
    """Timers set for an older one do not ring."""

    @property
    def ref(self) -> str:
        """Its name in commands."""
        return self.ask.ref

    @property
    def key(self) -> tuple[int, float, int]:
        """Its place among the jobs of one tenant and level: Slurm's order."""
        return (-self.ask.priority, self.ask.submitted_at_s, self.number)
