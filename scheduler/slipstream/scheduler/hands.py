# SPDX-License-Identifier: Apache-2.0
"""What is done to jobs in Slurm: requeue, start and resize them, swap GPUs for seats, give time.

Slurm is looked at before each deed: a scheduler that was killed does not know which of them it has
done, and asks for all again. Requeues are expensive for Slurm: at most a few in a second, whoever
wants them.
"""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from slipstream.core.moves import LOST
from slipstream.scheduler.marker import words_of
from slipstream.scheduler.placeholders import holds_for, submission
from slipstream.scheduler.sink import SinkError
from slipstream.slurm_plugin.advice import token_of
from slipstream.slurm_plugin.errors import Kind, SlurmError
from slipstream.slurm_plugin.gres import Gres
from slipstream.slurm_plugin.records import each_task
from slipstream.slurm_plugin.requests import JobUpdate
from slipstream.slurm_plugin.soft_hold import Bind, Hold, update_for, with_word
from slipstream.slurm_plugin.states import JobState

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from slipstream.core.commands import (
        Extend,
        GiveBack,
        MakeGuest,
        Requeue,
        Resize,
        Start,
        Upgrade,
    )
    from slipstream.slurm_plugin.protocol import Slurm
    from slipstream.slurm_plugin.records import Job

_LOG = logging.getLogger(__name__)
_REQUEUES_PER_S: Final = 5
_COMPLETES_S: Final = 3.0
"""How long Slurm is looked at closely for the end of a job that was requeued."""
_SWAP_S: Final = 30
"""How long a job is kept from starting while its GPUs become seats."""


class Hands:
    """Carries out what only Slurm can do. Raises `SinkError` where Slurm would not.

    Args:
        slurm: who does it.
        nudge: asks for another look.
        hurry: asks for many, for so many seconds: a requeued job is started when it waits again.
        clock: to keep requeues apart.
        sleep: the same.
        now: the date, for starts.
        alone: keeps others who write markers away meanwhile.
    """

    def __init__(
        self,
        slurm: Slurm,
        nudge: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
        alone: Callable[[], AbstractContextManager[None]] = nullcontext,
        hurry: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self._hurry = hurry
        self._now = now
        self._alone = alone
        self._slurm = slurm
        self._nudge = nudge
        self._clock = clock
        self._sleep = sleep
        self._next_at_s = 0.0

    def requeue(self, command: Requeue) -> None:
        """Put it back into the queue, unless it is there since; no answer: its queue will show."""
        wait_s = self._next_at_s - self._clock()
        if wait_s > 0:
            self._sleep(wait_s)
        job = self._found(command)
        if _has_left(job, command):
            _LOG.info("job %s was requeued before", command.key)
            self._nudge()
            return
        lost = job.state is JobState.FAILED and job.reason == LOST
        if job.state is not JobState.RUNNING and not lost:
            raise SinkError(f"it could not be requeued: it is {job.state}")
        self._next_at_s = max(self._clock(), self._next_at_s) + 1 / _REQUEUES_PER_S
        try:
            self._slurm.requeue(job.ref)
        except SlurmError as error:
            if error.kind is not Kind.TIMED_OUT:
                raise SinkError(f"it could not be requeued: {error}") from error
            _LOG.warning("whether job %s was requeued is not known: %s", command.key, error)
        self._nudge()
        self._hurry(_COMPLETES_S)

    def start(self, command: Start) -> None:
        """Take the two minutes from it that Slurm gives every requeued job, and bind it.

        The marker says that the binding is ours: should Slurm requeue it later, it is let go. On
        the node that it left Slurm's two minutes are kept: see `Start.at_once`.
        """
        with self._alone():  # from the look on: its marker is written whole
            job = self._found(command)
            if job.state is JobState.RUNNING and not job.completing:
                _LOG.info("job %s was started before", command.key)
                return
            if job.state is not JobState.PENDING or job.completing:
                raise SinkError(
                    f"it could not be started: it is {job.state}, and may complete still"
                )
            change = update_for(job, Bind(command.nodes))
            if not command.at_once:
                change = replace(change, start_at_s=None)
            if command.size:
                change = _resized(job, change, command.size)
            elif command.gpus:
                change = _swapped(job, change, "slot", Gres("gpu", count=command.gpus))
            self._change(job, change, "started")
        self._hurry(0.0)
        self._nudge()

    def resize(self, command: Resize) -> None:
        """Let a waiting job ask for another number of GPUs; one request, so that none is missed."""
        with self._alone():
            job = self._found(command)
            if job.state is not JobState.PENDING:
                raise SinkError(f"job {command.key} does not wait: it is {job.state}")
            marked = JobUpdate(admin_comment=job.admin_comment)
            self._change(job, _resized(job, marked, command.size), "resized")
        self._nudge()

    def make_guest(self, command: MakeGuest) -> None:
        """Swap the GPUs a waiting job asks for by seats, and its role in the marker.

        It takes Slurm two requests, between which it asks for nothing: so it is held meanwhile, by
        a soft hold that whoever keeps jobs to their advice takes over, and that ends by itself.
        """
        with self._alone():
            job = self._found(command)
            if job.state is not JobState.PENDING or not job.asked.per_node:
                raise SinkError(f"job {command.key} does not wait for GPUs of a node")
            hold = update_for(job, Hold(int(self._now()) + _SWAP_S))
            marked = JobUpdate(admin_comment=hold.admin_comment)
            self._change(job, hold, "held")
            seats = Gres("slot", count=command.seats)
            self._change(job, _swapped(job, marked, "gpu", seats), "given seats")
        self._nudge()

    def extend(self, command: Extend) -> None:
        """Give a running job a later end, never later than its partition allows."""
        job = self._found(command)
        if job.state is not JobState.RUNNING or job.times.submitted_at_s != command.run:
            raise SinkError("the run that waited is over")
        if job.time_limit_s is None or job.time_limit_s >= command.limit_s:
            _LOG.info("job %s has its time already", command.key)
            return
        try:
            most_s = self._slurm.longest_s(job.partition)
        except SlurmError as error:
            raise SinkError(f"how long partition {job.partition} allows: {error}") from error
        limit_s = command.limit_s if most_s is None else min(command.limit_s, most_s)
        if limit_s <= job.time_limit_s:
            raise SinkError(f"partition {job.partition} allows no more than {most_s} s")
        self._change(job, JobUpdate(time_limit_s=limit_s), "given more time")
        self._nudge()

    def upgrade(self, command: Upgrade) -> None:
        """Submit a placeholder, unless there is one."""
        try:
            there = [job for job in self._slurm.jobs() if holds_for(job) == command.number]
            if any(not job.state.ended for job in there):
                _LOG.info("job %s has its placeholder already", command.number)
            else:
                longest_s = self._slurm.longest_s(command.partition)
                self._slurm.submit(submission(command, self._now(), longest_s))
        except SlurmError as error:
            raise SinkError(f"a placeholder could not be submitted: {error}") from error
        self._nudge()

    def give_back(self, command: GiveBack) -> None:
        """End a placeholder, and nothing that is none; one that has ended by itself is gone."""
        try:
            there = [job for job in self._slurm.jobs() if str(job.ref) == command.key]
            for job in there:
                if not holds_for(job):
                    raise SinkError(f"job {command.key} is no placeholder")
                self._slurm.cancel(job.ref)
        except SlurmError as error:
            raise SinkError(f"placeholder {command.key} could not be ended: {error}") from error
        self._nudge()

    def _change(self, job: Job, change: JobUpdate, what: str) -> None:
        try:
            self._slurm.update(job.ref, change)
        except SlurmError as error:
            raise SinkError(f"it could not be {what}: {error}") from error

    def _found(self, command: Requeue | Start | Resize | MakeGuest | Extend) -> Job:
        """The job as Slurm has it now: what was polled may be older than what we did.

        A slurmctld that was killed gives the numbers of jobs that it forgot to others.
        """
        key = command.key
        try:
            jobs = each_task(self._slurm.jobs())
        except SlurmError as error:
            raise SinkError(f"Slurm could not be asked for job {key}: {error}") from error
        job = next((one for one in jobs if str(one.ref) == key), None)
        if job is None:
            raise SinkError(f"job {key} is not in the queue")
        if token_of(job.admin_comment) != command.token:
            raise SinkError(f"job {key} is another one than it was")
        return job


def _has_left(job: Job, command: Requeue) -> bool:
    """Whether the run that was saved is over and the job goes on: nothing is left to do."""
    requeued = command.submitted_at_s not in (0, job.times.submitted_at_s)
    on_its_way = job.state is JobState.PENDING or (
        job.completing and job.state in (JobState.RUNNING, JobState.UNTOLD)
    )
    return on_its_way or (requeued and job.state is JobState.RUNNING)


def _resized(job: Job, change: JobUpdate, size: int) -> JobUpdate:
    """The same change, with another number of GPUs; in the marker if its user asked for others."""
    gpus = [one for one in job.asked.per_node if one.name == "gpu"]
    if len(gpus) != 1:
        raise SinkError(f"job {job.ref} does not ask for GPUs of each node: {job.asked}")
    words = words_of(job.admin_comment) or {}
    own = "" if words.get("gpus") == f"node:{size}" else str(size)
    comment = with_word(change.admin_comment or job.admin_comment, "size", own)
    counts = tuple(
        replace(one, count=size, indices=()) if one.name == "gpu" else one
        for one in job.asked.per_node
    )
    return replace(change, gres_counts=counts, admin_comment=comment)


def _swapped(job: Job, change: JobUpdate, gone: str, gres: Gres) -> JobUpdate:
    """The same change, with GPUs for seats or seats for GPUs, and the role in the marker."""
    rest = tuple(one for one in job.asked.per_node if one.name not in ("gpu", "slot"))
    was, now = ("guest", "owner") if gone == "slot" else ("owner", "guest")
    marked = (change.admin_comment or "").replace(f" role={was} ", f" role={now} ")
    # Seats are as many as its user asked for GPUs.
    marked = with_word(marked, "size", "") if marked else marked
    return replace(change, gres_per_node=(*rest, gres), admin_comment=marked)
