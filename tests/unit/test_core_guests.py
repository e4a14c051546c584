# SPDX-License-Identifier: Apache-2.0
"""What the machine says of guests: where they are required to start, and when to wait."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import RULES, full, holds, looked, machine, node, request, sight, submitted, token
from slipstream.core.classes import Mode, Per, Role, Strength
from slipstream.core.commands import Admit, Advise, Command, Withdraw
from slipstream.core.events import ClusterSeen, NodeReported, TimerFired
from slipstream.core.planning import MOST_PLANNED, MOST_SENT_ELSEWHERE
from slipstream.core.reasons import Reason
from slipstream.core.sights import Gpus, GpuUse, JobSight, NodeSight, Standing

if TYPE_CHECKING:
    from slipstream.core.machine import Machine

pytestmark = pytest.mark.unit

GUEST = request(1, role=Role.GUEST)
SHARES = request(8)
ALONE = replace(request(9), shares=False)


def cluster(*nodes: NodeSight, jobs: tuple[JobSight, ...] = ()) -> Machine:
    """A machine that has seen these."""
    one = machine()
    one.handle(ClusterSeen(at_s=2.0, nodes=nodes, jobs=jobs, complete=True))
    return one


def said(commands: list[Command]) -> list[tuple[str, tuple[str, ...], Strength]]:
    """Key, nodes and strength of the advice among the commands."""
    return [
        (one.advice.key, one.advice.nodes, one.advice.strength)
        for one in commands
        if isinstance(one, Advise)
    ]


def nowhere(number: int = 1) -> list[tuple[str, tuple[str, ...], Strength]]:
    """One guest that may start nowhere for now."""
    return [(token(number), (), Strength.REQUIRE)]


def at(*names: str) -> list[tuple[str, tuple[str, ...], Strength]]:
    """One guest, required to start there."""
    return [(token(1), names, Strength.REQUIRE)]


N1_OWNED = node("n1", used=4)
N1_PLAIN = holds("5", None, 0, 1, 2, 3)
N2_PLAIN = holds("6", None, 0, 1, 2, 3, name="n2")


@pytest.mark.parametrize(
    ("nodes", "jobs", "advice", "reason"),
    [
        pytest.param([node("n1")], [], at("n1"), Reason.ADVISED, id="a free node"),
        pytest.param(
            [N1_OWNED, node("n2", used=3)],
            [N1_PLAIN, holds("6", None, 0, 1, 2, name="n2")],
            at("n2"),
            Reason.ADVISED,
            id="one GPU is free in the cluster",
        ),
        pytest.param(
            [N1_OWNED, node("n2", used=4)],
            [N1_PLAIN, holds("6", SHARES, 0, 1, 2, 3, name="n2")],
            at("n2"),
            Reason.ADVISED,
            id="an owner that shares",
        ),
        pytest.param(
            [N1_OWNED, node("n2", used=4)],
            [N1_PLAIN, N2_PLAIN],
            nowhere(),
            Reason.NO_GUEST_SEAT,
            id="all owners are plain",
        ),
        pytest.param(
            [N1_OWNED],
            [holds("5", ALONE, 0, 1, 2, 3)],
            nowhere(),
            Reason.NO_GUEST_SEAT,
            id="the only owner does not share",
        ),
        pytest.param(
            [N1_OWNED, node("n2", slots_used=12)],
            [N1_PLAIN],
            nowhere(),
            Reason.NO_GUEST_SEAT,
            id="the open node is full of guests",
        ),
        pytest.param(
            [node("n1", used=3, slots_used=3)],
            [holds("5", None, 0, 1, 2)],
            nowhere(),
            Reason.NO_GUEST_SEAT,
            id="the open GPU is full of guests",
        ),
        pytest.param(
            [full(node("n1"))],
            [holds("5", SHARES, 0, 1, 2, 3)],
            nowhere(),
            Reason.NO_FREE_SLOT,
            id="no slot at all",
        ),
        pytest.param(
            [replace(node("n1"), cpus_used=32), replace(N1_OWNED, name="n2")],
            [N2_PLAIN],
            at("n1"),
            Reason.NO_FREE_CPU_OR_MEMORY,
            id="no CPU beside the seat: Slurm may know better, but there",
        ),
        pytest.param([node("n1", gpus=0)], [], [], Reason.NO_NODE_FITS, id="never: left to Slurm"),
    ],
)
def test_a_guest_is_required_to_sit_where_it_may(
    nodes: list[NodeSight],
    jobs: list[JobSight],
    advice: list[tuple[str, tuple[str, ...], Strength]],
    reason: Reason,
) -> None:
    """A cluster, its owners, one guest: the advice and the reason."""
    one = cluster(*nodes, jobs=tuple(jobs))
    assert said(one.handle(looked(11.0, sight("7", GUEST)))) == advice
    assert one.state.jobs["7"].reason is reason


def test_an_announced_guest_is_kept_waiting_before_it_is_in_the_queue() -> None:
    """And its user is told; in observe mode Slurm decides, and that is told, too."""
    one = cluster(N1_OWNED, jobs=(N1_PLAIN,))
    admit, *advice = one.handle(submitted(GUEST))
    assert isinstance(admit, Admit)
    assert admit.message == (
        "opportunistic guest, it will wait: "
        "no GPU that is free or whose owner takes guests has a seat for it."
    )
    assert said(advice) == nowhere()
    watching = machine(N1_OWNED, rules=replace(RULES, mode=Mode.OBSERVE))
    (admit,) = watching.handle(submitted(GUEST))
    assert isinstance(admit, Admit)
    assert admit.message.startswith("opportunistic guest, Slurm decides where it starts: no GPU")


def test_owners_and_strange_shapes_are_never_required() -> None:
    """An owner is advised as ever; a guest per socket is left to Slurm."""
    one = cluster(N1_OWNED, node("n2"), jobs=(N1_PLAIN,))
    assert said(one.handle(looked(11.0, sight("7", request(2))))) == [
        (token(2), ("n2",), Strength.PREFER)
    ]
    strange = replace(request(3, role=Role.GUEST), gpus=Gpus(Per.SOCKET, 1))
    assert said(one.handle(looked(12.0, sight("8", strange)))) == []
    assert said(cluster(full(node("n1"))).handle(looked(1.0, sight("7", request(2))))) == []


def test_a_seat_that_is_freed_is_advised_at_once() -> None:
    """The plain owner ends: the same look brings the advice."""
    one = cluster(N1_OWNED, jobs=(N1_PLAIN,))
    assert said(one.handle(looked(11.0, sight("7", GUEST)))) == nowhere()
    ended = replace(N1_PLAIN, standing=Standing.ENDED)
    freed = ClusterSeen(at_s=12.0, jobs=(ended,), nodes=(node("n1"),))
    assert said(one.handle(freed)) == at("n1")


def test_a_coordinator_that_opens_and_shuts_a_gpu_is_heard() -> None:
    """A report that differs only in that is a reason to plan."""
    owned = node("n1", used=1, gpus=1)
    one = cluster(owned, jobs=(holds("5", SHARES, 0),))
    assert said(one.handle(looked(11.0, sight("7", GUEST)))) == at("n1")
    for at_s, takes, advice in ((12.0, False, nowhere()), (13.0, True, at("n1"))):
        gpus = (GpuUse(index=0, takes_guests=takes, owner_job="5"),)
        one.handle(NodeReported(at_s=at_s, node="n1", gpus=gpus))
        assert one.wakes_at_s() == 0.0
        assert said(one.handle(TimerFired(at_s))) == advice


def test_nowhere_is_renewed_like_any_advice() -> None:
    """Or the guest would start beside the wrong owner while we live."""
    one = cluster(N1_OWNED, jobs=(N1_PLAIN,))
    one.handle(looked(11.0, sight("7", GUEST)))
    assert one.wakes_at_s() == 41.0
    assert one.handle(TimerFired(40.0)) == []
    assert said(one.handle(TimerFired(41.0))) == nowhere()


def test_a_waiting_array_is_told_once() -> None:
    """One record for all its tasks; a task with a seat has one of its own, until it has none."""
    one = cluster(node("n1", used=3), jobs=(holds("5", None, 0, 1, 2),))
    tasks = [sight(f"7_{task}", GUEST) for task in range(5)]
    commands = one.handle(looked(11.0, *tasks))
    assert sorted(said(commands)) == sorted(
        [(f"{token(1)}_{task}", ("n1",), Strength.REQUIRE) for task in range(3)] + nowhere()
    )
    assert one.handle(TimerFired(12.0)) == []
    shut = ClusterSeen(at_s=13.0, jobs=(N1_PLAIN,), nodes=(N1_OWNED,))
    assert one.handle(shut) == [Withdraw(token(1), task) for task in range(3)]


def test_a_guest_slurm_does_not_start_is_sent_elsewhere() -> None:
    """Slurm may keep a node for a larger job, which we cannot see: the guest tries another one."""
    one = cluster(node("n1"), node("n2"))
    assert said(one.handle(looked(11.0, sight("7", GUEST)))) == at("n1")
    assert said(one.handle(TimerFired(41.0))) == at("n2")
    assert said(one.handle(TimerFired(71.0))) == at("n1")
    alone = cluster(node("n1"))
    alone.handle(looked(11.0, sight("7", GUEST)))
    assert said(alone.handle(TimerFired(41.0))) == at("n1")
    owner = cluster(node("n1"), node("n2"))
    owner.handle(looked(11.0, sight("7", request(1))))
    assert said(owner.handle(TimerFired(41.0))) == [(token(1), ("n1",), Strength.PREFER)]


def test_only_so_many_guests_are_sent_elsewhere_at_once() -> None:
    """A round must stay quick: the first in line go, the others keep their nodes for now."""
    one = cluster(*(replace(node(name, gpus=20), cpus=100) for name in ("n1", "n2")))
    count = MOST_SENT_ELSEWHERE + 4
    jobs = [sight(str(number), request(number, role=Role.GUEST)) for number in range(1, count + 1)]
    before = {key: nodes for key, nodes, _ in said(one.handle(looked(11.0, *jobs)))}
    after = {key: nodes for key, nodes, _ in said(one.handle(TimerFired(41.0)))}
    moved = sorted(key for key in before if before[key] != after[key])
    assert moved == [token(number) for number in range(1, MOST_SENT_ELSEWHERE + 1)]


def test_guests_behind_many_others_do_not_slip_past_them() -> None:
    """A round places so many; the rest waits for the next one."""
    nodes = [node(f"n{number:03}", gpus=100) for number in range(3)]
    one = cluster(*(replace(node, cpus=1000, cpus_used=0) for node in nodes))
    jobs = [
        sight(str(number), request(number, role=Role.GUEST))
        for number in range(10, 12 + MOST_PLANNED)
    ]
    commands = one.handle(looked(11.0, *jobs))
    last = [one for one in said(commands) if one[0] == token(11 + MOST_PLANNED)]
    assert last == [(token(11 + MOST_PLANNED), (), Strength.REQUIRE)]
    assert one.state.jobs[str(11 + MOST_PLANNED)].reason is Reason.BEHIND_OTHERS
