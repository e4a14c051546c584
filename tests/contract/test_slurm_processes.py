# SPDX-License-Identifier: Apache-2.0
"""Signals, processes, and jobs that are not there; the fake and real clusters."""

from __future__ import annotations

from functools import partial
from signal import SIGUSR1
from typing import TYPE_CHECKING

import pytest

from contract.bench import eventually
from contract.verbs import failure, look, running, submit
from slipstream.slurm_plugin import JobState, JobUpdate, Kind, SignalTo, TaskId

if TYPE_CHECKING:
    from collections.abc import Callable

    from contract.bench import Bench
    from slipstream.slurm_plugin import JobRef, Slurm

pytestmark = [pytest.mark.contract, pytest.mark.timeout(120)]


def test_a_signal_reaches_the_batch_script(bench: Bench) -> None:
    """And only the script: its children are not told."""
    job = running(bench)
    bench.pid_of(job.job_id)
    bench.slurm.signal(job.ref, SIGUSR1, SignalTo.BATCH)
    assert eventually(bench, lambda: bench.signals_of(job.job_id)) == ["USR1"]
    assert look(bench, job.ref).state is JobState.RUNNING


def test_the_processes_of_a_job_are_listed(bench: Bench) -> None:
    """The batch script with its process number; nothing where the job is not."""
    job = running(bench, required_nodes=("n2",))
    pid = bench.pid_of(job.job_id)
    found = {process.pid: process for process in bench.slurm.list_pids(job.job_id, "n2")}
    assert (found[pid].step, found[pid].task) == ("batch", 0)
    assert failure(lambda: bench.slurm.list_pids(job.job_id, "n1")).kind is Kind.NOT_ON_NODE


OPERATIONS: dict[str, Callable[[Slurm, JobRef], object]] = {
    "suspend": lambda slurm, ref: slurm.suspend(ref),
    "resume": lambda slurm, ref: slurm.resume(ref),
    "requeue": lambda slurm, ref: slurm.requeue(ref),
    "requeue_hold": lambda slurm, ref: slurm.requeue_hold(ref),
    "hold": lambda slurm, ref: slurm.hold(ref),
    "release": lambda slurm, ref: slurm.release(ref),
    "cancel": lambda slurm, ref: slurm.cancel(ref),
    "signal": lambda slurm, ref: slurm.signal(ref, SIGUSR1, SignalTo.BATCH),
    "update": lambda slurm, ref: slurm.update(ref, JobUpdate(comment="x")),
}


def test_an_unknown_job_is_told_as_such_by_every_operation(bench: Bench) -> None:
    """However Slurm words it; and so is a task that its array does not have."""
    array = submit(bench, array=(1, 2), held=True)
    for ref in (999_999, TaskId(999_999, 1), TaskId(array, 77)):
        for name, operation in OPERATIONS.items():
            error = failure(partial(operation, bench.slurm, ref))
            assert (error.kind, error.gone) == (Kind.UNKNOWN_JOB, True), (name, ref, error)
    assert failure(lambda: bench.slurm.list_pids(999_999, "n1")).kind is Kind.NOT_ON_NODE


def test_what_a_waiting_job_cannot_do_is_told_as_such(bench: Bench) -> None:
    """Suspend, resume and requeue are for jobs that run."""
    job_id = submit(bench, held=True)
    for name in ("suspend", "resume", "requeue", "requeue_hold"):
        error = failure(partial(OPERATIONS[name], bench.slurm, job_id))
        assert error.kind is Kind.WRONG_STATE, (name, error)
