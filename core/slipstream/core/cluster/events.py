# SPDX-License-Identifier: Apache-2.0
"""What happened in the cluster, in the past tense, stamped `at_s` by whoever saw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

# At run time too: the journal reads these classes back by their annotations.
from slipstream.core.cluster.asks import Ask  # noqa: TC001


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
    | NodeDrained
    | JobCame
    | JobLeft
    | JobProfiled
    | PairMeasured
    | CommandRefused
    | TimerFired
)
