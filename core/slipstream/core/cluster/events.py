# SPDX-License-Identifier: Apache-2.0
"""What happened in the cluster, in the past tense, stamped `at_s` by whoever saw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

# At run time too: the journal reads these classes back by their annotations.
from slipstream.core.classes import Role  # noqa: TC001 (read back by annotations)
from slipstream.core.cluster.asks import Ask  # noqa: TC001 (read back by annotations)
from slipstream.core.topology import Topology  # noqa: TC001 (read back by annotations)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCame:
    """A node is in service, with no job on it that we do not know."""

    at_s: float
    node: str
    gpus: int
    memory_mib: int = 0
    """Of each GPU; 0 if nobody knows: it then counts as unlimited."""
    rack: str = ""


@dataclass(frozen=True, slots=True)
class GpuSeen:
    """One GPU as it was measured over the last seconds."""

    use_pct: float | None = None
    """None: nobody measured."""
    memory_used_mib: int = 0
    takes_guests: bool = True


@dataclass(frozen=True, slots=True)
class Sitter:
    """A job that holds GPUs of a node, by their indices, or a seat on them."""

    ask: Ask
    gpus: tuple[int, ...]
    role: Role
    since_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSeen:
    """A node with all who are on it, whoever put them there: in place of what was believed."""

    at_s: float
    node: str
    gpus: tuple[GpuSeen, ...]
    memory_mib: int = 0
    seats: int = 0
    """Guests each GPU has seats for; 0: as the rules say."""
    takes_jobs: bool = True
    drained: bool = False
    """Those on it are to leave if they can."""
    sitters: tuple[Sitter, ...] = ()


@dataclass(frozen=True, slots=True)
class RacksRead:
    """Which nodes are near each other."""

    at_s: float
    topology: Topology


@dataclass(frozen=True, slots=True)
class UplinksSeen:
    """What jobs that run send over the uplinks of racks, in Mbit/s, by the rack's name."""

    at_s: float
    sent: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class RoundBegan:
    """All who wait come anew: who was told to start and was not seen to counts as waiting."""

    at_s: float


@dataclass(frozen=True, slots=True)
class RoundEnded:
    """All who wait have come, and so many found no seat."""

    at_s: float
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class NodeDrained:
    """A node is to take no more jobs; those on it may stay until they end or are moved."""

    at_s: float
    node: str


@dataclass(frozen=True, slots=True)
class JobCame:
    """A job waits."""

    at_s: float
    ask: Ask


@dataclass(frozen=True, slots=True)
class RoomWanted:
    """A job waits that no node has room for: one may be emptied for it (where Slurm seats it)."""

    at_s: float
    ask: Ask


@dataclass(frozen=True, slots=True)
class JobLeft:
    """A job has ended, was cancelled, or has failed."""

    at_s: float
    ref: str


@dataclass(frozen=True, slots=True)
class JobProfiled:
    """What a job truly needs of each GPU, measured over its first mini-batches."""

    at_s: float
    ref: str
    use_pct: float
    memory_mib: int


@dataclass(frozen=True, slots=True)
class PairMeasured:
    """Two jobs on one GPU: the speed of each, 1 being its speed alone."""

    at_s: float
    ref: str
    other: str
    rate: float
    other_rate: float


@dataclass(frozen=True, slots=True)
class PairsRemembered:
    """All that is known of families together, in place of what was: (one, other, total, at_s)."""

    at_s: float
    pairs: tuple[tuple[str, str, float, float], ...]


@dataclass(frozen=True, slots=True)
class CommandRefused:
    """What was commanded about a job could not be carried out: it is where it was."""

    at_s: float
    ref: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class TimerFired:
    """The time the policies asked to be woken at has come."""

    at_s: float


ClusterEvent: TypeAlias = (
    NodeCame
    | NodeSeen
    | RacksRead
    | UplinksSeen
    | RoundBegan
    | RoundEnded
    | NodeDrained
    | JobCame
    | RoomWanted
    | JobLeft
    | JobProfiled
    | PairMeasured
    | PairsRemembered
    | CommandRefused
    | TimerFired
)
