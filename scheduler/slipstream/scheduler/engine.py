# SPDX-License-Identifier: Apache-2.0
"""The machine in the event loop: every event passes here, in one order, in one thread.

The answer to an event comes from memory. Journal and deeds follow in the enactor's thread, in the
same order.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slipstream.core import parking
from slipstream.core.breaker import Breaker
from slipstream.core.events import (
    CommandRefused,
    JobSubmitted,
    ModeChanged,
    MoveAsked,
    ResizeAsked,
    SwitchedOff,
    SwitchedOn,
    TimerFired,
)
from slipstream.core.placement import Placement
from slipstream.core.records import Phase
from slipstream.estimator import Estimator
from slipstream.scheduler.journal import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from slipstream.core.advice import Advice
    from slipstream.core.classes import Mode
    from slipstream.core.commands import Command
    from slipstream.core.events import Event, ParkAsked
    from slipstream.core.machine import Machine
    from slipstream.core.reasons import Reason
    from slipstream.estimator import Clues

_LOG = logging.getLogger(__name__)
_MOMENT_S: Final = 1.0


@dataclass(slots=True)
class Counters:
    """What an operator's alerts look at; metrics are read from here at scrape time."""

    events: int = 0
    commands: int = 0
    machine_errors: int = 0
    watch_errors: int = 0
    submissions: int = 0
    bad_submissions: int = 0
    strangers: int = 0
    """Peers that were not allowed to say what they wanted to say."""
    bad_reports: int = 0
    links: int = 0
    """Coordinators of other hosts that are there."""
    refused_links: Counter[str] = field(default_factory=Counter)
    """What came from other hosts and was not believed, by reason."""
    refused: int = 0
    breaker: Breaker = Breaker()  # noqa: RUF009 (frozen)
    """Whether Slurm is left alone by those who change jobs."""
    runs_written: int = 0
    runs_lost: int = 0
    """Runs and submissions that the history could not keep."""
    answer_s_max: float = 0.0
    answer_s_sum: float = 0.0


class Engine:
    """Takes events, gives commands to `put`.

    Args:
        machine: the decisions.
        put: takes entries for the journal; must return at once.
        disable_file: the kill switch; it is thrown while this exists.
        events_between_checkpoints: after how many events the journal starts afresh.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        machine: Machine,
        put: Callable[[Entry], None],
        disable_file: Path,
        events_between_checkpoints: int = 50_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.machine = machine
        self.counters = Counters()
        self.estimator = Estimator()
        self.ahead: Callable[[Advice], None] = lambda _advice: None
        """Gives Slurm the advice of a job that is about to be answered; must return at once."""
        self.asked: Callable[[Clues], None] = lambda _clues: None
        """Told of every submission, after it was answered; must return at once."""
        self.watch: Callable[[Event], None] = lambda _event: None
        """Told of every event, after it was decided about; must return at once."""
        self.before: Callable[[], None] = lambda: None
        """Called before anything but a submission is taken."""
        self._put = put
        self._disable_file = disable_file
        self._disable_file_name = os.fspath(disable_file)
        self._events_between_checkpoints = events_between_checkpoints
        self._since_checkpoint = 0
        self._clock = clock

    def take(self, event: Event) -> list[Command]:
        """Decide about an event; what follows from it is on its way when this returns."""
        if not isinstance(event, JobSubmitted):
            self.before()
        self.counters.events += 1
        self.counters.refused += isinstance(event, CommandRefused)
        try:
            commands = self.machine.handle(event)
        except Exception:  # noqa: BLE001 (a bug in one event must not end the others)
            # Not journalled: it would fail again at every start.
            _LOG.exception("the machine failed over %.500r", event)
            self.counters.machine_errors += 1
            return []
        self.counters.commands += len(commands)
        self._put(Entry(event, tuple(commands)))
        self._since_checkpoint += 1
        try:
            self.watch(event)
        except Exception:  # noqa: BLE001 (who only looks on must not cost a decision)
            _LOG.exception("the onlooker failed over %.500r", event)
            self.counters.watch_errors += 1
        return commands

    def take_all(self, events: Iterable[Event]) -> None:
        """Several, in order."""
        for event in events:
            self.take(event)

    def submit(self, event: JobSubmitted) -> list[Command]:
        """A submission, with the kill switch looked at first: it may be a moment old."""
        self.look_at_switch()
        self.counters.submissions += 1
        return self.take(event)

    def set_mode(self, mode: Mode) -> None:
        """An operator's choice."""
        if mode is not self.machine.state.mode:
            _LOG.info("mode %s, was %s", mode, self.machine.state.mode)
            self.take(ModeChanged(self._clock(), mode))

    def move(self, key: str, nodes: tuple[str, ...], why: str) -> Placement | Reason:
        """An operator wants a job elsewhere; says where it goes, or why it does not."""
        now_s = self._clock()
        found = self.machine.where_to(key, nodes, now_s, forced=True)
        if isinstance(found, Placement):
            self.take(MoveAsked(at_s=now_s, key=key, nodes=found.nodes, why=why, forced=True))
        return found

    def resize(self, key: str, gpus: int, why: str) -> Placement | Reason:
        """An operator wants a job to go on with so many GPUs; says where, or why it does not."""
        asked = ResizeAsked(at_s=self._clock(), key=key, gpus=gpus, why=why, forced=True)
        found = self.machine.sized_where(asked)
        if isinstance(found, Placement):
            self.take(asked)
        return found

    def park(self, asked: ParkAsked) -> Reason | None:
        """An operator parks a job, or releases it; says why not, if not."""
        found = parking.refusal(self.machine.state, asked)
        if found is None:
            self.take(asked)
        return found

    def now_s(self) -> float:
        """For what operators ask: when they do."""
        return self._clock()

    def tick(self) -> None:
        """What only the clock brings: the switch, the machine's timers, checkpoints."""
        self.look_at_switch()
        now_s = self._clock()
        due_s = self.machine.wakes_at_s()
        if due_s is not None and due_s <= now_s:
            self.take(TimerFired(now_s))
        if self._since_checkpoint >= self._events_between_checkpoints:
            self.take(self.machine.state.remembered(now_s))
            self._since_checkpoint = 0

    def look_at_switch(self) -> None:
        """Follow the kill switch."""
        try:
            os.stat(self._disable_file_name)  # noqa: PTH116 (for each submission; pathlib takes thrice as long)
            thrown = True
        except (FileNotFoundError, NotADirectoryError):
            thrown = False
        except OSError:  # a folder we may not look into: as it was
            return
        if thrown and not self.machine.state.switched_off:
            _LOG.warning("switched off by %s", self._disable_file)
            self.take(SwitchedOff(self._clock()))
        elif not thrown and self.machine.state.switched_off:
            _LOG.warning("%s is gone: switched on again", self._disable_file)
            self.take(SwitchedOn(self._clock()))

    def expecting(self, looked_at_s: float) -> bool:
        """Whether a job was announced a moment ago that Slurm has not been asked for since.

        Not at once: a burst of submissions is read from the queue together. And not again: a job
        that was not there then may never come.
        """
        now_s = self._clock()
        return any(
            job.phase is Phase.SUBMITTED and looked_at_s < job.since_s + _MOMENT_S <= now_s
            for job in self.machine.state.jobs.values()
        )
