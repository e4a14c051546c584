# SPDX-License-Identifier: Apache-2.0
"""Time limits that grow by what a job waited for others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import looked, machine, node, request, sight, token
from slipstream.core.classes import JobClass, Mode, Role
from slipstream.core.commands import Extend
from slipstream.core.events import CommandRefused, ModeChanged, NodeReported
from slipstream.core.extending import SOON_S
from slipstream.core.rules import Rules
from slipstream.core.sights import Standing, Training

if TYPE_CHECKING:
    from slipstream.core.commands import Command
    from slipstream.core.machine import Machine
    from slipstream.core.sights import JobSight, Request

pytestmark = pytest.mark.unit

GUEST = request(1, role=Role.GUEST)
LIMIT_S, ENDS_AT_S = 3600, 3700


def runs(asked: Request = GUEST, limit_s: int = LIMIT_S) -> JobSight:
    """A job that started 100 s after all began."""
    one = replace(sight("7", asked, Standing.RUNNING), number=7)
    return replace(one, time_limit_s=limit_s, ends_at_s=ENDS_AT_S + limit_s - LIMIT_S)


def world(asked: Request = GUEST, mode: Mode = Mode.ENFORCE) -> Machine:
    """One node and a job that runs there."""
    one = machine(node("n1"), rules=Rules(mode=mode))
    one.handle(looked(100.0, runs(asked)))
    return one


def told(one: Machine, at_s: float, waited_s: float, node: str = "n1") -> list[Command]:
    """What a report of its node brings."""
    job = Training(ref="7", waited_s=waited_s)
    return one.handle(NodeReported(at_s=at_s, node=node, jobs=(job,)))


def to_minutes(limit: int) -> list[Command]:
    """So many."""
    return [Extend(token(1), "7", 7, 60 * limit)]


def test_a_guest_near_its_limit_is_given_what_it_waited() -> None:
    """In whole minutes and once; `why` tells."""
    one = world()
    assert told(one, ENDS_AT_S - SOON_S - 5, 150.0) == []
    assert told(one, ENDS_AT_S - SOON_S, 150.0) == to_minutes(63)
    assert told(one, ENDS_AT_S - SOON_S + 5, 155.0) == []
    assert "waited 150 s for others in all: its time limit becomes 63 min" in [
        line.text for line in one.state.jobs["7"].story
    ]


def test_it_is_given_more_when_it_has_waited_more() -> None:
    """A minute later at the earliest, and a minute's worth."""
    one = world()
    assert told(one, ENDS_AT_S - 300, 61.0) == to_minutes(62)
    one.handle(looked(ENDS_AT_S - 290, runs(limit_s=60 * 62)))
    assert told(one, ENDS_AT_S - 100, 150.0) == [], "a minute of it was given before"
    assert told(one, ENDS_AT_S - 95, 185.0) == to_minutes(64)


def test_what_slurm_has_not_done_is_asked_for_again() -> None:
    """Killed over it, or Slurm away: its limit is what it was a minute later."""
    one = world()
    assert told(one, ENDS_AT_S - 300, 61.0) == to_minutes(62)
    assert told(one, ENDS_AT_S - 250, 90.0) == []
    assert told(one, ENDS_AT_S - 240, 90.0) == to_minutes(62)


def test_a_refusal_is_told_and_respected_for_a_while() -> None:
    """Its partition has a longest time; an operator may change that."""
    one = world()
    assert told(one, ENDS_AT_S - 600, 61.0) == to_minutes(62)
    one.handle(CommandRefused(ENDS_AT_S - 599, token(1), "no more than 1 h", about="Extend"))
    assert "its time limit stays: no more than 1 h" in one.state.jobs["7"].said
    assert told(one, ENDS_AT_S - 300, 61.0) == []
    assert told(one, ENDS_AT_S + 1, 61.0) == to_minutes(62)


def test_an_operators_limit_counts_from_then_on() -> None:
    """Whatever we asked for before."""
    one = world()
    assert told(one, ENDS_AT_S - 300, 61.0) == to_minutes(62)
    one.handle(looked(ENDS_AT_S - 290, runs(limit_s=60 * 65)))
    assert told(one, ENDS_AT_S - 200, 121.0) == []
    assert told(one, ENDS_AT_S - 190, 181.0) == to_minutes(67)


def test_a_coordinator_that_was_started_anew_counts_from_nothing() -> None:
    """What was told before is not forgotten, and not counted twice."""
    one = world()
    told(one, 200.0, 40.0)
    told(one, 210.0, 2.0)
    assert one.state.waits["7"].owed_s == 42.0
    told(one, 220.0, 30.0)
    assert one.state.waits["7"].owed_s == 70.0


def test_a_run_begins_with_nothing() -> None:
    """A requeued job's clock begins anew."""
    one = world()
    told(one, 200.0, 500.0)
    one.handle(looked(300.0, replace(runs(), submitted_at_s=290)))
    assert told(one, ENDS_AT_S - 10, 30.0) == []
    assert one.state.waits["7"].owed_s == 30.0


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (replace(GUEST, job_class=JobClass.AUTO), True),
        (request(1), True),
        (replace(request(1), job_class=JobClass.GUARANTEED), False),
        (replace(request(1), job_class=JobClass.AUTO), False),
    ],
    ids=["auto guest", "shared owner", "guaranteed", "auto owner"],
)
def test_who_yields_to_nobody_is_given_nothing(asked: Request, given: bool) -> None:  # noqa: FBT001
    """Guests yield to owners, shared jobs to their peers."""
    assert bool(told(world(asked), ENDS_AT_S - 10, 300.0)) is given


def test_nothing_is_given_but_in_mode_enforce() -> None:
    """What was waited meanwhile counts when it is."""
    one = world(mode=Mode.ADVISE)
    assert told(one, ENDS_AT_S - 100, 300.0) == []
    one.handle(ModeChanged(ENDS_AT_S - 99, Mode.ENFORCE))
    assert told(one, ENDS_AT_S - 95, 305.0) == to_minutes(66)


def test_a_job_without_a_limit_needs_nothing() -> None:
    """Nor does one on another node than the one that tells."""
    one = world()
    assert told(one, ENDS_AT_S - 10, 300.0, node="n2") == []
    one.handle(looked(ENDS_AT_S - 9, replace(runs(), time_limit_s=None, ends_at_s=None)))
    assert told(one, ENDS_AT_S - 5, 300.0) == []
