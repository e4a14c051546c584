# SPDX-License-Identifier: Apache-2.0
"""What is done to jobs in Slurm: requeue and start them for a move, swap GPUs for seats. With care.

Requeues are expensive for Slurm: at most a few in a second, whoever wants them.
"""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from slipstream.scheduler.sink import SinkError
from slipstream.slurm_plugin.errors import Kind, SlurmError
from slipstream.slurm_plugin.gres import Gres
from slipstream.slurm_plugin.identity import parse_job_ref
from slipstream.slurm_plugin.records import each_task
from slipstream.slurm_plugin.requests import JobUpdate
from slipstream.slurm_plugin.soft_hold import Bind, Hold, update_for
from slipstream.slurm_plugin.states import JobState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from slipstream.core.commands import MakeGuest, Requeue, Start
    from slipstream.slurm_plugin.protocol import Slurm
    from slipstream.slurm_plugin.records import Job

_LOG = logging.getLogger(__name__)
_REQUEUES_PER_S: Final = 5
_SWAP_S: Final = 30
"""How long a job is kept from starting while its GPUs become seats."""


class Hands:
    """Carries out what only Slurm can do. Raises `SinkError` where Slurm would not.

    Args:
        slurm: who does it.
        jobs: as they were last seen.
        nudge: asks for another look.
        clock: to keep requeues apart.
        sleep: the same.
        now: the date, for starts.
        alone: keeps others who write markers away meanwhile.
    """

    def __init__(
        self,
        slurm: Slurm,
        jobs: Callable[[], Iterable[Job]],
        nudge: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
        alone: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._now = now
        self._alone = alone
        self._slurm = slurm
        self._jobs = jobs
        self._nudge = nudge
        self._clock = clock
        self._sleep = sleep
        self._next_at_s = 0.0

    def requeue(self, command: Requeue) -> None:
        """Put it back into the queue; if Slurm did not answer, its queue will show."""
        wait_s = self._next_at_s - self._clock()
        if wait_s > 0:
            self._sleep(wait_s)
        self._next_at_s = max(self._clock(), self._next_at_s) + 1 / _REQUEUES_PER_S
        self._do("requeued", lambda: self._slurm.requeue(parse_job_ref(command.key)))

    def start(self, command: Start) -> None:
        """Take the two minutes from it that Slurm gives every requeued job, and bind it.

        The marker says that the binding is ours: should Slurm requeue it later, it is let go.
        """
        job = self._named(command.key)
        change = update_for(job, Bind(command.nodes))
        if command.gpus:
            change = _swapped(job, change, "slot", Gres("gpu", count=command.gpus))
        with self._alone():
            self._do("started", lambda: self._slurm.update(job.ref, change))

    def make_guest(self, command: MakeGuest) -> None:
        """Swap the GPUs a waiting job asks for by seats, and its role in the marker.

        It takes Slurm two requests, between which it asks for nothing: so it is held meanwhile, by
        a soft hold that whoever keeps jobs to their advice takes over, and that ends by itself.
        """
        job = self._named(command.key)
        if job.state is not JobState.PENDING or not job.asked.per_node:
            raise SinkError(f"job {command.key} does not wait for GPUs of a node")
        hold = update_for(job, Hold(int(self._now()) + _SWAP_S))
        marked = JobUpdate(admin_comment=hold.admin_comment)
        change = _swapped(job, marked, "gpu", Gres("slot", count=command.seats))
        with self._alone():
            self._do("held", lambda: self._slurm.update(job.ref, hold))
            self._do("given seats", lambda: self._slurm.update(job.ref, change))

    def _named(self, key: str) -> Job:
        found = (job for job in each_task(self._jobs()) if str(job.ref) == key)
        job = next(found, None)
        if job is None:
            raise SinkError(f"job {key} is not in the queue")
        return job

    def _do(self, what: str, deed: Callable[[], None]) -> None:
        try:
            deed()
        except SlurmError as error:
            if error.kind is not Kind.TIMED_OUT:
                raise SinkError(f"it could not be {what}: {error}") from error
            _LOG.warning("whether a job was %s is not known: %s", what, error)
        self._nudge()


def _swapped(job: Job, change: JobUpdate, gone: str, gres: Gres) -> JobUpdate:
    """The same change, with GPUs for seats or seats for GPUs, and the role in the marker."""
    rest = tuple(one for one in job.asked.per_node if one.name not in ("gpu", "slot"))
    was, now = ("guest", "owner") if gone == "slot" else ("owner", "guest")
    marked = (change.admin_comment or "").replace(f" role={was} ", f" role={now} ")
    return replace(change, gres_per_node=(*rest, gres), admin_comment=marked)
