# SPDX-License-Identifier: Apache-2.0
"""Moving a job: each stage, its deadline and its way back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core_world import looked, node, request, token
from moving_world import (
    ASKED_AT_S,
    asked,
    kinds,
    running,
    saved,
    story,
    trains,
    waiting,
    with_a_training,
)
from slipstream.core.classes import Mode, Strength
from slipstream.core.commands import Advise, Prepare, Requeue, Save, Start, Withdraw
from slipstream.core.events import (
    CommandRefused,
    ModeChanged,
    NodeReported,
    SchedulerStarted,
    SlurmFound,
    SlurmLost,
    SwitchedOff,
    TimerFired,
)
from slipstream.core.machine import Machine
from slipstream.core.moves import PATIENCE_S, Stage
from slipstream.core.placement import Placement
from slipstream.core.reasons import Reason
from slipstream.core.sights import Standing

pytestmark = pytest.mark.unit


@pytest.fixture
def one() -> Machine:
    """A restorable job on the first of three nodes."""
    return with_a_training()


def test_from_the_wish_to_the_first_mini_batch_elsewhere(one: Machine) -> None:
    """Save, requeue, require the new nodes, start, and it trains."""
    assert one.handle(asked("n2")) == [Save(token(1), "5", "n1", 1)]
    ahead = Prepare(token(1), "5", ("n2",), running().uid, 1, 500_000_000)
    assert one.handle(saved()) == [ahead, Requeue(token(1), "5", 1, 5)]
    commands = one.handle(waiting(112.0))
    assert kinds(commands) == [Advise, Start], "where before when"
    assert isinstance(commands[0], Advise)
    assert commands[0].advice.nodes == ("n2",)
    assert commands[0].advice.strength is Strength.REQUIRE
    one.handle(looked(114.0, running(where="n2")))
    assert one.state.moves["5"].stage is Stage.RESTORING
    one.handle(trains("n2", 118.5, minibatch=1))
    assert one.state.moves == {}
    assert "moved, 18.5 s in all" in story(one)
    assert "saved, 500 MB in 0.9 s: requeued" in story(one)


def test_without_a_wish_for_nodes_the_best_other_ones_are_taken(one: Machine) -> None:
    """Not where it is, and not where there is no room."""
    one.handle(asked())
    assert one.state.moves["5"].target == ("n2",)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [(("n1",), Reason.NO_NODE_FITS), (("n3",), Reason.NO_FREE_GPU), (("nx",), Reason.NO_NODE_FITS)],
)
def test_nodes_that_will_not_do_are_refused(
    one: Machine, nodes: tuple[str, ...], reason: Reason
) -> None:
    """Its own, a full one, one that is not there: nothing happens."""
    assert one.where_to("5", nodes, ASKED_AT_S, forced=True) is reason
    assert one.handle(asked(*nodes)) == []
    assert one.state.moves == {}


def test_what_cannot_be_restored_is_never_moved(one: Machine) -> None:
    """Nor what nobody reports about, nor what does not run, nor what is not ours."""
    one.handle(trains("n1", 3.0, restorable=False))
    assert one.where_to("5", (), ASKED_AT_S, forced=True) is Reason.NOT_RESTORABLE
    one.handle(NodeReported(at_s=4.0, node="n1"))
    assert one.where_to("5", (), ASKED_AT_S, forced=True) is Reason.NOT_RESTORABLE
    one.handle(waiting(5.0))
    assert one.where_to("5", (), ASKED_AT_S, forced=True) is Reason.MOVES_ONLY_RUNNING
    one.handle(looked(6.0, replace(running(), request=None, ref="9")))
    assert one.where_to("9", (), ASKED_AT_S, forced=True) is Reason.LEFT_TO_SLURM


def test_who_said_so_is_never_moved(one: Machine) -> None:
    """--no-slip-move holds for operators, too."""
    still = replace(request(2), moves=False)
    one.handle(looked(3.0, replace(running("6"), request=still)))
    assert one.where_to("6", (), ASKED_AT_S, forced=True) is Reason.MOVES_NEVER


def test_in_observe_nothing_moves(one: Machine) -> None:
    """It says so."""
    one.handle(ModeChanged(50.0, Mode.OBSERVE))
    assert one.where_to("5", (), ASKED_AT_S, forced=True) is Reason.WOULD_ADVISE
    assert one.handle(asked()) == []


def test_one_move_at_a_time_and_not_again_at_once(one: Machine) -> None:
    """An operator waits a minute, we wait ten."""
    one.handle(asked())
    assert one.where_to("5", (), ASKED_AT_S, forced=True) is Reason.MOVING
    one.handle(saved())
    one.handle(waiting(112.0))
    one.handle(looked(113.0, running(where="n2"), nodes=(node("n1"), node("n2", used=1))))
    one.handle(trains("n2", 114.0, minibatch=1))
    assert one.where_to("5", ("n3",), 130.0, forced=True) is Reason.MOVED_LATELY
    one.handle(looked(300.0, nodes=(node("n3"),)))
    assert one.where_to("5", ("n3",), 300.0, forced=False) is Reason.MOVED_LATELY
    found = one.where_to("5", ("n3",), 300.0, forced=True)
    assert isinstance(found, Placement)
    assert one.handle(asked("n3", at_s=300.0)) == [Save(token(1), "5", "n2", 2)], "another number"


def test_what_could_not_be_saved_is_not_tried_again_at_once(one: Machine) -> None:
    """Each try costs the training time; an operator may try, with another number."""
    one.handle(asked(forced=False))
    one.handle(saved(problem="no room on the shared filesystem"))
    assert one.where_to("5", (), 111.0, forced=False) is Reason.MOVED_LATELY
    assert one.handle(asked(at_s=111.0)) == [Save(token(1), "5", "n1", 2)]
    assert one.handle(saved(112.0, number=1)) == [], "an answer to the first question"
    assert one.state.moves["5"].stage is Stage.SAVING


def test_a_users_own_nodes_are_kept(one: Machine) -> None:
    """Those it must not use and those it asked for, whoever wants it elsewhere."""
    there = replace(running(), excluded_nodes=("n2",))
    one.handle(looked(3.0, there, nodes=(node("n3"), node("n4"))))
    assert one.where_to("5", ("n2",), ASKED_AT_S, forced=True) is Reason.NO_NODE_FITS
    one.handle(looked(4.0, replace(running(), required_nodes=("n1", "n4"))))
    found = one.where_to("5", (), ASKED_AT_S, forced=True)
    assert isinstance(found, Placement)
    assert found.nodes == ("n4",)
    assert one.where_to("5", ("n2",), ASKED_AT_S, forced=True) is Reason.NO_NODE_FITS


def test_a_job_that_could_not_be_saved_stays(one: Machine) -> None:
    """And says why; a late answer to an earlier question counts for nothing."""
    one.handle(asked())
    assert one.handle(saved(number=7)) == []
    assert one.handle(saved(problem="no room on the ramdisk")) == []
    assert one.state.moves == {}
    assert "stays, it could not be saved: no room on the ramdisk" in story(one)
    assert one.handle(saved()) == []


@pytest.mark.parametrize(
    ("stage", "text"),
    [
        (Stage.SAVING, "stays: it was not saved in time"),
        (Stage.LEAVING, "did not leave in time"),
        (Stage.PLACING, "Slurm starts it anywhere"),
        (Stage.RESTORING, "has not told of a mini-batch since"),
    ],
)
def test_every_stage_has_an_end(one: Machine, stage: Stage, text: str) -> None:
    """Whoever dies: the move is over by its deadline, and the machine asks to be woken for it."""
    one.handle(asked())
    if stage is not Stage.SAVING:
        one.handle(saved())
    if stage in (Stage.PLACING, Stage.RESTORING):
        one.handle(waiting(112.0))
    if stage is Stage.RESTORING:
        one.handle(looked(114.0, running(where="n2")))
    move = one.state.moves["5"]
    assert move.stage is stage
    due_s = move.since_s + PATIENCE_S[stage]
    wakes_at_s = one.wakes_at_s()
    assert wakes_at_s is not None
    assert wakes_at_s <= due_s
    one.handle(TimerFired(due_s))
    assert one.state.moves == {}
    assert text in story(one)


@pytest.mark.parametrize("event", [SwitchedOff(105.0), ModeChanged(105.0, Mode.OBSERVE)])
def test_what_is_switched_off_before_it_has_left_stays(
    one: Machine, event: SwitchedOff | ModeChanged
) -> None:
    """It was saved for nothing, and runs on where it is."""
    one.handle(asked("n2"))
    one.handle(event)
    assert one.handle(saved()) == []
    assert one.state.moves == {}
    assert "nothing is to be carried out any more" in story(one)


@pytest.mark.parametrize("event", [SwitchedOff(113.0), ModeChanged(113.0, Mode.OBSERVE)])
def test_what_is_switched_off_between_two_nodes_still_goes_to_the_new_one(
    one: Machine, event: SwitchedOff | ModeChanged
) -> None:
    """Free to start at once on the node that it left it would be lost by Slurm."""
    one.handle(asked("n2"))
    one.handle(saved())
    one.handle(waiting(112.0))
    assert not [told for told in one.handle(event) if isinstance(told, Withdraw)]
    (advice,) = one.state.advice.values()
    assert advice.nodes == ("n2",)
    one.handle(looked(114.0, running(where="n2")))
    assert one.state.advice == {}


def test_a_start_that_slurm_may_have_forgotten_is_told_again(one: Machine) -> None:
    """Its controller died after it: nodes and size may be those of before."""
    one.handle(asked("n2"))
    one.handle(saved())
    one.handle(waiting(112.0))
    one.handle(SlurmLost(113.0, "away"))
    one.handle(SlurmFound(115.0))
    (start,) = [told for told in one.handle(waiting(115.5)) if isinstance(told, Start)]
    assert start.nodes == ("n2",)
    one.handle(looked(117.0, running(where="n2")))
    assert one.state.moves["5"].stage is Stage.RESTORING


def test_a_refused_requeue_leaves_it_running(one: Machine) -> None:
    """--no-requeue, say."""
    one.handle(asked())
    one.handle(saved())
    one.handle(CommandRefused(111.0, token(1), "Slurm does not requeue it"))
    assert one.state.moves == {}
    assert "stays: Slurm does not requeue it" in story(one)


def test_a_job_that_slurm_put_elsewhere_is_not_waited_for(one: Machine) -> None:
    """The advice had expired, or an admin was faster."""
    one.handle(asked("n2"))
    one.handle(saved())
    one.handle(waiting(112.0))
    one.handle(looked(114.0, running(where="n3")))
    assert "Slurm started it on n3 instead" in story(one)


@pytest.mark.parametrize("standing", [Standing.COMPLETING, Standing.WAITING])
def test_a_requeue_that_slurm_has_forgotten_is_done_again(one: Machine, standing: Standing) -> None:
    """Slurm was killed over it, and shows the run that had left: nobody lives there any more.

    It would be minutes until Slurm misses it.
    """
    one.handle(asked("n2"))
    assert kinds(one.handle(saved())) == [Prepare, Requeue]
    assert one.handle(looked(110.5, running())) == [], "not requeued yet"
    one.handle(looked(111.0, replace(running(), standing=standing)))
    commands = one.handle(looked(113.0, running()))
    assert kinds(commands).count(Requeue) == 1
    assert Requeue not in kinds(one.handle(looked(114.0, running()))), "once"
    assert "Slurm may have forgotten that it left" in story(one)
    assert Start in kinds(one.handle(waiting(115.0)))
    one.handle(looked(117.0, running(where="n2")))
    one.handle(trains("n2", 118.0))
    assert "moved, " in story(one)


def test_a_controller_that_is_back_is_asked_again_for_a_requeue(one: Machine) -> None:
    """It was away over it, and whether it remembers nobody can tell: who asks looks first."""
    one.handle(asked("n2"))
    one.handle(saved())
    one.handle(SlurmLost(111.0, "away"))
    one.handle(SlurmFound(113.0))
    assert kinds(one.handle(looked(114.0, running()))).count(Requeue) == 1
    assert Requeue not in kinds(one.handle(looked(115.0, running())))


def test_another_run_on_the_same_node_is_no_forgotten_one(one: Machine) -> None:
    """Slurm started it anew where it came from: a requeue counts as a new submission."""
    one.handle(asked("n2"))
    one.handle(saved())
    one.handle(waiting(112.0))
    again = replace(running(), submitted_at_s=112)
    assert Requeue not in kinds(one.handle(looked(114.0, again)))
    assert "Slurm started it on n1 instead" in story(one)


def test_a_machine_brought_back_goes_on_with_the_move(one: Machine) -> None:
    """From its own memory as an event."""
    one.handle(asked("n2"))
    one.handle(saved())
    again = Machine()
    again.handle(one.state.remembered(111.0))
    assert again.state.moves == one.state.moves
    assert kinds(again.handle(waiting(112.0))) == kinds(one.handle(waiting(112.0)))


def test_a_start_that_was_refused_is_told_again_when_slurm_shows_the_job(one: Machine) -> None:
    """Slurm's controller was away for a moment; but not for ever."""
    one.handle(asked("n2"))
    one.handle(saved())
    told = 0
    for second in range(20):
        commands = one.handle(waiting(112.0 + second))
        told += Start in kinds(commands)
        one.handle(CommandRefused(112.5 + second, token(1), "Slurm is away"))
    assert 1 < told < 20
    assert one.state.moves["5"].stage is Stage.PLACING, "its deadline is the end of it"


def test_a_scheduler_that_is_back_asks_again_for_what_each_stage_waits_for(one: Machine) -> None:
    """The same commands, fenced by the same number and run: who carries them out looks first."""
    again = SchedulerStarted(105.0)
    save = one.handle(asked("n2"))
    assert one.handle(again) == save
    requeue = one.handle(saved(104.0))[1:]
    assert one.handle(again) == requeue, "what is fetched ahead is not asked for again"
    start = one.handle(waiting(104.5))[-1:]
    assert one.handle(again) == start
    assert kinds([*save, *requeue, *start]) == [Save, Requeue, Start]
    one.handle(looked(105.0, running(where="n2")))
    assert one.handle(again) == [], "it restores: nothing is to be done"


def test_a_scheduler_that_is_back_too_late_leaves_the_job_alone(one: Machine) -> None:
    """What was saved is old by then: a requeue now would cost what it has trained since."""
    one.handle(asked("n2"))
    one.handle(saved())
    assert one.handle(SchedulerStarted(110.0 + PATIENCE_S[Stage.LEAVING])) == []
    assert one.state.moves == {}
    assert "did not leave in time" in story(one)
