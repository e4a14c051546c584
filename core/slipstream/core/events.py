# SPDX-License-Identifier: Apache-2.0
"""What happened, in the past tense, stamped `at_s` by whoever saw it.

These are the only way into the machine, and what the journal keeps: config and journal give the
same commands again. Seconds are since 1970.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

# At run time too: the journal reads these classes back by their annotations.
from slipstream.core.advice import Advice  # noqa: TC001 (read back by annotations)
from slipstream.core.classes import Mode  # noqa: TC001 (read back by annotations)
from slipstream.core.extending import Wait  # noqa: TC001 (read back by annotations)
from slipstream.core.figures import Figures  # noqa: TC001 (read back by annotations)
from slipstream.core.moves import Left, Saga  # noqa: TC001 (read back by annotations)
from slipstream.core.packing import Paired  # noqa: TC001 (read back by annotations)
from slipstream.core.parking import Parked  # noqa: TC001 (read back by annotations)
from slipstream.core.records import JobRecord  # noqa: TC001 (read back by annotations)
from slipstream.core.rules import Rules
from slipstream.core.sights import (  # noqa: TC001 (read back by annotations)
    GpuUse,
    JobSight,
    NodeSight,
    PackSeen,
    Request,
    Training,
)
from slipstream.core.topology import Group  # noqa: TC001 (read back by annotations)
from slipstream.core.upgrading import Upgraded  # noqa: TC001 (read back by annotations)


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A user submits a job with our flags; it has no number yet."""

    at_s: float
    request: Request


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSeen:
    """One look at Slurm: what is new, what differs, what is gone.

    `complete` if these are all jobs and nodes there are, so that what is not in it is gone.
    """

    at_s: float
    jobs: tuple[JobSight, ...] = ()
    jobs_gone: tuple[str, ...] = ()
    nodes: tuple[NodeSight, ...] = ()
    nodes_gone: tuple[str, ...] = ()
    complete: bool = False


@dataclass(frozen=True, slots=True)
class TopologyRead:
    """Which nodes are near each other."""

    at_s: float
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReported:
    """The coordinator of a node says how its GPUs are used."""

    at_s: float
    node: str
    gpus: tuple[GpuUse, ...] = ()
    jobs: tuple[Training, ...] = ()
    packed: tuple[PackSeen, ...] = ()
    """What guests that share a GPU were measured to do."""
    enforces: bool = True
    """Whether it carries out what it decides about shares, memory and turns."""
    mode: Mode | None = None
    """The mode it follows by now; None: a coordinator that does not say."""
    mode_at_most: Mode | None = None
    """The most that its own setting lets it follow."""
    ended: tuple[Training, ...] = ()
    """The last figures of starts whose processes have all left the node; told more than once."""


@dataclass(frozen=True, slots=True)
class SlurmLost:
    """Slurm's controller does not answer."""

    at_s: float
    text: str


@dataclass(frozen=True, slots=True)
class SlurmFound:
    """It answers again."""

    at_s: float


@dataclass(frozen=True, slots=True)
class RulesChanged:
    """The daemon was started with these settings."""

    at_s: float
    rules: Rules


@dataclass(frozen=True, slots=True)
class ModeChanged:
    """An operator chose another mode."""

    at_s: float
    mode: Mode


@dataclass(frozen=True, slots=True)
class SwitchedOff:
    """Somebody threw the kill switch."""

    at_s: float


@dataclass(frozen=True, slots=True)
class SwitchedOn:
    """The kill switch is gone."""

    at_s: float


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """What was commanded about a job could not be carried out."""

    at_s: float
    token: str
    text: str
    task: int | None = None
    about: str = ""
    """The kind of command; empty for advice and for what moves a job."""
    job: str = ""
    """Its key or its number: tasks of an array have one token. Empty: all jobs of the token."""

    def concerns(self, *names: str) -> bool:
        """Whether it was about the job of this key or number."""
        return not self.job or self.job in names


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveAsked:
    """Somebody wants a running job elsewhere: on `nodes`, or wherever it fits best."""

    at_s: float
    key: str
    nodes: tuple[str, ...] = ()
    why: str = ""
    forced: bool = False
    """By an operator, who need not wait between two moves as long as we do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeAsked:
    """Somebody wants a running elastic job to go on with so many GPUs."""

    at_s: float
    key: str
    gpus: int
    why: str = ""
    forced: bool = False
    """By an operator, who need not wait between two changes as long as we do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkAsked:
    """An operator wants a running job off its GPUs until further notice, or no longer so."""

    at_s: float
    key: str
    parked: bool
    why: str = ""
    until_s: float | None = None
    """When that ends by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSaved:
    """A node has saved a job to the shared filesystem, or could not."""

    at_s: float
    node: str
    job_id: str
    number: int
    bytes_carried: int = 0
    seconds: float = 0.0
    problem: str = ""
    spilled: bool = False
    """Written there by the training itself: the ramdisk had no room."""


@dataclass(frozen=True, slots=True)
class SchedulerStarted:
    """The daemon is back: what it was about to do when it ended may not have been done."""

    at_s: float


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time the machine asked to be woken at has come."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRestored:
    """Everything the machine knew at some time, so that older events are not needed any more."""

    at_s: float
    mode: Mode
    rules: Rules = field(default_factory=Rules)
    switched_off: bool = False
    slurm_away: bool = False
    jobs: tuple[JobRecord, ...] = ()
    requests: tuple[Request, ...] = ()
    advice: tuple[Advice, ...] = ()
    nodes: tuple[NodeSight, ...] = ()
    reports: tuple[NodeReported, ...] = ()
    groups: tuple[Group, ...] = ()
    moves: tuple[Saga, ...] = ()
    left: tuple[tuple[str, Left], ...] = ()
    swapped: tuple[tuple[str, float], ...] = ()
    waits: tuple[Wait, ...] = ()
    upgrades: tuple[Upgraded, ...] = ()
    pairs: tuple[Paired, ...] = ()
    parked: tuple[Parked, ...] = ()
    figures: tuple[Figures, ...] = ()
    idle_since_s: float | None = None


Event: TypeAlias = (
    JobSubmitted
    | ClusterSeen
    | TopologyRead
    | NodeReported
    | SlurmLost
    | SlurmFound
    | RulesChanged
    | ModeChanged
    | SwitchedOff
    | SwitchedOn
    | CommandRefused
    | MoveAsked
    | ResizeAsked
    | ParkAsked
    | JobSaved
    | SchedulerStarted
    | TimerFired
    | StateRestored
)
