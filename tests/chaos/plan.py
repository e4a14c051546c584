# SPDX-License-Identifier: Apache-2.0
"""What is done to a cluster, and when: the same for the same seed. Pure.

Every kind of fault at every moment it can strike is one case. A campaign goes through all of them
in an order that its seed shuffles, a few in each round, and begins anew when all were there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle, islice
from typing import Final


class Kind(StrEnum):
    """What goes wrong."""

    COORDINATOR = "coordinator"
    SCHEDULER = "scheduler"
    TRAINER = "trainer"
    SLURMD = "slurmd"
    SLURMCTLD = "slurmctld"
    RAMDISK_FULL = "ramdisk full"
    SHARED_GONE = "shared folder gone"
    TWO_MOVES = "two moves at once"
    SWITCH = "kill switch"
    REQUEUE = "requeued by an operator"


class Moment(StrEnum):
    """In which phase of a turn or of a move."""

    TRAINING = "training"
    STANDING = "paused"
    PARKED = "parked"
    SAVING = "saving"
    LEAVING = "leaving"
    PLACING = "placing"
    RESTORING = "restoring"


OF_A_TURN: Final = (Moment.TRAINING, Moment.STANDING, Moment.PARKED)
OF_A_MOVE: Final = (Moment.SAVING, Moment.LEAVING, Moment.PLACING, Moment.RESTORING)
KILLS: Final = (Kind.COORDINATOR, Kind.SCHEDULER, Kind.TRAINER, Kind.SLURMD, Kind.SLURMCTLD)
CASES: Final = (
    *((kind, moment) for kind in KILLS for moment in (*OF_A_TURN, *OF_A_MOVE)),
    (Kind.RAMDISK_FULL, Moment.SAVING),
    *((Kind.SHARED_GONE, moment) for moment in OF_A_MOVE),
    (Kind.TWO_MOVES, Moment.SAVING),
    *((Kind.SWITCH, moment) for moment in (*OF_A_TURN, *OF_A_MOVE)),
    *((Kind.REQUEUE, moment) for moment in (*OF_A_TURN, Moment.SAVING, Moment.RESTORING)),
)
SLOWEST_BACK_S: Final = 3.0
LONGER_S: Final = 8.0
"""A filesystem is away for so much longer: a job that is started anew imports torch first."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    kind: Kind
    moment: Moment
    away_s: float
    """How long what was taken away stays away."""
    pick: float
    """From 0 to 1: which of the jobs that there are then."""

    def __str__(self) -> str:
        return f"{self.kind} while {self.moment}, back after {self.away_s:.1f} s"


def faults(seed: int, number: int, count: int) -> list[Fault]:
    """Those of one round of the campaign."""
    chance = random.Random(seed)  # noqa: S311 (to be repeated is the point)
    cases = list(CASES)
    chance.shuffle(cases)
    mine = islice(cycle(cases), number * count, (number + 1) * count)
    own = random.Random(f"{seed}/{number}")  # noqa: S311 (the same)
    return [
        Fault(kind, moment, round(_away_s(kind, own.random()), 2), own.random())
        for kind, moment in mine
    ]


def _away_s(kind: Kind, part: float) -> float:
    return part * SLOWEST_BACK_S + (LONGER_S if kind is Kind.SHARED_GONE else 0.0)
