# SPDX-License-Identifier: Apache-2.0
"""Arrays: each task is a job, on the fake and on real clusters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from contract.bench import eventually
from contract.verbs import look, submit, until
from slipstream.slurm_plugin import Job, JobState, JobUpdate, TaskId, each_task

if TYPE_CHECKING:
    from contract.bench import Bench

pytestmark = [pytest.mark.contract, pytest.mark.timeout(120)]


def test_an_array_is_its_tasks(bench: Bench) -> None:
    """Each task is a job with a name of its own, running or waiting."""
    array = submit(bench, array=(1, 2, 3, 7, 9), array_most_at_once=2)

    def two_run() -> list[Job] | None:
        found = [job for job in each_task(bench.slurm.jobs()) if job.state is JobState.RUNNING]
        return found if len(found) == 2 else None

    first = eventually(bench, two_run)
    assert [job.ref for job in first] == [TaskId(array, 1), TaskId(array, 2)]
    assert len({job.job_id for job in first}) == 2
    bench.wait(2.0)
    tasks = [job for job in each_task(bench.slurm.jobs()) if job.state is JobState.PENDING]
    assert [job.ref for job in tasks] == [TaskId(array, 3), TaskId(array, 7), TaskId(array, 9)]
    assert {job.array.most_at_once for job in tasks if job.array} == {2}


def test_one_task_is_changed_and_the_others_are_not(bench: Bench) -> None:
    """Hold and update take a task that has no number of its own yet; a number means all tasks."""
    array = submit(bench, array=(0, 1, 2), held=True, time_limit_s=600)
    bench.slurm.update(TaskId(array, 1), JobUpdate(time_limit_s=1200))
    bench.slurm.release(TaskId(array, 1))
    until(bench, TaskId(array, 1), JobState.RUNNING)
    others = [look(bench, TaskId(array, task)) for task in (0, 2)]
    assert [(job.held, job.time_limit_s) for job in others] == [(True, 600), (True, 600)]
    assert look(bench, TaskId(array, 1)).time_limit_s == 1200
    bench.slurm.release(array)
    for task in (0, 1, 2):
        until(bench, TaskId(array, task), JobState.RUNNING)
    bench.slurm.suspend(TaskId(array, 2))
    states = [look(bench, TaskId(array, task)).state for task in (0, 1, 2)]
    assert states == [JobState.RUNNING, JobState.RUNNING, JobState.SUSPENDED]


def test_no_task_of_a_large_array_is_cut_off(bench: Bench) -> None:
    """Slurm's commands end long task lists in dots unless they are told not to."""
    wanted = tuple(task for task in range(400) if task % 7 in (0, 3))
    array = submit(bench, array=wanted, held=True)
    (record,) = [job for job in bench.slurm.jobs() if job.job_id == array]
    assert record.array is not None
    assert record.array.waiting_task_ids == wanted
