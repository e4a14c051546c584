# SPDX-License-Identifier: Apache-2.0
"""Jobs that Slurm's controller lost when it died over their move."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import looked
from moving_world import asked, kinds, running, saved, story, trains, waiting, with_a_training
from slipstream.core.commands import Requeue, Start
from slipstream.core.sights import JobSight, Standing

if TYPE_CHECKING:
    from slipstream.core.machine import Machine

pytestmark = pytest.mark.unit


@pytest.fixture
def one() -> Machine:
    """A restorable job on the first of three nodes."""
    return with_a_training()


def failed(reason: str) -> JobSight:
    """As Slurm shows a job that is over."""
    return replace(running(), standing=Standing.ENDED, slurm_reason=reason)


def test_a_job_that_slurm_lost_over_its_requeue_is_requeued_again(one: Machine) -> None:
    """Killed over it, Slurm looked for its processes, found none and took the job for failed."""
    one.handle(asked("n2"))
    one.handle(saved())
    assert kinds(one.handle(looked(113.0, failed("JobLaunchFailure")))).count(Requeue) == 1
    again = one.handle(looked(114.0, failed("JobLaunchFailure")))
    assert Requeue not in kinds(again), "once: what it shows may be old"
    assert Start in kinds(one.handle(waiting(115.0)))
    one.handle(looked(117.0, running(where="n2")))
    one.handle(trains("n2", 118.0))
    assert "moved, " in story(one)


def test_one_that_was_lost_where_it_had_started_waits_for_its_credential(one: Machine) -> None:
    """Slurm wrote neither its requeue nor its start down: to n2 again, when n2 takes it again."""
    one.handle(asked("n2"))
    one.handle(saved())
    one.handle(waiting(112.0))
    one.handle(looked(114.0, running(where="n2")))
    assert kinds(one.handle(looked(116.0, failed("JobLaunchFailure")))).count(Requeue) == 1
    (start,) = [one for one in one.handle(waiting(118.0)) if isinstance(one, Start)]
    assert not start.at_once
    one.handle(looked(250.0, replace(running(where="n2"), submitted_at_s=118)))
    one.handle(trains("n2", 252.0))
    assert "moved, " in story(one)


@pytest.mark.parametrize("reason", ["", "None", "NonZeroExitCode", "TimeLimit"])
def test_a_job_that_ends_by_itself_over_its_move_has_ended(one: Machine, reason: str) -> None:
    """Done, failed, cancelled or out of time: that is its own affair."""
    one.handle(asked("n2"))
    one.handle(saved())
    assert Requeue not in kinds(one.handle(looked(113.0, failed(reason))))
    assert one.state.moves == {}
    assert "its move ends with it" in story(one)
