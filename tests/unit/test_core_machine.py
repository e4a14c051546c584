# SPDX-License-Identifier: Apache-2.0
"""What the machine says to do when something happens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import pytest

from core_world import RULES, full, looked, machine, node, request, sight, submitted, token
from slipstream.core.classes import Mode, Per, Role, Strength
from slipstream.core.commands import Admit, Advise, Arrival, Command, Settle, Withdraw
from slipstream.core.events import (
    ClusterSeen,
    CommandRefused,
    ModeChanged,
    NodeReported,
    RulesChanged,
    SlurmFound,
    SlurmLost,
    SwitchedOff,
    SwitchedOn,
    TimerFired,
)
from slipstream.core.reasons import Reason
from slipstream.core.records import Phase
from slipstream.core.sights import Gpus, GpuUse, Standing

if TYPE_CHECKING:
    from slipstream.core.machine import Machine

pytestmark = pytest.mark.unit

_Kind = TypeVar("_Kind")


def advised(commands: list[Command]) -> dict[str, tuple[str, ...]]:
    """Token to nodes, of the advice among the commands."""
    return {one.token: one.advice.nodes for one in commands if isinstance(one, Advise)}


def only(kind: type[_Kind], commands: list[Command]) -> _Kind:
    """The one command of a kind."""
    (found,) = [one for one in commands if isinstance(one, kind)]
    return found


def reason_of(one: Machine, key: str) -> Reason:
    """Why a job is where it is."""
    return one.state.jobs[key].reason


def test_a_submission_is_admitted_and_advised_in_one_breath() -> None:
    """The advice is there before the job is in the queue."""
    one = machine(node("n1"), node("n2", used=3))
    commands = one.handle(submitted(request(1), at_s=10.0))
    assert only(Admit, commands).message == "shared owner, GPUs are free on n2."
    advice = only(Advise, commands).advice
    assert advice.nodes == ("n2",)
    assert advice.strength is Strength.PREFER
    assert advice.until_s == 10.0 + RULES.lease_s


def test_two_submissions_in_a_row_do_not_share_the_last_gpu() -> None:
    """What is advised to one is not advised to the next, though Slurm shows nothing yet."""
    one = machine(node("n1", used=3), node("n2"))
    assert advised(one.handle(submitted(request(1)))) == {token(1): ("n1",)}
    assert advised(one.handle(submitted(request(2)))) == {token(2): ("n2",)}


def test_a_submission_without_room_is_told_what_it_waits_for() -> None:
    """Admitted all the same: we refuse nobody."""
    one = machine(full(node("n1")))
    commands = one.handle(submitted(request(1, role=Role.GUEST)))
    assert only(Admit, commands).message == (
        "opportunistic guest, it will wait: "
        "not enough nodes have as many free guest slots as it needs."
    )
    assert advised(commands) == {token(1): ()}


def test_a_job_that_arrives_is_settled_once() -> None:
    """Slurm shows the job with our token: its admission is confirmed, by its number."""
    one = machine(node("n1"))
    asked = request(1)
    one.handle(submitted(asked))
    commands = one.handle(looked(11.0, sight("7", asked)))
    assert only(Settle, commands) == Settle(token(1), Arrival.SEEN, "7")
    assert one.state.jobs["7"].phase is Phase.WAITING
    assert one.state.jobs["7"].story[0].text == "submitted as shared owner"
    assert one.handle(looked(12.0, sight("7", asked, priority=101))) == []


def test_a_marked_job_nobody_announced_is_taken_up_by_its_marker() -> None:
    """The daemon was dead while it was submitted: it is advised as soon as it is seen."""
    one = machine(node("n1"))
    commands = one.handle(looked(11.0, sight("7", request(1))))
    assert only(Settle, commands).ref == "7"
    assert advised(commands) == {token(1): ("n1",)}


def test_another_job_with_the_number_of_one_is_not_that_one() -> None:
    """Slurm was killed and has forgotten a job; what was meant for it is not the other's."""
    one = machine(node("n1"))
    one.handle(submitted(request(1)))
    one.handle(looked(11.0, sight("7", request(1))))
    commands = one.handle(looked(13.0, sight("7", request(2), Standing.RUNNING)))
    assert Withdraw(token(1), None) in commands
    assert Settle(token(2), Arrival.SEEN, "7") in commands
    assert [record.token for record in one.state.jobs.values()] == [token(2)]
    assert list(one.state.requests) == [token(2)]


def test_a_job_marked_after_it_was_seen_is_taken_up() -> None:
    """First a plain job, then one of ours."""
    one = machine(node("n1"))
    one.handle(looked(11.0, sight("7")))
    assert reason_of(one, "7") is Reason.LEFT_TO_SLURM
    assert advised(one.handle(looked(12.0, sight("7", request(1))))) == {token(1): ("n1",)}
    assert reason_of(one, "7") is Reason.ADVISED


def test_a_plain_job_is_not_touched() -> None:
    """No marker, no command, whatever happens to it."""
    one = machine(node("n1"))
    for standing in (Standing.WAITING, Standing.RUNNING, Standing.COMPLETING, Standing.ENDED):
        assert one.handle(looked(11.0, sight("7", standing=standing))) == []
    assert one.handle(looked(12.0, gone=("7",))) == []
    assert one.state.jobs == {}


def test_a_job_that_starts_needs_no_advice_any_more() -> None:
    """Withdrawn once; the room it takes is Slurm's to tell."""
    one = machine(node("n1"))
    one.handle(submitted(request(1)))
    commands = one.handle(looked(11.0, sight("7", request(1), Standing.RUNNING)))
    assert only(Withdraw, commands) == Withdraw(token(1))
    assert reason_of(one, "7") is Reason.RUNNING


def test_advice_is_renewed_when_half_its_time_is_over() -> None:
    """Neither at every event nor too late."""
    one = machine(node("n1"))
    one.handle(submitted(request(1), at_s=10.0))
    one.handle(looked(11.0, sight("7", request(1))))
    assert one.wakes_at_s() == 40.0
    assert one.handle(TimerFired(39.0)) == []
    assert only(Advise, one.handle(TimerFired(40.0))).advice.until_s == 100.0


def test_the_better_priority_gets_the_last_gpu() -> None:
    """And the other one learns why it waits."""
    one = machine(node("n1", used=3))
    commands = one.handle(
        looked(11.0, sight("7", request(1), priority=10), sight("8", request(2), priority=20))
    )
    assert advised(commands) == {token(2): ("n1",)}
    assert reason_of(one, "7") is Reason.NO_FREE_GPU
    assert reason_of(one, "8") is Reason.ADVISED


@pytest.mark.parametrize(
    ("slurm", "reason"),
    [
        ("JobHeldUser", Reason.HELD),
        ("Dependency", Reason.DEPENDENCY),
        ("BeginTime", Reason.BEGINS_LATER),
        ("QOSMaxGRESPerUser", Reason.LIMIT),
        ("AssocGrpGRES", Reason.LIMIT),
        ("PartitionDown", Reason.NODES_UNAVAILABLE),
        ("Licenses", Reason.SLURM_ONLY),
        ("Resources", Reason.ADVISED),
        ("Priority", Reason.ADVISED),
    ],
)
def test_what_slurm_forbids_comes_first(slurm: str, reason: Reason) -> None:
    """A job Slurm will not start takes no room in our plan."""
    one = machine(node("n1", used=3))
    commands = one.handle(looked(11.0, sight("7", request(1), reason=slurm)))
    assert reason_of(one, "7") is reason
    assert bool(advised(commands)) is (reason is Reason.ADVISED)


def test_observe_says_what_it_would_do_and_does_nothing() -> None:
    """The default mode of a new site."""
    one = machine(node("n1"), rules=replace(RULES, mode=Mode.OBSERVE))
    commands = one.handle(submitted(request(1)))
    assert only(Admit, commands).message.endswith("Slurm decides where it starts.")
    assert not advised(commands)
    one.handle(looked(11.0, sight("7", request(1))))
    assert reason_of(one, "7") is Reason.WOULD_ADVISE
    assert advised(one.handle(ModeChanged(12.0, Mode.ADVISE))) == {token(1): ("n1",)}
    assert one.handle(ModeChanged(13.0, Mode.OBSERVE)) == [Withdraw(token(1))]


def test_a_mode_set_by_command_counts_until_another_is_configured() -> None:
    """New settings with the mode of before leave the operator's choice alone."""
    one = machine(node("n1"))
    one.handle(ModeChanged(10.0, Mode.ENFORCE))
    one.handle(RulesChanged(11.0, replace(RULES, lease_s=10.0)))
    assert one.state.mode == "enforce"
    assert only(Advise, one.handle(submitted(request(1), at_s=12.0))).advice.until_s == 22.0
    assert one.handle(RulesChanged(13.0, replace(RULES, mode=Mode.OBSERVE))) == [Withdraw(token(1))]
    assert one.state.mode == "observe"


def test_the_kill_switch_takes_all_advice_back() -> None:
    """And nothing new is advised until it is gone."""
    one = machine(node("n1"))
    one.handle(submitted(request(1)))
    one.handle(looked(11.0, sight("7", request(1))))
    assert one.handle(SwitchedOff(12.0)) == [Withdraw(token(1))]
    assert reason_of(one, "7") is Reason.SWITCHED_OFF
    assert not advised(one.handle(submitted(request(2))))
    assert one.handle(TimerFired(500.0)) == [Settle(token(2), Arrival.LOST)]
    assert advised(one.handle(SwitchedOn(501.0))) == {token(1): ("n1",)}


def test_a_job_that_never_arrives_is_lost_and_then_forgotten() -> None:
    """Its submission failed after us: its room is free again, its user may still ask."""
    one = machine(node("n1", used=3))
    one.handle(submitted(request(1), at_s=10.0))
    commands = one.handle(TimerFired(10.0 + RULES.arrival_s))
    assert commands == [Settle(token(1), Arrival.LOST), Withdraw(token(1))]
    assert reason_of(one, f"token:{token(1)}") is Reason.NEVER_ARRIVED
    one.handle(TimerFired(10.0 + RULES.arrival_s + RULES.forget_s))
    assert (one.state.jobs, one.state.requests) == ({}, {})
    assert one.wakes_at_s() is None


def test_nobody_is_lost_while_slurm_is_away() -> None:
    """What cannot be seen cannot be missed."""
    one = machine(node("n1"))
    one.handle(submitted(request(1), at_s=10.0))
    one.handle(SlurmLost(11.0, "no controller answers"))
    assert reason_of(one, f"token:{token(1)}") is Reason.SLURM_AWAY
    one.handle(TimerFired(500.0))
    assert one.state.jobs[f"token:{token(1)}"].phase is Phase.SUBMITTED
    one.handle(SlurmFound(501.0))
    commands = one.handle(looked(502.0, sight("7", request(1))))
    assert only(Settle, commands).arrival is Arrival.SEEN


def test_a_complete_look_ends_what_is_not_in_it() -> None:
    """After a restart: jobs Slurm has forgotten are forgotten, announced ones wait on."""
    one = machine(node("n1"))
    one.handle(looked(11.0, sight("7", request(1)), sight("8")))
    one.handle(submitted(request(2)))
    commands = one.handle(ClusterSeen(at_s=12.0, nodes=(node("n1"),), complete=True))
    assert Withdraw(token(1)) in commands
    assert list(one.state.jobs) == [f"token:{token(2)}"]


def test_a_node_that_is_gone_is_advised_no_more() -> None:
    """The job is sent elsewhere at once."""
    one = machine(node("n1", used=3), node("n2"))
    one.handle(looked(11.0, sight("7", request(1))))
    commands = one.handle(ClusterSeen(at_s=12.0, nodes_gone=("n1",)))
    assert advised(commands) == {token(1): ("n2",)}


def test_reports_move_the_next_guest_to_the_quiet_node() -> None:
    """What coordinators measure counts from the next round of planning on."""
    one = machine(node("n1"), node("n2"))
    busy = tuple(GpuUse(index=index, use_pct=90.0) for index in range(4))
    assert one.handle(NodeReported(at_s=10.0, node="n1", gpus=busy)) == []
    assert one.wakes_at_s() == 0.0
    one.handle(TimerFired(11.0))
    assert advised(one.handle(submitted(request(1, role=Role.GUEST)))) == {token(1): ("n2",)}


def test_a_heartbeat_that_changes_nothing_is_no_reason_to_plan() -> None:
    """41 % and 44 % are felt alike; 55 % is not."""
    one = machine(node("n1"))
    for use_pct, at_s, planned in ((41.0, 10.0, True), (44.0, 15.0, False), (55.0, 20.0, True)):
        gpus = (GpuUse(index=0, use_pct=use_pct),)
        one.handle(NodeReported(at_s=at_s, node="n1", gpus=gpus))
        assert (one.wakes_at_s() == 0.0) is planned, use_pct
        one.handle(TimerFired(at_s))


def test_an_old_report_counts_as_none() -> None:
    """The coordinator died: its node is judged by what Slurm says of it."""
    one = machine(node("n1"), node("n2", used=4))
    quiet = tuple(GpuUse(index=index, use_pct=0.0) for index in range(4))
    busy = tuple(GpuUse(index=index, use_pct=90.0) for index in range(4))
    one.handle(NodeReported(at_s=10.0, node="n1", gpus=busy))
    one.handle(NodeReported(at_s=10.0, node="n2", gpus=quiet))
    one.handle(TimerFired(10.5))
    guest = request(1, role=Role.GUEST)
    assert advised(one.handle(submitted(guest, at_s=11.0))) == {token(1): ("n2",)}
    one.handle(looked(12.0, gone=(f"token:{token(1)}",)))
    assert one.wakes_at_s() == 10.0 + RULES.report_s
    one.handle(TimerFired(10.0 + RULES.report_s))
    late = request(2, role=Role.GUEST)
    assert advised(one.handle(submitted(late, at_s=11.0 + RULES.report_s))) == {token(2): ("n1",)}


def test_each_task_of_an_array_has_advice_of_its_own() -> None:
    """What was said of the announced array gives way to what is said of its tasks."""
    one = machine(node("n1", used=3), node("n2", used=3))
    asked = request(1)
    assert advised(one.handle(submitted(asked))) == {token(1): ("n1",)}
    commands = one.handle(looked(11.0, *(sight(f"7_{task}", asked) for task in range(3))))
    given = {one.advice.key: one.advice.nodes for one in commands if isinstance(one, Advise)}
    assert given == {f"{token(1)}_0": ("n1",), f"{token(1)}_1": ("n2",)}
    assert Withdraw(token(1)) in commands
    assert only(Settle, commands).ref == "7_0"
    assert reason_of(one, "7_2") is Reason.NO_FREE_GPU


def test_the_last_task_of_an_array_ends_its_submission() -> None:
    """What its user asked for is remembered until then."""
    one = machine(node("n1"))
    asked = request(1)
    one.handle(looked(11.0, *(sight(f"7_{task}", asked) for task in range(3))))
    ended = [sight(f"7_{task}", asked, Standing.ENDED) for task in range(3)]
    assert one.handle(looked(12.0, *ended)) == [Withdraw(token(1), task) for task in range(3)]
    one.handle(looked(13.0, gone=("7_0", "7_1")))
    assert token(1) in one.state.requests
    one.handle(looked(14.0, gone=("7_2",)))
    assert one.state.requests == {}


def test_refused_advice_is_tried_again() -> None:
    """The board could not be written: the story says so, the next round advises anew."""
    one = machine(node("n1"))
    one.handle(submitted(request(1)))
    assert one.handle(CommandRefused(11.0, token(1), "disk full")) == []
    assert "disk full" in one.state.jobs[f"token:{token(1)}"].story[-1].text
    assert advised(one.handle(looked(12.0, sight("7", request(1))))) == {token(1): ("n1",)}


def test_a_shape_we_do_not_handle_is_left_to_slurm() -> None:
    """GPUs per socket: admitted, explained, not placed."""
    one = machine(node("n1"))
    asked = replace(request(1), gpus=Gpus(Per.SOCKET, 1))
    assert not advised(one.handle(submitted(asked)))
    one.handle(looked(11.0, sight("7", asked)))
    assert reason_of(one, "7") is Reason.SHAPE_NOT_HANDLED


def test_a_story_tells_each_thing_once() -> None:
    """What was said at submission is not said again on arrival, but anew after a requeue."""
    one = machine(node("n1"))
    asked = request(1)
    one.handle(submitted(asked))
    standings = (Standing.WAITING, Standing.WAITING, Standing.RUNNING, Standing.WAITING)
    for at_s, standing in enumerate(standings, 11):
        one.handle(looked(float(at_s), sight("7", asked, standing, priority=at_s)))
    assert [line.text for line in one.state.jobs["7"].story] == [
        "submitted as shared owner",
        "advised to start on n1",
        "waiting as job 7",
        "running as job 7 on n1",
        "waiting as job 7",
        "advised to start on n1",
    ]


def test_a_requeued_job_is_planned_again() -> None:
    """From running back to waiting, with advice of its own."""
    one = machine(node("n1"))
    one.handle(looked(11.0, sight("7", request(1), Standing.RUNNING)))
    assert advised(one.handle(looked(12.0, sight("7", request(1))))) == {token(1): ("n1",)}
