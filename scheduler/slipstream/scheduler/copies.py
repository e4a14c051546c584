# SPDX-License-Identifier: Apache-2.0
"""Remembers which jobs have a durable copy, and has those removed whose jobs are long gone.

Only what this scheduler had carried itself is ever removed, by a process of the job's user on one
of the nodes that listen. Used in the event loop; the file is small and written as a whole.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from slipstream.core.copies import Copy
from slipstream.scheduler.sink import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slipstream.core.events import JobSaved
    from slipstream.core.state import State
    from slipstream.scheduler.messages import Discarded
    from slipstream.scheduler.orders import Orders

_LOG = logging.getLogger(__name__)
FILE: Final = "copies.json"
_LOOK_EVERY_S: Final = 5.0


class Copies:
    """All durable copies of this cluster.

    Args:
        state_dir: where they are remembered.
        keep_s: for how long after Slurm has forgotten a job.
        orders: the nodes that can be asked.
        clock: seconds since 1970.
    """

    def __init__(
        self, state_dir: Path, keep_s: float, orders: Orders, clock: Callable[[], float] = time.time
    ) -> None:
        self._path = state_dir / FILE
        self._keep_s = keep_s
        self._orders = orders
        self._clock = clock
        self._look_at_s = 0.0
        self._has_seen = False
        self._copies = self._load()

    def saved(self, told: JobSaved, state: State) -> None:
        """A node has carried a job, or part of it: also that has to go one day."""
        for record in state.jobs.values():
            if record.token and record.sight and str(record.sight.number) == told.job_id:
                copy = Copy(
                    job_id=told.job_id,
                    token=record.token,
                    uid=record.sight.uid,
                    saved_at_s=told.at_s,
                    bytes_carried=told.bytes_carried,
                    spilled=told.spilled,
                )
                known = self._copies.get(copy.key)
                if known and told.problem:
                    return
                self._keep({**self._copies, copy.key: copy})
                return

    def seen(self) -> None:
        """Slurm was looked at: before that the journal's jobs may be long gone, or back."""
        self._has_seen = True

    def tick(self, state: State) -> None:
        """Every few seconds: whose job is gone, and which of those are due."""
        now_s = self._clock()
        if not self._has_seen or state.slurm_away or now_s < self._look_at_s:
            return
        self._look_at_s = now_s + _LOOK_EVERY_S
        known = {f"{one.sight.number}-{one.token}" for one in state.jobs.values() if one.sight}
        looked = {
            key: copy.looked_for(now_s, known=key in known) for key, copy in self._copies.items()
        }
        if state.advising:
            looked = {
                key: self._asked(copy, now_s) if copy.is_due(now_s, self._keep_s) else copy
                for key, copy in looked.items()
            }
        if looked != self._copies:
            self._keep(looked)

    def discarded(self, told: Discarded) -> None:
        """A node has removed one, or could not."""
        copy = self._copies.get(f"{told.job_id}-{told.token}")
        if copy is None:
            return
        if told.problem:
            _LOG.warning("the copy of job %s stays: %s", copy.job_id, told.problem)
            self._keep({**self._copies, copy.key: replace(copy, problem=told.problem)})
            return
        _LOG.info("the copy of job %s is removed", copy.job_id)
        self._keep({key: one for key, one in self._copies.items() if key != copy.key})

    def told(self) -> list[dict[str, Any]]:
        """For those who want to know what is kept, and until when."""
        return [
            {**asdict(copy), "goes_at_s": copy.goes_at_s(self._keep_s)}
            for _, copy in sorted(self._copies.items())
        ]

    def _asked(self, copy: Copy, now_s: float) -> Copy:
        try:
            self._orders.discard(copy)
        except SinkError as error:
            return replace(copy, asked_at_s=now_s, problem=str(error))
        return replace(copy, asked_at_s=now_s, problem="")

    def _keep(self, copies: dict[str, Copy]) -> None:
        """What is lost of this is kept too long, never removed too early."""
        self._copies = copies
        draft = self._path.with_suffix(".draft")
        try:
            with draft.open("wb") as file:
                file.write(msgspec.json.encode(list(copies.values())))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError as error:
            _LOG.error("which copies there are could not be written down: %s", error)

    def _load(self) -> dict[str, Copy]:
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=list[Copy])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            _LOG.error("%s could not be read, the copies in it are not removed: %s", FILE, error)
            return {}
        return {copy.key: copy for copy in found}
