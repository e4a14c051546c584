# SPDX-License-Identifier: Apache-2.0
"""Advice by soft hold, where no select wrapper follows the board: a thread that keeps jobs to it.

It acts on what the poller saw, and then not again until the poller has seen what became of it.
While it is not in use it takes back what it, or a daemon before it, has done to jobs.

Only what is required is carried out, which is said of guests alone: a preference is not worth that
an owner's start depends on us for a moment.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from slipstream.core.advice import advice_key
from slipstream.core.classes import Strength
from slipstream.scheduler.board_sink import for_slurm
from slipstream.scheduler.sink import SinkError
from slipstream.slurm_plugin import SlurmError
from slipstream.slurm_plugin.advice import AdviceError, boot_s, token_of
from slipstream.slurm_plugin.soft_hold import Moment, SoftHold

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from slipstream.core.advice import Advice
    from slipstream.slurm_plugin import Poller, Slurm, Snapshot
    from slipstream.slurm_plugin.advice import Advice as SlurmAdvice

_LOG = logging.getLogger(__name__)
_TICK_S: Final = 0.5
_AFTER_REFUSAL_S: Final = 5.0


class HoldSink:
    """Keeps pending jobs to their advice while it is in use.

    Args:
        slurm: who changes jobs.
        poller: what is seen of them; asked to look again after each change.
        lease_s: how long a job is held without being looked at again.
        in_use: whether to act; called before each tick.
        moving: the keys of jobs that are moved. Who moves them has bound them, and lets them go.
    """

    def __init__(
        self,
        slurm: Slurm,
        poller: Poller,
        lease_s: float,
        in_use: Callable[[], bool],
        moving: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._moving = moving
        self._hold = SoftHold(slurm, max(1, int(lease_s)))
        self._poller = poller
        self._in_use = in_use
        self._said: dict[str, SlurmAdvice] = {}
        self._acting = True
        self._let_go: Snapshot | None = None
        self._acted_at_s = 0.0
        self._changes = threading.Lock()
        self._wake = threading.Condition()
        self._news = False
        self._refused = False
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="soft-hold", daemon=True)

    def start(self) -> None:
        """Work until `stop`."""
        self._poller.subscribe(lambda _snapshot, _changes: self._look())
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End; what was done to jobs ends with their leases."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def ahead(self, advice: Advice) -> None:
        """Know of it before its job is seen: one that Lua has held would be let go."""
        required = _required([advice])
        with self._wake:
            self._said.update(required)  # nobody is woken: there is nothing to do yet

    def advise(self, advice: Advice) -> None:
        """Say it, in place of what was said of this job before."""
        required = _required([advice])
        with self._wake:
            self._said.pop(advice.key, None)
            self._said.update(required)
            self._tell()

    def withdraw(self, token: str, task: int | None) -> None:
        """Say nothing of this job any more."""
        with self._wake:
            self._said.pop(advice_key(token, task), None)
            self._tell()

    def replace(self, advice: Sequence[Advice]) -> None:
        """Exactly this."""
        required = _required(advice)
        with self._wake:
            self._said = required
            self._tell()

    def tick(self) -> None:
        """Do what is due now; raises what Slurm refuses."""
        snapshot = self._poller.snapshot()
        if snapshot.error or snapshot.at_s is None or snapshot.at_s <= self._acted_at_s:
            return
        self._acting = self._in_use()
        if not self._acting and snapshot is self._let_go:
            return
        with self._wake:
            said = tuple(self._said.values()) if self._acting else ()
        with self._changes:
            if snapshot.at_s <= self._acted_at_s:
                return  # somebody else has changed jobs meanwhile, and their markers
            moment = Moment(time.time(), boot_s())
            known, moving = {one.token for one in said}, frozenset(self._moving())
            jobs = [
                job
                for job in snapshot.jobs
                if str(job.ref) not in moving or token_of(job.admin_comment) in known
            ]
            if self._hold.tick(said, jobs, snapshot.nodes, moment):
                self._acted_at_s = time.time()
                self._poller.nudge()
        self._let_go = None if self._acting else snapshot

    @contextmanager
    def alone(self) -> Iterator[None]:
        """For who changes jobs himself: soft hold waits, and then looks at them again first."""
        with self._changes:
            yield
            self._acted_at_s = time.time()

    def _look(self) -> None:
        """The poller has seen something new: a job may be there that something is said of."""
        with self._wake:
            if not self._refused:
                self._tell()

    def _tell(self) -> None:
        """Wake the working thread, if it has anything to do with what is said."""
        if self._acting:
            self._news = True
            self._wake.notify()

    def _work(self) -> None:
        while not self._stopping:
            rest_s = _TICK_S
            try:
                self.tick()
            except SlurmError as error:
                _LOG.warning("soft hold: %s", error)
                rest_s = _AFTER_REFUSAL_S
            except Exception:  # noqa: BLE001 (a bug of ours must not end the letting go)
                _LOG.exception("soft hold failed")
                rest_s = _AFTER_REFUSAL_S
            with self._wake:
                self._refused = rest_s == _AFTER_REFUSAL_S
                self._wake.wait_for(lambda: self._stopping or self._news, rest_s)
                self._news = False


def _required(advice: Iterable[Advice]) -> dict[str, SlurmAdvice]:
    try:
        return {one.key: for_slurm(one) for one in advice if one.strength is Strength.REQUIRE}
    except AdviceError as error:
        raise SinkError(str(error)) from error
