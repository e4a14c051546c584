# SPDX-License-Identifier: Apache-2.0
"""What operators park: who may be, for how long, and what a journal keeps of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import looked, machine, node, request, sight
from slipstream.core import parking
from slipstream.core.classes import JobClass, Mode, Role
from slipstream.core.events import (
    ClusterSeen,
    ModeChanged,
    MoveAsked,
    NodeReported,
    ParkAsked,
    SwitchedOff,
    SwitchedOn,
    TimerFired,
)
from slipstream.core.reasons import Reason
from slipstream.core.sights import JobSight, Standing, Training
from slipstream.core.state import restored

if TYPE_CHECKING:
    from slipstream.core.machine import Machine

pytestmark = pytest.mark.unit


def running(
    job_class: JobClass = JobClass.OPPORTUNISTIC,
    role: Role = Role.GUEST,
    where: tuple[str, ...] = ("n1",),
) -> JobSight:
    """A job with a number that its node knows it by."""
    asked = replace(request(1, role=role), job_class=job_class)
    return replace(sight("5", asked, Standing.RUNNING), number=5, nodes=where)


def trains(minibatch: int = 40) -> NodeReported:
    """Its node tells of it."""
    told = Training(ref="5", phase="training", minibatch=minibatch, restorable=True)
    return NodeReported(at_s=2.0, node="n1", jobs=(told,))


def with_job(seen: JobSight) -> Machine:
    """A cluster of two nodes and one job that trains."""
    cluster = machine(node("n1"), node("n2"))
    cluster.handle(looked(1.0, seen))
    cluster.handle(trains())
    return cluster


@pytest.fixture
def one() -> Machine:
    """A guest that trains on the first of two nodes."""
    return with_job(running())


def asked(
    key: str = "5", *, parked: bool = True, at_s: float = 10.0, until_s: float | None = None
) -> ParkAsked:
    """An operator's wish."""
    return ParkAsked(at_s=at_s, key=key, parked=parked, why="a course", until_s=until_s)


def story(cluster: Machine) -> list[str]:
    """What was told of the job."""
    return [line.text for line in cluster.state.jobs["5"].story]


def test_a_parked_job_stands_at_its_node_until_it_is_released(one: Machine) -> None:
    """And its story says who wanted it and why."""
    one.handle(asked())
    assert parking.by_node(one.state) == {"n1": (5,)}
    assert story(one)[-1] == "parked by an operator: a course"
    one.handle(asked(parked=False, at_s=20.0))
    assert parking.by_node(one.state) == {}
    assert story(one)[-1] == "released: a course"


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        pytest.param(running(JobClass.SHARED, Role.OWNER), None, id="shared owner"),
        pytest.param(running(JobClass.SHARED), None, id="shared guest"),
        pytest.param(running(JobClass.SHARED, where=("n1", "n2")), None, id="shared gang"),
        pytest.param(running(JobClass.AUTO), None, id="auto guest"),
        pytest.param(
            running(JobClass.GUARANTEED, Role.OWNER), Reason.PARKS_NO_OWNER, id="guaranteed"
        ),
        pytest.param(running(JobClass.AUTO, Role.OWNER), Reason.PARKS_NO_OWNER, id="auto owner"),
        pytest.param(running(where=("n1", "n2")), Reason.PARKS_ONE_NODE_ONLY, id="guests' gang"),
        pytest.param(sight("5", request(1)), Reason.PARKS_ONLY_RUNNING, id="waits"),
        pytest.param(sight("5", None, Standing.RUNNING), Reason.LEFT_TO_SLURM, id="plain"),
    ],
)
def test_who_may_be_parked(seen: JobSight, reason: Reason | None) -> None:
    """Guests, and whoever shares; nobody else, and the answer says why."""
    cluster = with_job(seen)
    assert parking.refusal(cluster.state, asked()) == reason
    cluster.handle(asked())
    assert bool(cluster.state.parked) is (reason is None)


def test_what_is_not_there_is_neither_parked_nor_released(one: Machine) -> None:
    """Each with its reason."""
    assert parking.refusal(one.state, asked("6")) is Reason.PARKS_ONLY_RUNNING
    assert parking.refusal(one.state, asked(parked=False)) is Reason.NOT_PARKED
    one.handle(trains(minibatch=0))
    assert parking.refusal(one.state, asked()) is Reason.PARKS_ONLY_TRAINING
    one.handle(replace(trains(), enforces=False))
    assert parking.refusal(one.state, asked()) is Reason.PARKS_NOT_THERE


def test_a_training_that_has_ended_is_not_parked(one: Machine) -> None:
    """Whether its script goes on or not: there would be nothing to park."""
    (job,) = trains().jobs
    one.handle(replace(trains(), jobs=(replace(job, phase="ended"),)))
    assert parking.refusal(one.state, asked()) is Reason.TRAINING_OVER
    one.handle(looked(3.0, replace(running(), standing=Standing.ENDED)))
    assert parking.refusal(one.state, asked()) is Reason.TRAINING_OVER


def test_an_order_for_so_long_ends_by_itself(one: Machine) -> None:
    """The machine asks to be woken for it."""
    one.handle(asked(until_s=100.0))
    one.handle(TimerFired(60.0))
    assert one.state.parked
    wakes_at_s = one.wakes_at_s()
    assert wakes_at_s is not None
    assert wakes_at_s <= 100.0
    one.handle(TimerFired(100.0))
    assert not one.state.parked
    assert story(one)[-1] == "released: its time is over"


def test_an_order_ends_with_its_job(one: Machine) -> None:
    """Of a requeued one it stands: it counts where the job runs next."""
    one.handle(asked())
    waits = replace(sight("5", request(1, role=Role.GUEST)), number=5)
    one.handle(looked(20.0, waits))
    assert parking.by_node(one.state) == {}
    one.handle(looked(30.0, running(where=("n2",))))
    assert parking.by_node(one.state) == {"n2": (5,)}
    one.handle(ClusterSeen(at_s=40.0, jobs_gone=("5",)))
    assert not one.state.parked


def test_switched_off_or_in_observe_nobody_stands(one: Machine) -> None:
    """The order is kept for when that is over."""
    one.handle(asked())
    one.handle(SwitchedOff(20.0))
    assert parking.by_node(one.state) == {}
    assert parking.refusal(one.state, asked()) is Reason.SWITCHED_OFF
    one.handle(SwitchedOn(21.0))
    assert parking.by_node(one.state) == {"n1": (5,)}
    one.handle(ModeChanged(22.0, Mode.OBSERVE))
    assert parking.by_node(one.state) == {}
    assert parking.refusal(one.state, asked()) is Reason.WOULD_ADVISE


def test_it_is_in_what_the_journal_begins_with(one: Machine) -> None:
    """So that a restart, however late, forgets nobody."""
    one.handle(asked(until_s=500.0))
    again = restored(one.state.remembered(50.0))
    assert again.parked == one.state.parked
    assert parking.by_node(again) == {"n1": (5,)}


def test_who_is_parked_is_moved_by_operators_only(one: Machine) -> None:
    """We leave it where it is."""
    one.handle(asked())
    assert one.where_to("5", (), 1000.0, forced=False) is Reason.PARKED
    one.handle(MoveAsked(at_s=1000.0, key="5", why="n1 burns", forced=True))
    assert "5" in one.state.moves
    assert parking.refusal(one.state, asked()) is Reason.MOVING
