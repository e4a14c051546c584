# SPDX-License-Identifier: Apache-2.0
"""The brain in the live machine: told what is seen, asked who sits where, never left to believe."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import RULES, holds, looked, node, request, sight, token
from slipstream.core.classes import JobClass, Mode, Role, Strength
from slipstream.core.commands import Advise, Command, MakeGuest, Save, Start, Withdraw
from slipstream.core.estimate import Basis, Estimate
from slipstream.core.events import ClusterSeen, JobSaved, MoveAsked, NodeReported, TimerFired
from slipstream.core.machine import Machine
from slipstream.core.placement import need_of
from slipstream.core.planning import Refusals
from slipstream.core.reasons import Reason
from slipstream.core.sights import GpuUse, JobSight, NodeSight, Request, Training

if TYPE_CHECKING:
    from slipstream.core.rules import Rules

pytestmark = pytest.mark.unit

HALVES = replace(RULES, shares=(("lab", 1.0), ("shop", 1.0)))
ENFORCE = replace(RULES, mode=Mode.ENFORCE)


def cluster(rules: Rules, *nodes: NodeSight, jobs: tuple[JobSight, ...] = ()) -> Machine:
    """A machine that has seen these."""
    one = Machine(rules)
    one.handle(ClusterSeen(at_s=2.0, nodes=nodes, jobs=jobs, complete=True))
    return one


def guaranteed(number: int, account: str, gpus: int = 1) -> Request:
    """A job that its account's quota is charged for."""
    asked = replace(request(number, gpus=gpus), job_class=JobClass.GUARANTEED)
    return replace(asked, account=account)


def said(commands: list[Command]) -> dict[str, tuple[tuple[str, ...], Strength]]:
    """What is advised, by token."""
    return {
        one.token: (one.advice.nodes, one.advice.strength)
        for one in commands
        if isinstance(one, Advise)
    }


def of(account: str, seen: JobSight) -> JobSight:
    """The same job, of an account."""
    return replace(seen, account=account)


# --- quotas -------------------------------------------------------------------------------------


def test_a_guaranteed_job_over_its_quota_waits_nowhere_until_there_is_room() -> None:
    """Half of four GPUs are the lab's: a plain job has them; when it ends the next one starts."""
    plain = of("lab", holds("5", None, 0, 1))
    one = cluster(HALVES, node("n1", used=2), jobs=(plain,))
    commands = one.handle(looked(3.0, sight("7", guaranteed(1, "lab"))))
    assert said(commands) == {token(1): ((), Strength.REQUIRE)}
    assert one.state.jobs["7"].reason is Reason.OVER_QUOTA
    freed = one.handle(looked(4.0, gone=("5",), nodes=(node("n1"),)))
    assert said(freed) == {token(1): (("n1",), Strength.PREFER)}


def test_the_other_account_is_not_kept_waiting() -> None:
    """Nor is a shared job of the same one: only guaranteed jobs are charged."""
    plain = of("lab", holds("5", None, 0, 1))
    one = cluster(HALVES, node("n1", used=2), jobs=(plain,))
    shared = replace(request(2), account="lab")
    commands = one.handle(
        looked(3.0, sight("7", guaranteed(1, "shop")), sight("8", shared), sight("9", None))
    )
    assert said(commands) == {
        token(1): (("n1",), Strength.PREFER),
        token(2): (("n1",), Strength.PREFER),
    }


def test_what_is_promised_counts_against_a_quota() -> None:
    """Three at once, two GPUs of quota: the last one by priority waits."""
    one = cluster(HALVES, node("n1"))
    waiting = [sight(str(7 + at), guaranteed(1 + at, "lab"), priority=9 - at) for at in range(3)]
    commands = one.handle(looked(3.0, *waiting))
    assert said(commands)[token(3)] == ((), Strength.REQUIRE)
    assert [one.state.jobs[ref].reason for ref in ("7", "8", "9")] == [
        Reason.ADVISED,
        Reason.ADVISED,
        Reason.OVER_QUOTA,
    ]


def test_without_shares_nobody_has_a_quota() -> None:
    """The default of a new site."""
    one = cluster(RULES, node("n1", used=3), jobs=(of("lab", holds("5", None, 0, 1, 2)),))
    assert said(one.handle(looked(3.0, sight("7", guaranteed(1, "lab")))))


def reason_of(one: Machine) -> Reason:
    """Why job 7 waits."""
    return one.state.jobs["7"].reason


# --- guests -------------------------------------------------------------------------------------


def report(use_pct: float, *, used_mib: int = 0, at_s: float = 2.5, **more: object) -> NodeReported:
    """One GPU of 16 GB, as its node measured it."""
    gpu = GpuUse(index=0, use_pct=use_pct, memory_used_mib=used_mib, memory_mib=16_000, **more)  # type: ignore[arg-type]
    return NodeReported(at_s=at_s, node="n1", gpus=(gpu,))


def known(memory_mib: int, use_pct: float = 10.0) -> Request:
    """A guest whose like has run before."""
    estimate = Estimate(basis=Basis.FAMILY, runs=3, gpu_memory_mib=memory_mib, gpu_use_pct=use_pct)
    return replace(request(1, role=Role.GUEST), estimate=estimate)


@pytest.mark.parametrize(
    ("told", "asked", "nodes"),
    [
        pytest.param(report(79.0), known(100), ("n1",), id="a quiet owner"),
        pytest.param(report(80.0), known(100), (), id="a busy one"),
        pytest.param(report(20.0, used_mib=12_000), known(3_000), ("n1",), id="it fits beside it"),
        pytest.param(report(20.0, used_mib=14_000), known(3_000), (), id="it does not"),
        pytest.param(report(70.0), known(100, 90.0), (), id="together they use too much"),
    ],
)
def test_a_guest_joins_an_owner_that_leaves_room(
    told: NodeReported, asked: Request, nodes: tuple[str, ...]
) -> None:
    """By measured use and memory, and by what the guest is predicted to need."""
    one = cluster(RULES, node("n1", gpus=1, used=1), jobs=(holds("5", request(8), 0),))
    one.handle(told)
    assert said(one.handle(looked(3.0, sight("7", asked)))) == {token(1): (nodes, Strength.REQUIRE)}


def test_who_wants_more_of_the_same_is_refused_without_a_look() -> None:
    """And who wants less is looked at."""
    refused, need = Refusals(), need_of(known(2_000, 50.0))
    assert need
    refused.add(need, Reason.NO_GUEST_SEAT)
    assert refused.of(replace(need, gpu_memory_mib=3_000)) is Reason.NO_GUEST_SEAT
    assert refused.of(replace(need, gpu_memory_mib=3_000, gpu_use_pct=40.0)) is None
    assert refused.of(replace(need, seats=2)) is None
    refused.add(need, Reason.NO_FREE_CPU_OR_MEMORY)
    assert refused.of(replace(need, gpu_memory_mib=1)) is Reason.NO_FREE_CPU_OR_MEMORY


def test_a_site_may_let_guests_join_anybody() -> None:
    """The setting guest_below_pct."""
    rules = replace(RULES, guest_below_pct=101.0)
    one = cluster(rules, node("n1", gpus=1, used=1), jobs=(holds("5", request(8), 0),))
    one.handle(report(100.0))
    guest = request(1, role=Role.GUEST)
    assert said(one.handle(looked(3.0, sight("7", guest)))) == {
        token(1): (("n1",), Strength.REQUIRE)
    }


def test_shared_guests_take_turns_on_a_busy_gpu() -> None:
    """Whoever is parked uses nothing: for them only seats count, where no owner is disturbed."""
    guest = replace(request(1, role=Role.GUEST), job_class=JobClass.SHARED)
    free = cluster(RULES, node("n1", gpus=1, slots_used=1))
    free.handle(report(100.0, guest_jobs=("4",)))
    there = {token(1): (("n1",), Strength.REQUIRE)}
    assert said(free.handle(looked(3.0, sight("7", guest)))) == there
    owned = cluster(RULES, node("n1", gpus=1, used=1), jobs=(holds("5", request(8), 0),))
    owned.handle(report(100.0))
    assert said(owned.handle(looked(3.0, sight("7", guest)))) != there


def test_promises_do_not_outlive_their_round() -> None:
    """A promised seat counts for those who come after it, and is not counted twice."""
    one = cluster(RULES, node("n1", gpus=1))
    guests = [request(number, role=Role.GUEST) for number in (1, 2, 3, 4)]
    commands = one.handle(looked(3.0, *(sight(str(6 + at), it) for at, it in enumerate(guests, 1))))
    assert [nodes for nodes, _ in said(commands).values()] == [("n1",)] * 3 + [()]
    assert one.handle(TimerFired(4.0)) == []
    assert one.handle(looked(5.0, gone=("7",)))[0] == Withdraw(token(1))


def test_a_node_with_other_gpus_than_before_is_learnt_anew() -> None:
    """Somebody has put in two more; a node that is gone is used no more."""
    one = cluster(RULES, node("n1", gpus=2, used=2))
    one.handle(looked(3.0, sight("7", request(1))))
    assert reason_of(one) is Reason.NO_FREE_GPU
    more = one.handle(looked(4.0, nodes=(node("n1", gpus=4, used=2),)))
    assert said(more) == {token(1): (("n1",), Strength.PREFER)}
    gone = one.handle(ClusterSeen(at_s=5.0, nodes_gone=("n1",)))
    assert gone == [Withdraw(token(1))]
    assert reason_of(one) is Reason.NO_NODE_FITS
    back = one.handle(ClusterSeen(at_s=6.0, nodes=(node("n1", gpus=4),)))
    assert said(back) == {token(1): (("n1",), Strength.PREFER)}


# --- auto: a guest after a while ------------------------------------------------------------------


def waits_long(one: Machine, asked: Request, at_s: float) -> list[Command]:
    """It came at 3.0 and waits for a GPU; then time passes."""
    one.handle(looked(3.0, sight("7", asked)))
    return [it for it in one.handle(TimerFired(at_s)) if isinstance(it, MakeGuest)]


AUTO = replace(request(1), job_class=JobClass.AUTO, may_be_guest=True)


@pytest.mark.parametrize(
    ("rules", "asked", "at_s", "made"),
    [
        pytest.param(ENFORCE, AUTO, 303.0, True, id="it is a guest after five minutes"),
        pytest.param(ENFORCE, AUTO, 302.0, False, id="not before"),
        pytest.param(RULES, AUTO, 303.0, False, id="not in mode advise"),
        pytest.param(ENFORCE, replace(AUTO, may_be_guest=False), 303.0, False, id="it cannot be"),
        pytest.param(ENFORCE, request(1), 303.0, False, id="shared: it asked for GPUs"),
    ],
)
def test_an_auto_job_that_waits_long_is_a_guest(
    rules: Rules, asked: Request, at_s: float, *, made: bool
) -> None:
    """The GPU is owned by one that shares: there is a seat, and no GPU."""
    one = cluster(rules, node("n1", gpus=1, used=1), jobs=(holds("5", request(8), 0),))
    found = waits_long(one, asked, at_s)
    assert found == ([MakeGuest(token(1), "7", 1)] if made else [])
    if not made and asked is AUTO and rules is ENFORCE:
        assert one.wakes_at_s() == 303.0


def test_without_a_seat_it_waits_on_for_gpus() -> None:
    """The owner is plain; when it shares at last, or leaves, that is seen."""
    one = cluster(ENFORCE, node("n1", gpus=1, used=1), jobs=(holds("5", None, 0),))
    assert waits_long(one, AUTO, 400.0) == []
    assert reason_of(one) is Reason.NO_FREE_GPU


def test_a_swap_is_told_once_and_believed_when_it_is_seen() -> None:
    """Until Slurm shows the new marker nothing more is said; then it is a guest like any other."""
    one = cluster(ENFORCE, node("n1", gpus=1, used=1), jobs=(holds("5", request(8), 0),))
    assert len(waits_long(one, AUTO, 303.0)) == 1
    again = [it for it in one.handle(TimerFired(310.0)) if isinstance(it, MakeGuest)]
    assert again == []
    guest = replace(AUTO, role=Role.GUEST)
    assert said(one.handle(looked(311.0, sight("7", guest)))) == {
        token(1): (("n1",), Strength.REQUIRE)
    }
    told = [line.text for line in one.state.jobs["7"].story]
    assert told.count("waited 300 s for GPUs: asks for guest seats") == 1


# --- moves --------------------------------------------------------------------------------------


def trained(asked: Request, *, restorable: bool = True) -> tuple[JobSight, NodeReported]:
    """A job that holds the GPU of n1, and what its node tells of it."""
    seen = replace(holds("5", asked, 0), number=5)
    told = Training(ref="5", phase="training", minibatch=9, restorable=restorable)
    return seen, NodeReported(at_s=2.5, node="n1", jobs=(told,))


def moved(commands: list[Command]) -> list[str]:
    """Jobs that are to be saved."""
    return [one.job_id for one in commands if isinstance(one, Save)]


DRAINED = replace(node("n1", gpus=1, used=1), takes_jobs=False, drained=True)


@pytest.mark.parametrize(
    ("rules", "asked", "restorable", "job"),
    [
        pytest.param(ENFORCE, request(1), True, ["5"], id="it leaves"),
        pytest.param(RULES, request(1), True, [], id="not in mode advise"),
        pytest.param(ENFORCE, request(1), False, [], id="it could not be restored"),
        pytest.param(ENFORCE, replace(request(1), moves=False), True, [], id="--no-slip-move"),
        pytest.param(
            ENFORCE, replace(request(1), partition="other"), True, [], id="no node for it"
        ),
    ],
)
def test_a_drained_node_is_left(
    rules: Rules, asked: Request, *, restorable: bool, job: list[str]
) -> None:
    """By those who can go on elsewhere, where everything is carried out."""
    seen, told = trained(asked, restorable=restorable)
    seen = replace(seen, partition=asked.partition)
    one = cluster(rules, node("n1", gpus=1, used=1), node("n2", gpus=1), jobs=(seen,))
    one.handle(told)
    assert moved(one.handle(TimerFired(2.6))) == []
    assert moved(one.handle(looked(3.0, nodes=(DRAINED,)))) == job
    if job:
        assert one.state.moves["5"].target == ("n2",)
        assert one.state.jobs["5"].story[-1].text == "moves to n2: its node is to be empty"


def test_nobody_is_taken_from_a_node_that_does_not_answer() -> None:
    """It takes no jobs, but nobody wants it empty: a requeue would hang on it."""
    seen, told = trained(request(1))
    one = cluster(ENFORCE, node("n1", gpus=1, used=1), node("n2", gpus=1), jobs=(seen,))
    one.handle(told)
    silent = replace(DRAINED, drained=False)
    assert moved(one.handle(looked(3.0, nodes=(silent,)))) == []


def test_a_pair_is_taken_apart_when_a_gpu_stays_free() -> None:
    """The guest goes to the free GPU once that is worth three times the move, and nobody waits."""
    guest = replace(request(2, role=Role.GUEST), estimate=Estimate(gpu_use_pct=70.0))
    owner = replace(request(1), estimate=Estimate(basis=Basis.FAMILY, gpu_use_pct=70.0))
    guest = replace(guest, estimate=Estimate(basis=Basis.FAMILY, gpu_use_pct=70.0))
    sits = replace(holds("6", guest), number=6, slots=1)
    jobs = (holds("5", owner, 0), sits)
    one = cluster(
        ENFORCE, node("n1", gpus=1, used=1, slots_used=1), node("n2", gpus=1, used=1), jobs=jobs
    )
    told = Training(ref="6", phase="training", minibatch=9, restorable=True)
    gpu = GpuUse(index=0, use_pct=70.0, guest_jobs=("6",), owner_job="5")
    one.handle(NodeReported(at_s=900.0, node="n1", gpus=(gpu,), jobs=(told,)))
    assert moved(one.handle(TimerFired(901.0))) == []
    freed = node("n2", gpus=1)
    busy = looked(902.0, sight("7", request(3)), nodes=(freed,))
    assert moved(one.handle(busy)) == []  # it is for the one who waits
    assert moved(one.handle(looked(903.0, gone=("7",), nodes=(replace(freed, cpus=33),)))) == ["6"]


@pytest.mark.parametrize(
    ("rules", "asked", "node2", "gpus"),
    [
        pytest.param(ENFORCE, JobClass.AUTO, node("n2", gpus=1), 1, id="auto: it owns the GPU"),
        pytest.param(
            ENFORCE, JobClass.OPPORTUNISTIC, node("n2", gpus=1), 0, id="a guest stays one"
        ),
        pytest.param(
            replace(HALVES, mode=Mode.ENFORCE), JobClass.AUTO, node("n2", gpus=1), 0, id="no quota"
        ),
        pytest.param(
            ENFORCE, JobClass.AUTO, node("n2", gpus=1, used=1), 0, id="the GPU has an owner"
        ),
    ],
)
def test_an_auto_guest_that_moves_owns_where_it_goes(
    rules: Rules, asked: JobClass, node2: NodeSight, gpus: int
) -> None:
    """If the GPU there and its quota are free; else it sits there as it sat here."""
    guest = replace(request(2, role=Role.GUEST), job_class=asked, account="lab")
    seen = of("lab", replace(holds("6", guest), number=6, slots=1))
    owner = of("lab", holds("5", replace(request(1), job_class=JobClass.GUARANTEED), 0))
    jobs = [owner, seen]
    if node2.gpus_used:
        jobs.append(holds("8", request(8), 0, name="n2"))
    one = cluster(rules, node("n1", gpus=1, used=1, slots_used=1), node2, jobs=tuple(jobs))
    told = Training(ref="6", phase="training", minibatch=9, restorable=True)
    one.handle(NodeReported(at_s=3.0, node="n1", jobs=(told,)))
    asked_for = MoveAsked(at_s=4.0, key="6", nodes=("n2",), why="repair", forced=True)
    assert moved(one.handle(asked_for)) == ["6"]
    one.handle(JobSaved(at_s=5.0, node="n1", job_id="6", number=1))
    left = replace(sight("6", guest, reason="BeginTime"), number=6, account="lab")
    started = [it for it in one.handle(looked(6.0, left)) if isinstance(it, Start)]
    assert started == [Start(token(2), "6", 1, ("n2",), gpus)]
    said_so = ", as owner" in "".join(line.text for line in one.state.jobs["6"].story)
    assert said_so is bool(gpus)
