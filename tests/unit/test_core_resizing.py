# SPDX-License-Identifier: Apache-2.0
"""Grow-shrink: who takes GPUs that nobody wants, and who gives them back for whom."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import holds, looked, machine, node, request, sight, token
from slipstream.core.classes import Mode, Per, Role
from slipstream.core.commands import Command, Requeue, Resize, Save, Start
from slipstream.core.events import (
    CommandRefused,
    JobSaved,
    ModeChanged,
    NodeReported,
    ResizeAsked,
    SwitchedOff,
    TimerFired,
)
from slipstream.core.moves import CRED_EXPIRE_S, PATIENCE_S, Stage
from slipstream.core.placement import Placement
from slipstream.core.reasons import Reason
from slipstream.core.rules import Rules
from slipstream.core.sights import Gpus, GpuUse, JobSight, Request, Training

if TYPE_CHECKING:
    from slipstream.core.machine import Machine

pytestmark = pytest.mark.unit

ENFORCE = Rules(mode=Mode.ENFORCE)
IDLE_S = 100.0 + ENFORCE.grow_after_s


def asked(size: int = 0, elastic: tuple[int, int] | None = (1, 3), gpus: int = 1) -> Request:
    """An elastic owner of one GPU, perhaps with another number of them now."""
    return replace(request(1, gpus=gpus), elastic=elastic, size=size)


def running(*indices: int, where: str = "n1", size: int = 0, run: int = 5) -> JobSight:
    """It holds these GPUs."""
    seen = holds("5", asked(size), *indices, name=where)
    return replace(seen, number=5, submitted_at_s=run)


def waiting(size: int = 0, run: int = 7) -> JobSight:
    """It has left, and Slurm will not start it for two minutes of its own."""
    pending = sight("5", asked(size), reason="BeginTime")
    return replace(pending, number=5, submitted_at_s=run, wants_gpus=size or 1)


def plain(ref: str = "9", gpus: int = 1, reason: str = "Resources") -> JobSight:
    """A job without our marker that waits for GPUs."""
    return replace(sight(ref, None, reason=reason), wants_gpus=gpus)


def trains(at_s: float, where: str = "n1", *, restorable: bool = True) -> NodeReported:
    """Its node tells of it."""
    told = Training(ref="5", phase="training", minibatch=40, restorable=restorable)
    return NodeReported(at_s=at_s, node=where, jobs=(told,))


def saved(at_s: float, number: int = 1, where: str = "n1") -> JobSaved:
    """What its node answers."""
    return JobSaved(at_s=at_s, node=where, job_id="5", number=number)


def cluster(*nodes: str, job: JobSight | None = None, rules: Rules = ENFORCE) -> Machine:
    """The elastic job on the first of these nodes of four GPUs; nobody waits since 100 s."""
    job = job or running(0)
    one = machine(node("n1", used=job.gpus), *map(node, nodes), rules=rules)
    one.handle(looked(100.0, job))
    one.handle(trains(100.0))
    return one


def grown(run: int = 7) -> Machine:
    """It trains with three GPUs of its node since a while; the fourth is free."""
    one = cluster(job=running(0, 1, 2, size=3, run=run))
    one.handle(looked(101.0, nodes=(node("n1", used=3),)))
    return one


def full(one: Machine, at_s: float, *jobs: JobSight) -> list[Command]:
    """Somebody has the fourth GPU, too, and others wait."""
    other = replace(holds("8", None, 3), number=8)
    return one.handle(looked(at_s, other, *jobs, nodes=(node("n1", used=4),)))


def idle(one: Machine, at_s: float = IDLE_S) -> list[Command]:
    """Nothing happens for so long."""
    one.handle(trains(at_s))
    return one.handle(TimerFired(at_s))


def story(one: Machine) -> str:
    """What was told of the job."""
    return "\n".join(line.text for line in one.state.jobs["5"].story)


def test_from_idle_gpus_to_the_first_mini_batch_on_all_of_them() -> None:
    """On the only node there is: after Slurm's own wait, with another number of GPUs."""
    one = cluster()
    assert idle(one, IDLE_S - 1.0) == []
    assert (one.wakes_at_s() or 0.0) <= IDLE_S
    assert idle(one) == [Save(token(1), "5", "n1", 1)]
    assert one.handle(saved(230.0)) == [Requeue(token(1), "5", 1, 5)]
    commands = one.handle(looked(232.0, waiting(), nodes=(node("n1"),)))
    (start,) = [told for told in commands if isinstance(told, Start)]
    assert (start.nodes, start.size, start.at_once) == (("n1",), 3, False)
    one.handle(looked(240.0, running(0, 1, 2, size=3, run=7), nodes=(node("n1", used=3),)))
    assert one.state.moves["5"].stage is Stage.RESTORING
    one.handle(trains(245.0))
    assert one.state.moves == {}
    assert "is to train with 3 GPUs instead of 1, on n1: nobody waits for these GPUs" in story(one)
    assert "trains with 3 GPUs, 25.0 s in all" in story(one)
    assert one.state.requests[token(1)].gpus.count == 1, "what its user asked for"


def test_where_another_node_has_the_room_it_starts_there_at_once() -> None:
    """Nobody waits two minutes for a node that it has left."""
    one = cluster("n2")
    idle(one)
    assert one.state.moves["5"].target == ("n2",)
    one.handle(saved(230.0))
    (start,) = [told for told in one.handle(looked(232.0, waiting())) if isinstance(told, Start)]
    assert (start.nodes, start.size, start.at_once) == (("n2",), 3, True)


def test_guests_are_not_disturbed_for_it() -> None:
    """GPUs on which they sit are not idle, here or elsewhere."""
    one = cluster("n2")
    for name, first in (("n1", 1), ("n2", 0)):
        gpus = tuple(
            GpuUse(index=index, guest_jobs=(f"7{index}",) if index >= first else ())
            for index in range(4)
        )
        told = trains(IDLE_S).jobs if name == "n1" else ()
        one.handle(NodeReported(at_s=IDLE_S, node=name, gpus=gpus, jobs=told))
    assert one.handle(TimerFired(IDLE_S)) == []
    assert one.state.moves == {}


@pytest.mark.parametrize(
    "job",
    [
        replace(running(0), request=asked(elastic=None)),
        replace(running(0), request=replace(asked(), moves=False)),
        replace(running(0), request=asked(elastic=(1, 1))),
        replace(running(0), request=replace(asked(), gpus=Gpus(Per.JOB, 1))),
        replace(running(0), request=replace(asked(), role=Role.GUEST), gpus=0, gpu_places=()),
        replace(running(0), ref="5_1"),
    ],
    ids=["no flag", "never moved", "no more", "per job", "guest", "array"],
)
def test_who_did_not_say_so_or_cannot_does_not_grow(job: JobSight) -> None:
    """Nor is it saved for nothing."""
    one = cluster("n2", job=job)
    assert idle(one) == []
    assert one.state.moves == {}


def test_what_cannot_be_restored_does_not_grow() -> None:
    """Whatever its user said."""
    one = cluster("n2")
    one.handle(trains(IDLE_S, restorable=False))
    one.handle(TimerFired(IDLE_S))
    assert one.state.moves == {}


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.ADVISE])
def test_only_where_everything_is_carried_out(mode: Mode) -> None:
    """And the wait for idle GPUs begins with that."""
    one = cluster("n2")
    one.handle(ModeChanged(110.0, mode))
    idle(one)
    assert one.state.moves == {}
    one.handle(ModeChanged(IDLE_S, Mode.ENFORCE))
    idle(one, IDLE_S + 1.0)
    assert one.state.moves == {}


def test_a_queue_begins_the_wait_anew() -> None:
    """Of jobs that carry no marker, too."""
    one = cluster("n2")
    one.handle(looked(IDLE_S - 2.0, plain()))
    one.handle(looked(IDLE_S - 1.0, gone=("9",)))
    idle(one)
    assert one.state.moves == {}
    idle(one, IDLE_S + ENFORCE.grow_after_s)
    assert one.state.moves["5"].size == 3


def test_who_was_moved_lately_does_not_grow() -> None:
    """Once in ten minutes."""
    one = cluster("n2")
    idle(one)
    one.handle(saved(230.0))
    one.handle(looked(232.0, waiting(), nodes=(node("n1"),)))
    one.handle(looked(234.0, running(0, where="n3", run=7), nodes=(node("n3", used=1),)))
    assert "Slurm started it on n3 with 1 GPUs instead" in story(one)
    one.handle(trains(235.0, where="n3"))
    for at_s in (400.0, 700.0):
        one.handle(trains(at_s, where="n3"))
        one.handle(TimerFired(at_s))
        assert one.state.moves == {}
    one.handle(trains(900.0, where="n3"))
    one.handle(TimerFired(900.0))
    assert one.state.moves["5"].size == 3


def test_it_gives_back_what_somebody_needs_at_once() -> None:
    """A plain job waits for a GPU: it goes on with the one that its user asked for."""
    one = grown()
    assert full(one, 130.0, plain()) == [Save(token(1), "5", "n1", 1)]
    move = one.state.moves["5"]
    assert (move.size, move.target) == (1, ("n1",))
    assert "is to train with 1 GPUs instead of 3, on n1: another job needs the GPUs" in story(one)
    assert one.handle(TimerFired(131.0)) == [], "once is enough"


def test_it_gives_back_for_jobs_of_ours_as_well() -> None:
    """An owner that finds no GPU."""
    one = grown()
    ours = sight("6", replace(request(2), gpus=Gpus(Per.NODE, 2)), reason="Resources")
    assert full(one, 130.0, ours)[-1] == Save(token(1), "5", "n1", 1)


@pytest.mark.parametrize("gpus", [3, 4])
def test_what_would_not_be_enough_is_not_given_back(gpus: int) -> None:
    """It has two to give, and would stand still for nothing."""
    one = grown()
    full(one, 130.0, plain(gpus=gpus))
    assert one.state.moves == {}


def test_it_gives_back_all_where_it_can_go_elsewhere() -> None:
    """Three of its GPUs are enough for who needs three."""
    one = grown()
    one.handle(looked(110.0, nodes=(node("n2", used=3),)))
    full(one, 130.0, plain(gpus=3))
    assert one.state.moves["5"].target == ("n2",)


def test_one_that_grows_is_called_off_for_who_comes() -> None:
    """While it is being saved; an operator's wish is not."""
    one = cluster()
    idle(one)
    full(one, 221.0, plain())
    assert one.state.moves == {}
    assert "stays: another job needs the GPUs" in story(one)
    assert one.handle(saved(222.0)) == []


def test_one_that_has_left_to_grow_goes_on_as_it_was_if_others_were_sooner() -> None:
    """Its size is what its user asked for again, and Slurm starts it."""
    one = cluster()
    idle(one)
    one.handle(saved(230.0))
    one.handle(looked(232.0, waiting(), nodes=(node("n1"),)))
    other = replace(holds("8", None, 0, 1, 2), number=8)
    grows = replace(waiting(size=3), slurm_reason="Resources")
    one.handle(looked(233.0, other, grows, nodes=(node("n1", used=3),)))
    assert one.state.moves, "not in the second in which it left"
    commands = one.handle(TimerFired(238.0))
    assert Resize(token(1), "5", 1) in commands
    assert "its move is given up: another job needs the GPUs" in story(one)
    assert "waits for 1 GPUs again, as its user asked" in story(one)


def test_who_is_requeued_by_others_waits_for_what_it_asked_for() -> None:
    """Once in a minute, until Slurm shows it."""
    one = grown()
    commands = one.handle(looked(130.0, waiting(size=3), nodes=(node("n1"),)))
    assert Resize(token(1), "5", 1) in commands
    assert one.handle(CommandRefused(131.0, token(1), "no", about="Resize")) == []
    assert one.handle(TimerFired(150.0)) == []
    assert Resize(token(1), "5", 1) in one.handle(TimerFired(190.0))
    one.handle(looked(191.0, waiting()))
    assert not [told for told in one.handle(TimerFired(290.0)) if isinstance(told, Resize)]


def test_switched_off_nothing_is_changed() -> None:
    """Slurm decides alone."""
    one = grown()
    one.handle(SwitchedOff(120.0))
    assert full(one, 130.0, plain(), waiting(size=3)) == []


def test_on_the_node_it_left_it_has_as_long_as_slurm_takes() -> None:
    """And no longer: then its size is what was asked for again."""
    one = cluster()
    idle(one)
    one.handle(saved(230.0))
    one.handle(looked(232.0, waiting(), nodes=(node("n1"),)))
    one.handle(looked(233.0, waiting(size=3)))
    due_s = 232.0 + PATIENCE_S[Stage.PLACING] + CRED_EXPIRE_S
    one.handle(TimerFired(due_s - 1.0))
    assert one.state.moves["5"].stage is Stage.PLACING
    assert Resize(token(1), "5", 1) in one.handle(TimerFired(due_s))
    assert one.state.moves == {}


def test_slurm_that_forgot_the_requeue_is_told_again() -> None:
    """It shows the old run where it was: that is no new size, whatever the node."""
    one = cluster()
    idle(one)
    one.handle(saved(230.0))
    one.handle(looked(231.0, running(0)))
    assert one.state.moves["5"].stage is Stage.LEAVING, "not requeued yet"
    one.handle(looked(232.0, waiting(), nodes=(node("n1"),)))
    commands = one.handle(looked(233.0, running(0), nodes=(node("n1", used=1),)))
    assert Requeue(token(1), "5", 1, 5) in commands


def resize(gpus: int, at_s: float = 110.0) -> ResizeAsked:
    """An operator's wish."""
    return ResizeAsked(at_s=at_s, key="5", gpus=gpus, why="an operator asked", forced=True)


def test_an_operator_says_how_many() -> None:
    """Within what the user said; at once, whoever waits; not where it must not disturb."""
    one = cluster("n2", rules=Rules(mode=Mode.ADVISE))
    one.handle(looked(105.0, plain()))
    found = one.sized_where(resize(2))
    assert isinstance(found, Placement)
    assert found.nodes == ("n2",)
    assert one.handle(resize(2)) == [Save(token(1), "5", "n1", 1)]
    assert one.state.moves["5"].size == 2
    assert one.sized_where(resize(3)) is Reason.MOVING


@pytest.mark.parametrize(
    ("gpus", "reason"),
    [(0, Reason.NOT_ELASTIC), (4, Reason.NOT_ELASTIC), (1, Reason.HAS_THAT_SIZE)],
)
def test_an_operator_is_told_why_not(gpus: int, reason: Reason) -> None:
    """Nothing happens."""
    one = cluster("n2")
    assert one.sized_where(resize(gpus)) is reason
    assert one.handle(resize(gpus)) == []


def test_no_room_is_said_as_for_any_job() -> None:
    """Here and elsewhere."""
    one = cluster()
    full(one, 109.0, replace(holds("8", None, 1, 2, 3), number=8))
    assert one.sized_where(resize(2)) is Reason.NO_FREE_GPU


def test_what_it_has_beyond_what_it_asked_for_is_not_charged() -> None:
    """A quota of two: it borrowed two of its three, so that its account may own one more."""
    rules = replace(ENFORCE, shares=(("lab", 1.0), ("shop", 1.0)))
    job = replace(running(0, 1, 2, size=3), account="lab")
    one = cluster(job=replace(job, request=replace(asked(3), account="lab")), rules=rules)
    tenants = one._mirror.brain.tenants  # noqa: SLF001 (a belief is private)
    assert tenants.of("lab").charged in (0, 1)
