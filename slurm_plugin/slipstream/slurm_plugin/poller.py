# SPDX-License-Identifier: Apache-2.0
"""One poller for a whole daemon: two queries per poll, whatever the number of jobs.

Everybody who wants to know about jobs reads `snapshot()`, which never waits, or subscribes.
Nobody else asks Slurm for the state of a job.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from slipstream.slurm_plugin.errors import Kind, SlurmError
from slipstream.slurm_plugin.pace import Outcome, Pace, Poll, next_delay_s
from slipstream.slurm_plugin.snapshot import Changes, Snapshot, changes_between

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.slurm_plugin.protocol import Slurm

_LOG = logging.getLogger(__name__)
_REST_PER_POLL = 4
"""However often we are nudged, Slurm and our own interpreter have four fifths of the time free: a
long queue takes long to read, and submissions wait for their answer meanwhile."""
_HURRIED_S = 0.1
_SHORT_S = 0.5
"""What takes longer to read is read no more often for anybody's hurry."""


class Poller:
    """Polls Slurm in a thread of its own and keeps the last answer.

    Args:
        slurm: who is asked.
        pace: how often.
        clock: seconds since 1970, for the stamps in snapshots.
    """

    def __init__(
        self, slurm: Slurm, pace: Pace | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._slurm = slurm
        self._pace = pace or Pace()
        self._clock = clock
        self._snapshot = Snapshot()
        self._began_s = -math.inf
        self._subscribers: list[Callable[[Snapshot, Changes], None]] = []
        self._wake = threading.Condition()
        self._nudged = False
        self._hurried_until_s = -math.inf
        self._stopping = False
        self._thread: threading.Thread | None = None

    def snapshot(self) -> Snapshot:
        """What was seen last; at once, also while a poll is under way."""
        return self._snapshot

    def began_s(self) -> float:
        """When the last poll began, which may be under way."""
        return self._began_s

    def nudge(self) -> None:
        """Somebody knows that something changes: poll as soon as the pace allows."""
        with self._wake:
            self._nudged = True
            self._wake.notify()

    def hurry(self, seconds: float) -> None:
        """Somebody waits for a change that comes in moments: so long Slurm has half of the time.

        0: it has come.
        """
        with self._wake:
            self._hurried_until_s = time.monotonic() + seconds
            self._wake.notify()

    def subscribe(self, told: Callable[[Snapshot, Changes], None]) -> Callable[[], None]:
        """Have `told` called when something has changed; returns what ends that.

        It is called in the poller's thread and holds up the next poll while it works: first with
        every job as added, then after each poll with a change, and without one when Slurm went
        away (the snapshot has the error) or came back.
        """
        self._subscribers.append(told)
        return lambda: self._subscribers.remove(told)

    def start(self) -> None:
        """Poll until `stop`."""
        if self._thread is not None:
            raise RuntimeError("this poller was started already")
        self._thread = threading.Thread(target=self._work, name="slurm-poller", daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop after the poll that is under way."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def poll(self) -> Outcome:
        """One poll, now, in the caller's thread; `start` does this all the time."""
        before = self._snapshot
        self._began_s = self._clock()
        try:
            after = self._look(before)
        except SlurmError as error:
            # Without its traceback, which would keep Slurm's whole answer in memory.
            error.__traceback__ = None
            after = replace(before, error=error, failures=before.failures + 1)
        changes = changes_between(before, after)
        self._snapshot = after
        if changes or (before.error is None) != (after.error is None):
            self._tell(after, changes)
        if after.error:
            return Outcome.AWAY
        return Outcome.CHANGED if changes or before.error else Outcome.QUIET

    def _look(self, before: Snapshot) -> Snapshot:
        # A ping fails at once where the queries would each try for 9 s.
        if before.error and before.error.unreachable and not self._slurm.ping():
            raise SlurmError(("ping",), "no controller answers", Kind.UNREACHABLE)
        at_s = self._clock()
        return Snapshot(self._slurm.jobs(), self._slurm.nodes(), at_s)

    def _tell(self, snapshot: Snapshot, changes: Changes) -> None:
        for told in tuple(self._subscribers):
            try:
                told(snapshot, changes)
            except Exception:  # noqa: BLE001 (one subscriber's bug must not blind the others)
                _LOG.exception("a subscriber of the Slurm poller failed")

    def _work(self) -> None:
        waited_s = 0.0
        while not self._stopping:
            began_s = time.monotonic()
            outcome = self._poll_whatever_happens()
            # Nobody was busy with a question that nobody took: its 9 s of trying ask for no rest.
            took_s = 0.0 if self._is_unreachable() else time.monotonic() - began_s
            last = Poll(outcome, took_s, waited_s, self._snapshot.failures)
            least_s = max(_REST_PER_POLL * took_s, self._pace.fastest_s)
            delay_s = max(next_delay_s(self._pace, last), least_s)
            waited_s = self._rest(delay_s, least_s, took_s)

    def _is_unreachable(self) -> bool:
        return self._snapshot.error is not None and self._snapshot.error.unreachable

    def _poll_whatever_happens(self) -> Outcome:
        try:
            return self.poll()
        except Exception as error:  # noqa: BLE001 (a bug of ours must not end the polling)
            _LOG.exception("the Slurm poller failed")
            failure = SlurmError(("poll",), repr(error), Kind.OTHER)
            failures = self._snapshot.failures + 1
            self._snapshot = replace(self._snapshot, error=failure, failures=failures)
            return Outcome.AWAY

    def _rest(self, delay_s: float, least_s: float, took_s: float) -> float:
        """Wait for the delay; a nudge shortens it to `least_s`, and the next ones with it."""
        hurried_s = min(max(took_s, _HURRIED_S), least_s) if took_s < _SHORT_S else least_s
        with self._wake:
            self._wake.wait_for(lambda: self._stopping, timeout=hurried_s)
            self._wake.wait_for(
                lambda: self._stopping or self._is_hurried(), timeout=least_s - hurried_s
            )
            woken = self._wake.wait_for(
                lambda: self._stopping or self._nudged or self._is_hurried(),
                timeout=delay_s - least_s,
            )
            self._nudged = False
        return least_s if woken else delay_s

    def _is_hurried(self) -> bool:
        """Never while Slurm is away: that is no change that comes in moments."""
        return self._snapshot.error is None and time.monotonic() < self._hurried_until_s
