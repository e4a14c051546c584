# SPDX-License-Identifier: Apache-2.0
"""slurmctld goes away and comes back: nobody takes that for an empty queue."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from contract.bench import eventually
from slipstream.slurm_plugin import (
    Changes,
    JobState,
    JobUpdate,
    Poller,
    SlurmError,
    Snapshot,
    Submission,
)
from slipstream.slurm_plugin.pace import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from contract.bench import Bench
    from slipstream.slurm_plugin import Slurm

pytestmark = [pytest.mark.contract, pytest.mark.timeout(180)]


@pytest.fixture
def away(bench: Bench) -> Iterator[Bench]:
    """A bench whose controller is gone; it is back afterwards."""
    bench.stop_controller()
    yield bench
    bench.start_controller()


REQUESTS: dict[str, Callable[[Slurm], object]] = {
    "jobs": lambda slurm: slurm.jobs(),
    "nodes": lambda slurm: slurm.nodes(),
    "topology": lambda slurm: slurm.topology(),
    "suspend": lambda slurm: slurm.suspend(1),
    "update": lambda slurm: slurm.update(1, JobUpdate(comment="x")),
    "cancel": lambda slurm: slurm.cancel(1),
    "submit": lambda slurm: slurm.submit(Submission(script="#!/bin/bash\n")),
}


def test_every_request_says_that_nobody_answers(away: Bench) -> None:
    """Not an empty queue, not an unknown job: whatever Slurm's own words are."""
    assert not away.slurm.ping()
    # At once, because each command tries for 9 s before it gives up.
    with ThreadPoolExecutor(len(REQUESTS)) as pool:
        asked = {name: pool.submit(request, away.slurm) for name, request in REQUESTS.items()}
    for name, answer in asked.items():
        error = answer.exception()
        assert isinstance(error, SlurmError), (name, error)
        assert error.unreachable, (name, error)


def test_the_poller_keeps_what_it_saw(bench: Bench) -> None:
    """It tells of the job, of its end, and in between of a controller that was away."""
    told: list[tuple[Snapshot, Changes]] = []
    poller = Poller(bench.slurm)
    poller.subscribe(lambda snapshot, changes: told.append((snapshot, changes)))
    poller.poll()
    job_id = bench.slurm.submit(Submission(script=bench.script, stdout_path="/dev/null"))

    def runs() -> bool:
        poller.poll()
        now = {job.job_id: job.state for job in poller.snapshot().jobs}
        return now.get(job_id) is JobState.RUNNING

    eventually(bench, runs)
    assert job_id in {job.job_id for _, changes in told for job in changes.added}
    bench.wait(6.0)  # slurmctld writes its state down within 5 s: a job younger than that is lost
    eventually(bench, lambda: poller.poll() is Outcome.QUIET)

    bench.stop_controller()
    seen = poller.snapshot()
    assert poller.poll() is Outcome.AWAY
    away = poller.snapshot()
    assert (away.jobs, away.nodes, away.at_s) == (seen.jobs, seen.nodes, seen.at_s)
    assert away.stale
    assert told[-1] == (away, Changes())
    assert poller.poll() is Outcome.AWAY
    assert poller.snapshot().failures == 2

    bench.start_controller()
    assert poller.poll() is Outcome.CHANGED
    assert not poller.snapshot().stale
    bench.slurm.cancel(job_id)
    poller.poll()
    ended = [new for _, changes in told for old, new in changes.changed if new.job_id == job_id]
    assert ended[-1].state is not JobState.RUNNING
