# SPDX-License-Identifier: Apache-2.0
"""What is done to jobs in Slurm for a move: requeue, and let it start again. Seldom, and with care.

Requeues are expensive for Slurm: at most a few in a second, whoever wants them.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from slipstream.scheduler.sink import SinkError
from slipstream.slurm_plugin.errors import Kind, SlurmError
from slipstream.slurm_plugin.identity import parse_job_ref
from slipstream.slurm_plugin.records import each_task
from slipstream.slurm_plugin.soft_hold import Bind, update_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slipstream.core.commands import Requeue, Start
    from slipstream.slurm_plugin.protocol import Slurm
    from slipstream.slurm_plugin.records import Job

_LOG = logging.getLogger(__name__)
_REQUEUES_PER_S: Final = 5


class Hands:
    """Carries out what only Slurm can do. Raises `SinkError` where Slurm would not."""

    def __init__(
        self,
        slurm: Slurm,
        jobs: Callable[[], Iterable[Job]],
        nudge: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
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
        found = (job for job in each_task(self._jobs()) if str(job.ref) == command.key)
        job = next(found, None)
        if job is None:
            raise SinkError(f"job {command.key} is not in the queue")
        change = update_for(job, Bind(command.nodes))
        self._do("started", lambda: self._slurm.update(job.ref, change))

    def _do(self, what: str, deed: Callable[[], None]) -> None:
        try:
            deed()
        except SlurmError as error:
            if error.kind is not Kind.TIMED_OUT:
                raise SinkError(f"it could not be {what}: {error}") from error
            _LOG.warning("whether a job was %s is not known: %s", what, error)
        self._nudge()
