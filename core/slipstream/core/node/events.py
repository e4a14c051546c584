# SPDX-License-Identifier: Apache-2.0
"""What happened on a node, in the past tense, stamped `at_s` by whoever saw it.

Seconds are of any one clock that only grows: the coordinator's monotonic one, a simulator's own.
Only what changed need be told: a job that has done no mini-batch since its last report has nothing
to report, and one whose GPUs are settled (`NodeMachine.quiet_until_s`) need not be asked. But one
that is waited for (`Wheel.waits_for`) tells where it stands also if it never left: its turn may
have begun and ended before it heard of either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from slipstream.core.classes import JobClass, Role
from slipstream.core.node.rules import NodeRules  # noqa: TC001 (read back by annotations)


class Standing(StrEnum):
    """What a job on a node does."""

    LOADING = "loading"
    """It has not ended its first mini-batch."""
    TRAINING = "training"
    STILL = "still"
    """It was made to stand still with its memory on the GPU."""
    PARKED = "parked"
    """It waits in host memory."""
    HELD = "held"
    """It begins no device operation until it is let go on; its memory stays on the GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJob:
    """A job with a seat on this node."""

    job_id: int
    job_class: JobClass
    role: Role
    gpus: tuple[str, ...]
    hooked: bool = True
    """Without hooks nobody can tell whether it is slowed, and it can be asked for nothing."""
    memory_mib: int = 0
    """What it is expected to need on each GPU; 0: unknown."""
    weight: int = 1
    priority: int = 0
    gang: tuple[str, ...] = ()
    """All its nodes if they are several, the one that leads first."""
    leads: bool = True
    """Whether this node decides about its turns."""

    @property
    def takes_turns(self) -> bool:
        """Parked for its peers, and they for it."""
        return self.job_class is JobClass.SHARED and self.hooked

    @property
    def is_owner(self) -> bool:
        """Whether it is protected whoever else is there."""
        return self.role is Role.OWNER and not self.takes_turns


@dataclass(frozen=True, slots=True)
class GpuFound:
    """A GPU answers."""

    at_s: float
    gpu: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class GpuLost:
    """It does not any more."""

    at_s: float
    gpu: str


@dataclass(frozen=True, slots=True)
class JobArrived:
    """A job has a seat here, or what is known of it has changed."""

    at_s: float
    job: NodeJob


@dataclass(frozen=True, slots=True)
class JobLeft:
    """It has none any more."""

    at_s: float
    job_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReported:
    """How far a job is, by its slowest process."""

    at_s: float
    job_id: int
    standing: Standing = Standing.TRAINING
    minibatches: int = 0
    boundary_at_s: float = 0.0
    """When the last of them ended."""
    away_s: float = 0.0
    """How long in all it saved, stood still or was parked: not training."""
    memory_mib: int = 0
    """On the fullest of its GPUs."""
    spilled_mib: int = 0
    """What of it lives in host memory for now, because it did not fit."""
    is_starting: bool = False
    """It is not near the GPU yet, and will look at what it is asked before it uses it."""
    resident_mib: int | None = 0
    """What its processes have on the fullest of its GPUs now, also before they train; None: nobody
    has measured it yet."""
    quiet_since_s: float | None = None
    """Since when its processes have not used a GPU; None: they do, or nobody can measure it."""
    can_hold: bool = False
    """Whether it can be stopped at its next device operation, without a boundary."""
    wants_gpu: bool = True
    """False: it is held, and has not come to a device operation since."""


@dataclass(frozen=True, slots=True)
class TurnCalled:
    """The node that leads a gang says that it runs from now on, or waits.

    `returns`: its turn is next, and it comes back to stand still until then.
    """

    at_s: float
    job_id: int
    runs: bool
    returns: bool = False


@dataclass(frozen=True, slots=True)
class ParkOrdered:
    """An operator wants a job off its GPUs until further notice; `parked` False: no longer."""

    at_s: float
    job_id: int
    parked: bool


@dataclass(frozen=True, slots=True)
class TurnsPassed:
    """Time went by in unchanging turns, and each job had so much of it (a simulator's shortcut)."""

    at_s: float
    served_s: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time the machine asked to be woken at has come."""

    at_s: float


@dataclass(frozen=True, slots=True)
class NodeRulesChanged:
    """The site has set other rules."""

    at_s: float
    rules: NodeRules


NodeEvent: TypeAlias = (
    GpuFound
    | GpuLost
    | JobArrived
    | JobLeft
    | JobReported
    | TurnCalled
    | ParkOrdered
    | TurnsPassed
    | TimerFired
    | NodeRulesChanged
)
