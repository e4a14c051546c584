# SPDX-License-Identifier: Apache-2.0
"""Jobs that Slurm lost with its controller: over a requeue they live again, if they are there."""

from __future__ import annotations

import pytest

from core_world import token
from fakes.slurm_cluster import FakeCluster, FakeNode
from fakes.slurm_commands import FakeCommands
from slipstream.core.commands import Extend, MakeGuest, Requeue, Resize, Start
from slipstream.core.moves import LOST
from slipstream.scheduler.enactor import Deeds
from slipstream.scheduler.hands import Hands
from slipstream.scheduler.orders import Orders
from slipstream.scheduler.sink import SinkError
from slipstream.slurm_plugin import CliSlurm
from slipstream.slurm_plugin.requests import Submission

pytestmark = pytest.mark.unit


@pytest.fixture
def cluster() -> FakeCluster:
    """A job of ours that has failed on the only node."""
    one = FakeCluster([FakeNode("n1", 8, {"gpu": 1})], {})
    CliSlurm(FakeCommands(one)).submit(Submission(script="#!/bin/sh\n"))
    one.advance(1.0)
    (job,) = one.jobs.values()
    job.admin_comment = f"[slipstream v=1 token={token(1)}]"
    job.state, job.ended_at_s = "FAILED", one.now_s
    return one


def requeue(cluster: FakeCluster) -> None:
    """As a move asks for it."""
    (job,) = cluster.jobs.values()
    command = Requeue(token(1), "1", 1, int(job.submitted_at_s))
    Hands(CliSlurm(FakeCommands(cluster)), sleep=lambda _s: None).requeue(command)


def test_what_was_lost_over_a_requeue_is_requeued(cluster: FakeCluster) -> None:
    """Slurm's own reason tells it from a training that failed."""
    (job,) = cluster.jobs.values()
    job.reason = LOST
    requeue(cluster)
    cluster.advance(1.0)
    assert (job.state, job.restarts) == ("PENDING", 1)


def test_a_training_that_failed_stays_so(cluster: FakeCluster) -> None:
    """Its user is to look at it."""
    (job,) = cluster.jobs.values()
    job.reason = "NonZeroExitCode"
    with pytest.raises(SinkError, match="it is FAILED"):
        requeue(cluster)
    assert (job.state, job.restarts) == ("FAILED", 0)


@pytest.mark.parametrize(
    "command",
    [
        Requeue(token(2), "1", 1),
        Start(token(2), "1", 1, ("n1",)),
        Resize(token(2), "1", 2),
        MakeGuest(token(2), "1", 1),
        Extend(token(2), "1", 0, 60),
    ],
    ids=lambda one: type(one).__name__,
)
def test_a_number_that_slurm_gave_to_another_job_is_not_touched(
    cluster: FakeCluster, command: Requeue | Start | Resize | MakeGuest | Extend
) -> None:
    """Slurmctld was killed, has forgotten the job, and the next one has its number."""
    slurm = CliSlurm(FakeCommands(cluster))
    before = slurm.jobs()
    deeds = Deeds(Orders(), Hands(slurm, sleep=lambda _s: None))
    with pytest.raises(SinkError, match="job 1 is another one than it was"):
        deeds.carry_out(command)
    assert slurm.jobs() == before
