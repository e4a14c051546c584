# SPDX-License-Identifier: Apache-2.0
"""What the contract's tests do all the time: submit, look, wait for a state, catch an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from contract.bench import eventually
from slipstream.slurm_plugin import Gres, Job, JobState, SlurmError, Submission, each_task

if TYPE_CHECKING:
    from collections.abc import Callable

    from contract.bench import Bench
    from slipstream.slurm_plugin import JobRef

HOSTILE = "a \"b\" 'c' \\n = JobId=7 | ;$(reboot) %j \t é\n日本, #"
ONE_GPU = (Gres("gpu"),)


def submit(bench: Bench, **wanted: object) -> int:
    """A job that runs until it is ended."""
    options = {"script": bench.script, "stdout_path": "/dev/null", **wanted}
    return bench.slurm.submit(Submission(**options))  # type: ignore[arg-type]


def look(bench: Bench, ref: JobRef) -> Job:
    """One job as Slurm shows it now."""
    jobs = {job.ref: job for job in each_task(bench.slurm.jobs())}
    return jobs[ref]


def until(bench: Bench, ref: JobRef, state: JobState) -> Job:
    """The job as soon as it is in a state and no more on its way out of another."""

    def there() -> Job | None:
        job = look(bench, ref)
        return job if job.state is state and not job.completing else None

    return eventually(bench, there)


def running(bench: Bench, **wanted: object) -> Job:
    """A job that runs."""
    return until(bench, submit(bench, **wanted), JobState.RUNNING)


def failure(act: Callable[[], object]) -> SlurmError:
    """The error an operation ends with."""
    with pytest.raises(SlurmError) as raised:
        act()
    return raised.value
