# SPDX-License-Identifier: Apache-2.0
"""What Slurm would accept or answer badly although it harms: reasons not to ask. Pure.

Each function looks at a record, which may be a few seconds old: Slurm itself has the last word.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from slipstream.slurm_plugin.states import JobState

if TYPE_CHECKING:
    from slipstream.slurm_plugin.records import Job


class Obstacle(StrEnum):
    """Why an operation should not be asked for."""

    COMPLETING = "completing"
    """It is on its way out: a requeue now is refused, or the job is lost."""
    PENDING = "pending"
    """It does not run: Slurm refuses, or lets a signal wait for minutes."""
    ENDED = "ended"
    """It has ended: a requeue would start it once more, which nobody asked for."""
    SUSPENDED = "suspended"
    """It is suspended: resume it first, or a requeue leaves it held and a signal unheard."""
    NOT_BATCH = "not_batch"
    """It has no script to start again."""
    NOT_REQUEUEABLE = "not_requeueable"
    """Its user said --no-requeue."""


def requeue_obstacle(job: Job) -> Obstacle | None:
    """Why not to requeue it, or None."""
    if not job.batch:
        return Obstacle.NOT_BATCH
    if not job.requeueable:
        return Obstacle.NOT_REQUEUEABLE
    return _not_running(job)


def suspend_obstacle(job: Job) -> Obstacle | None:
    """Why not to suspend it, or None."""
    return _not_running(job)


def signal_obstacle(job: Job) -> Obstacle | None:
    """Why not to send it a signal, or None."""
    return _not_running(job)


def _not_running(job: Job) -> Obstacle | None:
    if job.completing:
        return Obstacle.COMPLETING
    if job.state is JobState.RUNNING:
        return None
    if job.state.ended:
        return Obstacle.ENDED
    return Obstacle.SUSPENDED if job.state is JobState.SUSPENDED else Obstacle.PENDING
