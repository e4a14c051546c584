# SPDX-License-Identifier: Apache-2.0
"""What changed between two polls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.slurm_plugin import (
    Changes,
    Job,
    JobState,
    Kind,
    Node,
    NodeState,
    SlurmError,
    Snapshot,
    TaskId,
)
from slipstream.slurm_plugin.records import Array, Asked, Times
from slipstream.slurm_plugin.snapshot import changes_between

pytestmark = pytest.mark.unit

PENDING = Job(
    job_id=7,
    uid=0,
    partition="batch",
    priority=1,
    state=JobState.PENDING,
    asked=Asked(),
    times=Times(submitted_at_s=1),
)
RUNNING = replace(PENDING, state=JobState.RUNNING, nodes=("n1",))
OTHER = replace(RUNNING, job_id=8)
N1 = Node(name="n1", state=NodeState.IDLE, cpus=8, memory_mib=1)
N2 = replace(N1, name="n2")


def between(before: tuple[Job, ...], after: tuple[Job, ...]) -> Changes:
    """The changes from one queue to the next."""
    return changes_between(Snapshot(before), Snapshot(after))


def test_nothing_changed_is_no_change() -> None:
    """Also of many jobs."""
    assert not between((PENDING, OTHER), (PENDING, OTHER))


def test_jobs_come_change_and_go() -> None:
    """Each with what it was and what it is."""
    assert between((), (PENDING,)) == Changes(added=(PENDING,))
    assert between((PENDING, OTHER), (RUNNING, OTHER)) == Changes(changed=((PENDING, RUNNING),))
    assert between((PENDING, OTHER), (OTHER,)) == Changes(gone=(PENDING,))


def test_a_new_estimate_is_no_news() -> None:
    """Slurm makes one for each pending job at every pass; a start that happened is news."""
    estimate = replace(PENDING, times=replace(PENDING.times, started_at_s=99, ended_at_s=199))
    assert not between((PENDING,), (estimate,))
    started = replace(RUNNING, times=replace(RUNNING.times, started_at_s=5))
    assert between((RUNNING,), (started,))


def test_a_task_that_starts_is_the_same_job_as_before() -> None:
    """Although Slurm has given it a record and a number of its own."""
    waiting = replace(PENDING, array=Array(7, None, (1, 2, 3)))
    left = replace(waiting, array=Array(7, None, (2, 3)))
    started = replace(RUNNING, job_id=12, array=Array(7, 1))
    changes = between((waiting,), (left, started))
    assert (changes.added, changes.gone) == ((), ())
    ((before, after),) = changes.changed
    assert before.ref == after.ref == TaskId(7, 1)
    assert (before.state, after.state) == (JobState.PENDING, JobState.RUNNING)


def test_the_last_task_keeps_the_arrays_number() -> None:
    """And is still told as the task it is."""
    waiting = replace(PENDING, array=Array(7, None, (3,)))
    started = replace(RUNNING, array=Array(7, 3))
    ((before, after),) = between((waiting,), (started,)).changed
    assert before.ref == after.ref == TaskId(7, 3)


def test_nodes_come_change_and_go() -> None:
    """As they are now; of those that are gone only the name is left."""
    drained = replace(N1, reason="bad cable")
    changes = changes_between(Snapshot(nodes=(N1, N2)), Snapshot(nodes=(drained,)))
    assert changes == Changes(nodes=(drained,), nodes_gone=("n2",))


def test_a_snapshot_knows_its_age() -> None:
    """Without end before the first poll, and it is stale after one that failed."""
    assert Snapshot().age_s(100.0) == float("inf")
    assert Snapshot().stale
    fresh = Snapshot(at_s=90.0)
    assert (fresh.age_s(100.0), fresh.stale) == (10.0, False)
    assert replace(fresh, error=SlurmError(("x",), "", Kind.UNREACHABLE)).stale


def test_a_snapshot_takes_arrays_apart_on_demand() -> None:
    """Once, however often it is asked."""
    snapshot = Snapshot((replace(PENDING, array=Array(7, None, (1, 2))),))
    assert [job.ref for job in snapshot.tasks] == [TaskId(7, 1), TaskId(7, 2)]
    assert snapshot.tasks is snapshot.tasks
    assert snapshot.gres_in_use == {}
