# SPDX-License-Identifier: Apache-2.0
"""Records, what is read off them, and why not to ask for something."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.slurm_plugin import (
    Gres,
    Job,
    JobFlag,
    JobState,
    Node,
    NodeFlag,
    NodeState,
    TaskId,
    each_task,
)
from slipstream.slurm_plugin.obstacles import (
    Obstacle,
    requeue_obstacle,
    signal_obstacle,
    suspend_obstacle,
)
from slipstream.slurm_plugin.records import Array, Asked, NodeShare, Times
from slipstream.slurm_plugin.snapshot import gres_in_use

pytestmark = pytest.mark.unit

RUNS = Job(
    job_id=7,
    uid=1000,
    partition="batch",
    priority=1,
    state=JobState.RUNNING,
    asked=Asked(),
    times=Times(submitted_at_s=1),
)


def test_a_plain_job_is_named_by_its_number() -> None:
    """And a task never: the last one of an array has the array's."""
    assert RUNS.ref == 7
    assert replace(RUNS, array=Array(7, 3)).ref == TaskId(7, 3)
    assert replace(RUNS, array=Array(7, None, (4, 5))).ref == 7


def test_a_waiting_array_is_taken_apart() -> None:
    """Into jobs that differ by their task only; other jobs stay as they are."""
    waiting = replace(RUNS, state=JobState.PENDING, array=Array(7, None, (4, 5), 2))
    tasks = each_task([RUNS, waiting])
    assert [job.ref for job in tasks] == [7, TaskId(7, 4), TaskId(7, 5)]
    assert tasks[1].array == Array(7, 4, (), 2)
    assert replace(tasks[1], array=waiting.array) == waiting


@pytest.mark.parametrize(
    ("state", "flags", "takes_jobs"),
    [
        (NodeState.IDLE, NodeFlag.NONE, True),
        (NodeState.MIXED, NodeFlag.PLANNED | NodeFlag.COMPLETING, True),
        (NodeState.IDLE, NodeFlag.DRAIN, False),
        (NodeState.IDLE, NodeFlag.NOT_RESPONDING, False),
        (NodeState.DOWN, NodeFlag.NONE, False),
        (NodeState.FUTURE, NodeFlag.NONE, False),
    ],
)
def test_a_node_takes_jobs_if_it_works_and_is_open(
    state: NodeState, flags: NodeFlag, *, takes_jobs: bool
) -> None:
    """Planned for a large job is still open to small ones."""
    node = Node(name="n1", state=state, flags=flags, cpus=8, memory_mib=1)
    assert node.takes_jobs is takes_jobs


def test_indices_in_use_are_collected_from_jobs() -> None:
    """Per node and name, in order; slots are in use without a number."""
    first = replace(RUNS, holds=(NodeShare("n1", (Gres("gpu", "a100", 1, (2,)),)),))
    second = replace(
        RUNS,
        holds=(
            NodeShare("n1", (Gres("gpu", "a100", 2, (0, 1)), Gres("slot", "", 2))),
            NodeShare("n2", (Gres("gpu", "a100", 1, (3,)),)),
        ),
    )
    assert gres_in_use([first, second, RUNS]) == {
        "n1": {"gpu": (0, 1, 2), "slot": ()},
        "n2": {"gpu": (3,)},
    }


@pytest.mark.parametrize(
    ("job", "obstacle"),
    [
        pytest.param(RUNS, None, id="a running batch job"),
        pytest.param(replace(RUNS, batch=False), Obstacle.NOT_BATCH, id="no script"),
        pytest.param(replace(RUNS, requeueable=False), Obstacle.NOT_REQUEUEABLE, id="--no-requeue"),
        pytest.param(replace(RUNS, state=JobState.PENDING), Obstacle.PENDING, id="pending"),
        pytest.param(replace(RUNS, state=JobState.SUSPENDED), Obstacle.SUSPENDED, id="suspended"),
        pytest.param(replace(RUNS, state=JobState.FAILED), Obstacle.ENDED, id="ended"),
        pytest.param(
            replace(RUNS, state=JobState.UNTOLD, flags=JobFlag.COMPLETING),
            Obstacle.COMPLETING,
            id="completing, as 22.05 tells it",
        ),
        pytest.param(
            replace(RUNS, state=JobState.FAILED, flags=JobFlag.COMPLETING),
            Obstacle.COMPLETING,
            id="completing, as later versions tell it",
        ),
    ],
)
def test_a_requeue_has_its_obstacles(job: Job, obstacle: Obstacle | None) -> None:
    """Each is a word for a log, a metric and a user."""
    assert requeue_obstacle(job) is obstacle


def test_suspend_and_signal_are_for_running_jobs() -> None:
    """A script is not needed for that."""
    for look in (suspend_obstacle, signal_obstacle):
        assert look(replace(RUNS, batch=False, requeueable=False)) is None
        assert look(replace(RUNS, state=JobState.PENDING)) is Obstacle.PENDING
