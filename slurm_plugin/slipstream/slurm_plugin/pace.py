# SPDX-License-Identifier: Apache-2.0
"""How long to wait until the next poll. Pure: told of the last one, answers with a delay."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """What a poll found."""

    CHANGED = "changed"
    QUIET = "quiet"
    AWAY = "away"
    """It failed: slurmctld is away, or its answer was not understood."""


@dataclass(frozen=True, slots=True)
class Poll:
    """A poll that has ended."""

    outcome: Outcome
    took_s: float
    waited_s: float
    """The delay before it."""
    failures: int = 0
    """How many polls in a row have failed, this one included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The bounds between which polls slow down and speed up.

    When somebody knows that a change is due (a nudge), the next poll comes after `fastest_s`, after
    a change of which nobody knew after `changed_s`. Each quiet poll makes the next wait longer, up
    to `slowest_s`. While slurmctld is away waits double from `fastest_s` up to `away_s`.
    """

    fastest_s: float = 1.0
    changed_s: float = 1.0
    slowest_s: float = 10.0
    growth: float = 1.5
    away_s: float = 60.0

    def __post_init__(self) -> None:
        bounds_s = (self.fastest_s, self.changed_s, self.slowest_s, self.away_s)
        if self.fastest_s <= 0 or list(bounds_s) != sorted(bounds_s):
            raise ValueError(f"{self}: it must be 0 < fastest_s ≤ changed_s ≤ slowest_s ≤ away_s")
        if self.growth <= 1:
            raise ValueError(f"{self}: growth must be above 1")


def next_delay_s(pace: Pace, last: Poll) -> float:
    """The wait before the next poll: never less than the last one took.

    So a controller that answers slowly is busy with us half of the time at most.
    """
    match last.outcome:
        case Outcome.CHANGED:
            delay_s = pace.changed_s
        case Outcome.QUIET:
            delay_s = min(max(last.waited_s, pace.changed_s) * pace.growth, pace.slowest_s)
        case Outcome.AWAY:
            doubled = 1 << min(max(last.failures - 1, 0), 30)  # beyond any bound by then
            delay_s = min(pace.fastest_s * doubled, pace.away_s)
    return max(delay_s, last.took_s)
