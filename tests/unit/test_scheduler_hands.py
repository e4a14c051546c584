# SPDX-License-Identifier: Apache-2.0
"""What a move does to Slurm and asks of nodes: looked at first, the same twice as once."""

from __future__ import annotations

import asyncio
import json
import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from core_world import token
from fakes.slurm_cluster import FakeCluster, FakeNode
from fakes.slurm_commands import FakeCommands
from slipstream.core.advice import Advice
from slipstream.core.classes import Strength
from slipstream.core.commands import Extend, GiveBack, Requeue, Resize, Save, Start, Upgrade
from slipstream.core.moves import PATIENCE_S, Stage
from slipstream.core.reasons import Reason
from slipstream.scheduler.hands import Hands
from slipstream.scheduler.orders import Orders
from slipstream.scheduler.sink import SinkError
from slipstream.slurm_plugin import CliSlurm
from slipstream.slurm_plugin.gres import Gres
from slipstream.slurm_plugin.requests import Submission

if TYPE_CHECKING:
    from collections.abc import Callable

    from fakes.slurm_job import FakeJob
    from slipstream.slurm_plugin.identity import JobRef

pytestmark = pytest.mark.unit

START = Start(token(1), "1", 1, ("n2",))


@pytest.fixture
def cluster() -> FakeCluster:
    """A job of ours on the first of two nodes."""
    one = FakeCluster([FakeNode(name, 8, {"gpu": 1}) for name in ("n1", "n2")], {})
    CliSlurm(FakeCommands(one)).submit(Submission(script="#!/bin/sh\n"))
    job_of(one).admin_comment = f"[slipstream v=1 token={token(1)}]"
    one.advance(1.0)
    return one


def job_of(cluster: FakeCluster) -> FakeJob:
    """The only one."""
    (job,) = cluster.jobs.values()
    return job


def hands(cluster: FakeCluster) -> Hands:
    """With nobody to wait for."""
    return Hands(CliSlurm(FakeCommands(cluster)), sleep=lambda _s: None)


def requeue_of(cluster: FakeCluster) -> Requeue:
    """For the run that is there now."""
    return Requeue(token(1), "1", 1, int(job_of(cluster).submitted_at_s))


def test_a_requeue_is_done_once_however_often_it_is_asked_for(cluster: FakeCluster) -> None:
    """While it completes, while it waits, and when it runs again: the first was enough."""
    command, one = requeue_of(cluster), hands(cluster)
    one.requeue(command)
    one.requeue(command)
    assert job_of(cluster).completing
    cluster.advance(1.0)
    one.requeue(command)
    one.start(START)
    cluster.advance(1.0)
    one.requeue(command)
    one.start(START)
    job = job_of(cluster)
    assert (job.state, job.nodes, job.restarts) == ("RUNNING", ("n2",), 1)


def test_there_are_five_requeues_in_a_second_whoever_wants_them(cluster: FakeCluster) -> None:
    """The others wait; one that was not needed costs no time."""
    at_s, begun_at_s = [100.0], list[float]()
    commands = FakeCommands(cluster)

    class Noted(CliSlurm):
        def requeue(self, job: JobRef) -> None:
            begun_at_s.append(at_s[0])
            super().requeue(job)

    def sleep(seconds: float) -> None:
        at_s[0] += seconds

    one = Hands(Noted(commands), clock=lambda: at_s[0], sleep=sleep)
    for _ in range(11):
        one.requeue(requeue_of(cluster))
        one.requeue(requeue_of(cluster))
        cluster.advance(1.0)
        one.start(START)
        cluster.advance(1.0)
    assert len(begun_at_s) == 11
    assert all(
        later - first >= 1.0 for first, later in zip(begun_at_s, begun_at_s[5:], strict=False)
    )
    assert begun_at_s[-1] == pytest.approx(102.0)


def test_slurm_is_looked_at_closely_from_the_requeue_to_the_start(cluster: FakeCluster) -> None:
    """And not beyond: the job imports its libraries then."""
    asked: list[float] = []
    one = Hands(CliSlurm(FakeCommands(cluster)), sleep=lambda _s: None, hurry=asked.append)
    one.requeue(requeue_of(cluster))
    assert asked
    assert asked[-1] > 0
    cluster.advance(1.0)
    one.start(START)
    assert asked[-1] == 0


def _cancel(cluster: FakeCluster) -> None:
    cluster.cancel(job_of(cluster))
    cluster.advance(1.0)


def _suspend(cluster: FakeCluster) -> None:
    cluster.suspend(job_of(cluster))


def _away(cluster: FakeCluster) -> None:
    cluster.up = False


@pytest.mark.parametrize(
    ("before", "text"),
    [(_cancel, "CANCELLED"), (_suspend, "SUSPENDED"), (_away, "Slurm could not be asked")],
)
def test_what_must_not_be_requeued_is_not(
    cluster: FakeCluster, before: Callable[[FakeCluster], None], text: str
) -> None:
    """An ended one would live again, a suspended one would be held: neither is touched."""
    command = requeue_of(cluster)
    before(cluster)
    with pytest.raises(SinkError, match=text):
        hands(cluster).requeue(command)
    assert job_of(cluster).restarts == 0


def test_a_start_while_it_completes_is_refused(cluster: FakeCluster) -> None:
    """Slurm would forget it."""
    one = hands(cluster)
    one.requeue(requeue_of(cluster))
    with pytest.raises(SinkError, match="may complete still"):
        one.start(START)


MARKER = f"[slipstream v=1 token={token(1)} class=shared role=owner gpus=node:1 elastic=1-2]"


@pytest.fixture
def elastic() -> FakeCluster:
    """An elastic job on the only node, which has two GPUs."""
    one = FakeCluster([FakeNode("n1", 8, {"gpu": 2})], {})
    CliSlurm(FakeCommands(one)).submit(
        Submission(script="#!/bin/sh\n", gres_per_node=(Gres("gpu", count=1),))
    )
    job_of(one).admin_comment = MARKER
    one.advance(1.0)
    return one


def test_on_the_node_it_left_a_job_starts_with_another_size_when_slurm_lets_it(
    elastic: FakeCluster,
) -> None:
    """Sooner it would be lost; told twice is the same as once; its marker knows both sizes."""
    one = hands(elastic)
    one.requeue(requeue_of(elastic))
    elastic.advance(1.0)
    start = Start(token(1), "1", 1, ("n1",), size=2, at_once=False)
    one.start(start)
    one.start(start)
    elastic.advance(1.0)
    assert job_of(elastic).state == "PENDING"
    assert job_of(elastic).admin_comment == MARKER[:-1] + " bound=1 size=2]"
    elastic.advance(5.0)
    assert job_of(elastic).state == "RUNNING"
    assert job_of(elastic).held_gres == {"n1": {"gpu": [0, 1]}}
    one.start(start)
    with pytest.raises(SinkError, match="does not wait: it is RUNNING"):
        one.resize(Resize(token(1), "1", 1))


def test_a_job_that_waits_goes_back_to_what_its_user_asked_for(elastic: FakeCluster) -> None:
    """Nothing else of it is changed, and its marker is as it was."""
    one = hands(elastic)
    job_of(elastic).admin_comment = MARKER[:-1] + " size=2]"
    job_of(elastic).gres_per_node = job_of(elastic).gres_given = {"gpu": 2}
    one.requeue(requeue_of(elastic))
    elastic.advance(1.0)
    for _ in range(2):
        one.resize(Resize(token(1), "1", 1))
    assert job_of(elastic).admin_comment == MARKER
    elastic.advance(6.0)
    assert job_of(elastic).held_gres == {"n1": {"gpu": [0]}}


def test_a_job_that_asks_otherwise_is_not_resized(cluster: FakeCluster) -> None:
    """Not per node: what Slurm would make of it is not known."""
    one = hands(cluster)
    one.requeue(requeue_of(cluster))
    cluster.advance(1.0)
    with pytest.raises(SinkError, match="does not ask for GPUs of each node"):
        one.resize(Resize(token(1), "1", 2))


def extend_of(cluster: FakeCluster, minutes: int) -> Extend:
    """For the run that is there now."""
    return Extend(token(1), "1", int(job_of(cluster).submitted_at_s), 60 * minutes)


def test_a_time_limit_grows_once_however_often_it_is_asked_for(cluster: FakeCluster) -> None:
    """To what was asked, never back, never beyond what its partition allows."""
    one = hands(cluster)
    job_of(cluster).time_limit_min = 60
    one.extend(extend_of(cluster, 62))
    one.extend(extend_of(cluster, 62))
    one.extend(extend_of(cluster, 61))
    assert job_of(cluster).time_limit_min == 62
    cluster.longest = "01:10:00"
    one.extend(extend_of(cluster, 90))
    assert job_of(cluster).time_limit_min == 70
    with pytest.raises(SinkError, match="partition batch allows no more than 4200 s"):
        one.extend(extend_of(cluster, 91))


def test_a_run_that_is_over_is_given_no_time(cluster: FakeCluster) -> None:
    """A requeued job's clock begins anew, and what it waited before counts for nothing."""
    job_of(cluster).time_limit_min = 60
    command = extend_of(cluster, 62)
    hands(cluster).requeue(requeue_of(cluster))
    with pytest.raises(SinkError, match="is over"):
        hands(cluster).extend(command)
    assert job_of(cluster).time_limit_min == 60


UPGRADE = Upgrade(token=token(1), number="1", node="n2", gpus=1, partition="batch", priority=77)


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """We are the user that all jobs of the fake are of."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.mark.usefixtures("ours")
def test_a_placeholder_is_submitted_once_however_often_it_is_asked_for(
    cluster: FakeCluster,
) -> None:
    """On the guest's node, in its place in the queue; it ends once, and only a placeholder."""
    one = hands(cluster)
    one.upgrade(UPGRADE)
    one.upgrade(UPGRADE)
    cluster.advance(1.0)
    one.upgrade(UPGRADE)
    _, held = cluster.jobs.values()
    assert (held.name, held.nodes, held.rank) == ("slipstream-owner-1", ("n2",), 77)
    assert (held.held_gres, held.time_limit_min) == ({"n2": {"gpu": [0]}}, None)
    with pytest.raises(SinkError, match="job 1 is no placeholder"):
        one.give_back(GiveBack("", "1"))
    one.give_back(GiveBack("", "2"))
    one.give_back(GiveBack("", "2"))
    assert held.state == "CANCELLED"
    cluster.advance(1.0)
    one.upgrade(replace(UPGRADE, ends_at_s=int(time.time()) + 3000))
    limit_min = list(cluster.jobs.values())[-1].time_limit_min
    assert limit_min is not None
    assert limit_min >= 50, "it outlives its guest"
    cluster.longest = "00:40:00"
    one.upgrade(replace(UPGRADE, number="9", ends_at_s=int(time.time()) + 3000))
    assert list(cluster.jobs.values())[-1].time_limit_min == 40, "no longer than is allowed"


class Lines:
    """The writing end of a coordinator's connection."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    @property
    def numbers(self) -> list[int]:
        """Of the orders."""
        return [order["number"] for order in self.told]

    def write(self, raw: bytes) -> None:
        """One order."""
        self.told.append(json.loads(raw))


class Clock:
    """Ours to turn."""

    now_s = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now_s


def listen(orders: Orders) -> Lines:
    """A coordinator comes, and hears what it is told."""
    lines = Lines()

    async def hear() -> None:
        orders.listens("n1", asyncio.get_running_loop(), lines)  # type: ignore[arg-type]
        await asyncio.sleep(0)

    asyncio.run(hear())
    return lines


def test_a_new_scheduler_waits_for_coordinators_an_old_one_does_not() -> None:
    """Within its first seconds an order is kept for a node that has not come yet."""
    clock = Clock()
    orders = Orders(clock)
    orders.save(Save(token(1), "5", "n1", 3))
    assert listen(orders).numbers == [3]
    later = Orders(clock)
    clock.now_s += 60.0
    with pytest.raises(SinkError, match="n1 does not listen"):
        later.save(Save(token(1), "5", "n1", 4))
    assert listen(later).numbers == []


def test_nodes_are_told_which_task_belongs_where() -> None:
    """All nodes of the plan that listen; the others when they do."""
    orders, lines, late = Orders(), Lines(), Lines()
    advice = Advice(
        token=token(1),
        nodes=("n1", "n2"),
        tasks_per_node=2,
        strength=Strength.PREFER,
        until_s=70.0,
        reason=Reason.ADVISED,
        hosts=("n2", "n1", "n2"),
    )

    async def hear() -> None:
        orders.listens("n1", asyncio.get_running_loop(), lines)  # type: ignore[arg-type]
        orders.tell_hosts(advice)
        for number in range(2, 100):
            orders.tell_hosts(replace(advice, token=token(number), nodes=("n3",)))
        orders.tell_hosts(advice)
        orders.listens("n2", asyncio.get_running_loop(), late)  # type: ignore[arg-type]
        await asyncio.sleep(0)

    asyncio.run(hear())
    told = [(one["order"], one["token"], one["hosts"]) for one in (*lines.told, *late.told)]
    assert told == [("hosts", token(1), ["n2", "n1", "n2"])] * 3


def test_nodes_are_told_whom_operators_have_parked() -> None:
    """What is new at once, all of it now and then, and whoever comes later when it comes."""
    clock, lines = Clock(), Lines()
    orders = Orders(clock)
    assert listen(orders).told == [], "nothing is known yet"
    orders.park({})
    assert [line["jobs"] for line in listen(orders).told] == [[]]

    async def hear() -> None:
        orders.listens("n1", asyncio.get_running_loop(), lines)  # type: ignore[arg-type]
        for wanted in ({"n1": (5,), "n2": (6,)}, {"n1": (5,)}, {"n1": (5,)}):
            orders.park(wanted)
        clock.now_s += 30.0
        orders.park({"n1": (5,)})
        orders.park({"n2": (6,)})
        clock.now_s += 30.0
        orders.park({})
        await asyncio.sleep(0)

    asyncio.run(hear())
    assert {line["order"] for line in lines.told} == {"parked"}
    assert [line["jobs"] for line in lines.told] == [[], [5], [5], []]
    later = Orders(clock)
    later.park({"n1": (5, 8)})
    assert [line["jobs"] for line in listen(later).told] == [[5, 8]]


def test_a_coordinator_that_comes_back_is_asked_for_what_it_has_not_answered() -> None:
    """Answered, or too old: not again."""
    clock = Clock()
    orders = Orders(clock)
    orders.save(Save(token(1), "5", "n1", 3))
    orders.save(Save(token(2), "6", "n1", 8))
    orders.answered("5", 2)
    assert listen(orders).numbers == [3, 8], "the answer was to an earlier question"
    orders.answered("5", 3)
    assert listen(orders).numbers == [8]
    clock.now_s += PATIENCE_S[Stage.SAVING]
    assert listen(orders).numbers == []
