# SPDX-License-Identifier: Apache-2.0
"""What is kept of a job: over its end, over its starts, over a restart of the scheduler."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core_world import request
from slipstream.core.events import ClusterSeen, NodeReported
from slipstream.core.figures import MOST_PARTS_OF_A_NODE, MOST_STARTS, Figures, taken
from slipstream.core.machine import Machine
from slipstream.core.sights import JobSight, Measured, Standing, Training
from slipstream.scheduler import views
from slipstream.scheduler.journal_codec import read_event, written

pytestmark = pytest.mark.unit

FIRST = Training(
    ref="15",
    phase="training",
    minibatch=130,
    minibatch_ms=20.0,
    launch_s=4.0,
    train_s=13.0,
    save_s=1.0,
    waited_s=30.0,
    parked_s=20.0,
    share_s=5.0,
    shared_s=10.0,
    restart=0,
    began=100,
    measured=Measured(ranks=1, gpus=1, lived_s=50.0, gpu_memory_mib=100.0),
)
SECOND = replace(
    FIRST, minibatch=60, launch_s=3.0, train_s=6.0, restart=1, began=500, resumed_at=120
)


def told(*told: tuple[str, Training]) -> Figures:
    """What is kept after these reports, by node."""
    figures = Figures(key="12_3")
    for node, training in told:
        figures = taken(figures, node, training)
    return figures


def test_starts_add_up() -> None:
    """What was done before a move, and after it; and what of it was done twice."""
    total = told(("n1", FIRST), ("n2", SECOND)).total
    assert (total.minibatches, total.again) == (190, 10)
    assert (total.train_s, total.save_s) == (19.0, 2.0)
    assert (total.waited_s, total.parked_s, total.lived_s) == (60.0, 40.0, 100.0)
    assert (total.starts, total.moves, total.share_pct) == (2, 1, 50.0)
    assert told(("n1", FIRST), ("n2", SECOND)).launch_s == 3.0


def test_a_start_from_nothing_does_nothing_again_that_is_known() -> None:
    """Its program does not say where it begins: all of it counts."""
    total = told(("n1", FIRST), ("n1", replace(SECOND, resumed_at=0))).total
    assert (total.minibatches, total.again, total.moves) == (190, 0, 0)


def test_totals_of_a_start_never_fall() -> None:
    """A report that comes late, twice, or from a coordinator that lost its file changes nothing."""
    figures = told(("n1", FIRST))
    assert taken(figures, "n1", FIRST) is figures
    late = replace(FIRST, minibatch=7, train_s=0.5, waited_s=0.0, parked_s=0.0)
    assert taken(figures, "n1", late).total == figures.total
    moved = told(("n1", FIRST), ("n2", SECOND))
    assert taken(moved, "n1", late).total == moved.total


def test_parts_of_one_start_on_a_node_add_up() -> None:
    """Between two steps of an allocation nothing of the job was there."""
    later = replace(FIRST, began=300)
    assert told(("n1", FIRST), ("n1", later)).total.minibatches == 260


def test_of_several_nodes_the_slowest_counts() -> None:
    """Ranks train together: once for all of them; a node without a trainer does not count."""
    figures = told(
        ("n1", FIRST),
        ("n2", replace(FIRST, minibatch=129, train_s=14.0, began=7)),
        ("n3", replace(FIRST, minibatch=0, began=8)),
    )
    assert (figures.total.minibatches, figures.total.train_s, figures.total.moves) == (129, 14.0, 0)
    assert figures.total.waited_s == 30.0


def test_a_job_that_is_requeued_for_ever_stays_small() -> None:
    """Its first starts become one sum."""
    figures = Figures(key="1")
    for restart in range(200):
        figures = taken(figures, "n1", replace(FIRST, restart=restart, began=restart))
    assert len(figures.parts) <= MOST_STARTS
    assert (figures.total.minibatches, figures.total.starts) == (200 * 130, 200)


ASKED = request(1)
SIGHT = JobSight(ref="12_3", number=15, standing=Standing.RUNNING, nodes=("n1",), request=ASKED)


def machine() -> Machine:
    """One that has seen a job train and end."""
    one = Machine()
    one.handle(ClusterSeen(at_s=1.0, jobs=(SIGHT,), complete=True))
    one.handle(NodeReported(at_s=2.0, node="n1", jobs=(FIRST,)))
    last = replace(FIRST, phase="ended", minibatch=150)
    one.handle(NodeReported(at_s=3.0, node="n1", ended=(last,)))
    one.handle(ClusterSeen(at_s=4.0, jobs=(replace(SIGHT, standing=Standing.ENDED),)))
    one.handle(NodeReported(at_s=5.0, node="n1"))
    return one


def test_figures_are_kept_when_the_job_has_ended_and_go_with_its_record() -> None:
    """Its node no longer speaks of it."""
    one = machine()
    found = views.why(one.state, "12_3")
    assert found is not None
    assert (found["state"], found["training"]["phase"]) == ("ended", "ended")
    training = found["training"]
    assert (training["minibatch"], training["train_s"], training["waited_s"]) == (150, 13.0, 30.0)
    one.handle(ClusterSeen(at_s=6.0, jobs_gone=("12_3",)))
    assert views.why(one.state, "12_3") is None
    assert one.state.figures == {}


def test_figures_are_in_the_journal() -> None:
    """As an event that brings all of it back."""
    one, again = machine(), Machine()
    again.handle(read_event(*written(one.state.remembered(9.0))))
    assert again.state.figures == one.state.figures
    assert views.why(again.state, "12_3") == views.why(one.state, "12_3")


def test_a_task_of_an_array_is_found_by_slurms_own_number() -> None:
    """12_3 is 15 to the nodes and to sacct; the array's number stands for its first task."""
    one = machine()
    assert (views.why(one.state, "15") or {})["job"] == "12_3"
    assert (one.state.key_of("15"), one.state.key_of("12_3")) == ("12_3", "12_3")
    last = replace(SIGHT, ref="12_4", number=12)
    one.handle(ClusterSeen(at_s=6.0, jobs=(last,)))
    assert (views.why(one.state, "12") or {})["job"] == "12_3"
    assert one.state.key_of("12") == "12", "an array's number names no single task"


@pytest.mark.parametrize(
    ("does", "reason", "state"),
    [
        ("training", "turn", "running"),
        ("paused", "waits_for_turn", "waits_for_turn"),
        ("parked", "waits_for_turn", "waits_for_turn"),
        ("paused", "next_turn", "waits_for_turn"),
        ("waiting_for_baton", "", "waits_for_turn"),
        ("parked", "operator", "parked"),
        ("paused", "operator", "paused"),
        ("parked", "owner_surged", "parked"),
        ("paused", "owner_without_hooks", "paused"),
    ],
)
def test_a_running_job_that_stands_still_is_told_apart(does: str, reason: str, state: str) -> None:
    """By what its processes do and why."""
    one = Machine()
    one.handle(ClusterSeen(at_s=1.0, jobs=(SIGHT,), complete=True))
    now = replace(FIRST, phase=does, node_reason=reason)
    one.handle(NodeReported(at_s=2.0, node="n1", jobs=(now,)))
    assert (views.why(one.state, "15") or {})["state"] == state


def test_what_is_told_twice_of_a_start_that_is_only_a_sum_counts_once() -> None:
    """Nodes tell the end of a start twice, and it may be long ago for the scheduler."""
    figures = Figures(key="1")
    for restart in range(MOST_STARTS + 5):
        where = f"n{restart % 2}"
        figures = taken(figures, where, replace(SECOND, restart=restart, began=restart))
    before = figures.total
    assert taken(figures, "n0", replace(SECOND, restart=0, began=0)) is figures
    assert figures.total == before
    assert (before.starts, before.moves) == (MOST_STARTS + 5, MOST_STARTS + 4)
    assert before.again == 60 * (MOST_STARTS + 4), "each start is compared with the one before it"


def test_many_steps_of_one_start_stay_small() -> None:
    """A loop of sruns inside one allocation: its earliest parts become one."""
    figures = Figures(key="1")
    for step in range(100):
        figures = taken(figures, "n1", replace(FIRST, began=step))
    assert len(figures.parts) <= MOST_PARTS_OF_A_NODE
    assert (figures.total.minibatches, figures.total.starts) == (100 * 130, 1)
