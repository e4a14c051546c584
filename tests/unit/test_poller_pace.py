# SPDX-License-Identifier: Apache-2.0
"""How long the poller waits."""

from __future__ import annotations

import pytest

from slipstream.slurm_plugin.pace import Outcome, Pace, Poll, next_delay_s

pytestmark = pytest.mark.unit

PACE = Pace(fastest_s=0.5, changed_s=1, slowest_s=10, growth=2, away_s=60)


def delays(outcome: Outcome, count: int, waited_s: float = 1.0) -> list[float]:
    """The waits after so many polls of the same outcome."""
    found: list[float] = []
    for failures in range(1, count + 1):
        waited_s = next_delay_s(PACE, Poll(outcome, 0.1, waited_s, failures))
        found.append(waited_s)
    return found


def test_quiet_polls_come_ever_slower() -> None:
    """Up to the bound."""
    assert delays(Outcome.QUIET, 5) == [2, 4, 8, 10, 10]


def test_a_change_makes_polls_fast_again() -> None:
    """However slow they had become."""
    assert delays(Outcome.CHANGED, 2, waited_s=10) == [1, 1]


def test_a_controller_that_is_away_is_asked_ever_less() -> None:
    """Twice as long each time, up to a bound of its own."""
    assert delays(Outcome.AWAY, 8) == [0.5, 1, 2, 4, 8, 16, 32, 60]
    assert next_delay_s(PACE, Poll(Outcome.AWAY, 0.1, 60, failures=10**6)) == 60


@pytest.mark.parametrize("outcome", Outcome)
def test_polls_take_half_of_the_time_at_most(outcome: Outcome) -> None:
    """A controller that answers slowly has other things to do."""
    assert next_delay_s(PACE, Poll(outcome, took_s=75, waited_s=1, failures=1)) == 75


@pytest.mark.parametrize(
    "wrong",
    [
        {"fastest_s": 0},
        {"fastest_s": 2, "changed_s": 1},
        {"changed_s": 20, "slowest_s": 10},
        {"slowest_s": 100, "away_s": 60},
        {"growth": 1},
    ],
)
def test_bounds_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    """At start, with all of them shown."""
    with pytest.raises(ValueError, match=r"Pace\(fastest_s="):
        Pace(**wrong)
