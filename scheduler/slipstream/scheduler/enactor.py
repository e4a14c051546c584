# SPDX-License-Identifier: Apache-2.0
"""The one thread that writes the journal and then does what it says: never the other way round.

But for the first word of a job, which is said before its submission is answered (`ahead`).

Entries come from the event loop in order. All that wait are written in one transaction, so that a
burst of submissions costs one fsync; then they are carried out; then that is written, too.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from slipstream.core.advice import advice_key
from slipstream.core.commands import (
    Admit,
    Advise,
    Extend,
    GiveBack,
    MakeGuest,
    Prepare,
    Requeue,
    Resize,
    Save,
    Settle,
    Start,
    Upgrade,
    Withdraw,
)
from slipstream.core.events import CommandRefused, StateRestored, SwitchedOff, SwitchedOn
from slipstream.scheduler.journal import Outcome
from slipstream.scheduler.sink import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipstream.core.advice import Advice
    from slipstream.core.commands import Command
    from slipstream.core.events import Event
    from slipstream.scheduler.hands import Hands
    from slipstream.scheduler.journal import Entry, Intention, Journal
    from slipstream.scheduler.orders import Orders
    from slipstream.scheduler.sink import AdviceSink

_LOG = logging.getLogger(__name__)
_MOST_AT_ONCE: Final = 1_000
_TRIES: Final = 30
_BETWEEN_TRIES_S: Final = 1.0
_BREATH_S: Final = 0.05
_LONG_BREATH_S: Final = 0.15
_MANY: Final = 10
"""After a batch: what comes in a burst gathers meanwhile, what comes alone does not wait. So many
entries are a burst, whose next ones are written together: the fewer commits, the less is written
again and again."""

Result = tuple[int, Outcome, str]
Deed = Save | Prepare | Requeue | Start | Resize | MakeGuest | Extend | Upgrade | GiveBack
_Done = TypeVar("_Done")


@dataclass(frozen=True, slots=True)
class Deeds:
    """What is done to jobs: by nodes that are asked, and by Slurm."""

    orders: Orders
    hands: Hands

    def carry_out(self, command: Deed) -> None:
        """One of them."""
        match command:
            case Save():
                self.orders.save(command)
            case Prepare():
                self.orders.prepare(command)
            case Requeue():
                self.hands.requeue(command)
            case Start():
                self.hands.start(command)
            case Resize():
                self.hands.resize(command)
            case MakeGuest():
                self.hands.make_guest(command)
            case Extend():
                self.hands.extend(command)
            case Upgrade():
                self.hands.upgrade(command)
            case GiveBack():
                self.hands.give_back(command)


class Enactor:
    """Takes entries, journals them, carries them out.

    Args:
        journal: handed over: nobody else uses it from now on.
        sink: where advice goes.
        tell: called in this thread with an event for the machine.
        failed: called in this thread when the journal cannot be written for good.
        deeds: for moves; without them none is carried out.
    """

    def __init__(
        self,
        journal: Journal,
        sink: AdviceSink,
        tell: Callable[[Event], None],
        failed: Callable[[str], None],
        deeds: Deeds | None = None,
    ) -> None:
        self._deeds = deeds
        self._journal = journal
        self._sink = sink
        self._tell = tell
        self._failed = failed
        self._given: dict[str, Advice] = {}
        self._entries: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="enactor", daemon=True)

    def start(self, advice: Sequence[Advice]) -> None:
        """Bring the board to what the journal says, then work.

        The machine is told of a `SchedulerStarted` by whoever calls this: moves go on by that.
        """
        self.reconcile(advice)
        self._thread.start()

    def put(self, entry: Entry) -> None:
        """Have an entry journalled and carried out; returns at once."""
        self._entries.put(entry)

    def ahead(self, advice: Advice) -> None:
        """Give the first advice of a job before its submission is answered, from any thread.

        Slurm may look for a place for it at once, and the disk may take its time. What is said here
        ends by itself, and is not there after a start: see docs/decisions/0039.
        """
        try:
            self._give(advice, self._sink.ahead)
        except SinkError:
            pass  # it is said again behind the journal, and refused there
        except Exception:  # noqa: BLE001 (a bug over one job must not keep it from its answer)
            _LOG.exception("failed ahead: %s", advice)

    def stop(self, timeout_s: float = 10.0) -> None:
        """Finish what was put, then end."""
        self._entries.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def behind(self) -> int:
        """Entries that are not on disk yet."""
        return self._entries.qsize()

    def reconcile(self, advice: Sequence[Advice]) -> None:
        """What was intended when we died is done now, or was overtaken since.

        What was about to be done to jobs is not done here: whether that is still wanted the machine
        knows (`moving.taken_up`), and whether it was done Slurm does (`Hands`).
        """
        try:
            self._sink.replace(advice)
            self._given = {one.key: one for one in advice}
        except SinkError as error:
            _LOG.warning("the advice board could not be written: %s", error)
            return
        self._journal.finish(
            [
                (one.id, Outcome.LAPSED, "asked for again, if it is still wanted")
                if isinstance(one.command, Deed)
                else (one.id, Outcome.DONE, "reconciled at start")
                for one in self._journal.intentions()
                if not isinstance(one.command, Admit)
            ]
        )

    def _work(self) -> None:
        while (entry := self._entries.get()) is not None:
            batch, last = self._batch(entry)
            try:
                self._do(batch)
            except sqlite3.Error as error:
                self._failed(f"the journal cannot be written: {error}")
                return
            if last:
                return
            time.sleep(_LONG_BREATH_S if len(batch) >= _MANY else _BREATH_S)

    def _batch(self, first: Entry) -> tuple[list[Entry], bool]:
        batch = [first]
        while len(batch) < _MOST_AT_ONCE:
            try:
                entry = self._entries.get_nowait()
            except queue.Empty:
                return batch, False
            if entry is None:
                return batch, True
            batch.append(entry)
        return batch, False

    def _do(self, batch: list[Entry]) -> None:
        intentions = _insisting(lambda: self._journal.record(batch))
        results = [result for one in intentions if (result := self._enact(one))]
        switched = [one.event for one in batch if isinstance(one.event, SwitchedOff | SwitchedOn)]
        if switched and isinstance(switched[-1], SwitchedOff):
            self._enact_only_given()
        if results:
            _insisting(lambda: self._journal.finish(results))
        if any(isinstance(entry.event, StateRestored) for entry in batch):
            _insisting(self._journal.forget_before_checkpoint)

    def _enact(self, intention: Intention) -> Result | None:
        """Carry one out; None for what only Slurm can confirm."""
        command = intention.command
        if isinstance(command, Admit):
            return None
        try:
            self._carry_out(command)
        except Exception as error:  # noqa: BLE001 (a bug over one job must not end all others)
            if isinstance(error, SinkError):
                _LOG.warning("refused: %s: %s", command, error)
            else:
                _LOG.exception("failed: %s", command)
            task = command.task if isinstance(command, Advise | Withdraw) else None
            about = type(command).__name__ if isinstance(command, Extend | Upgrade | Resize) else ""
            text, job = str(error), _job_of(command)
            self._tell(CommandRefused(time.time(), command.token, text, task, about, job))
            return intention.id, Outcome.REFUSED, text
        return intention.id, Outcome.DONE, ""

    def _carry_out(self, command: Command) -> None:
        if isinstance(command, Advise):
            self._give(command.advice, self._sink.advise)
            self._given[command.advice.key] = command.advice
        elif isinstance(command, Withdraw):
            self._given.pop(advice_key(command.token, command.task), None)
            self._sink.withdraw(command.token, command.task)
        elif not isinstance(command, Admit | Settle):
            if self._deeds is None:
                raise SinkError("this scheduler changes no jobs")
            self._deeds.carry_out(command)

    def _give(self, advice: Advice, carry: Callable[[Advice], None]) -> None:
        carry(advice)
        if advice.hosts and self._deeds:
            self._deeds.orders.tell_hosts(advice)

    def _enact_only_given(self) -> None:
        """What the machine did not take back stays: of jobs that are between two nodes."""
        try:
            self._sink.replace(tuple(self._given.values()))
        except SinkError as error:
            _LOG.error("switched off, but the advice board could not be emptied: %s", error)


def _job_of(command: Command) -> str:
    """The key or the number of the job that it is about; advice is given by token and task."""
    match command:
        case Save() | Prepare():
            return command.job_id
        case Upgrade():
            return command.number
        case Requeue() | Start() | Resize() | MakeGuest() | Extend() | GiveBack():
            return command.key
    return ""


def _insisting(act: Callable[[], _Done]) -> _Done:
    """A disk that is full for a moment must not cost the journal; one that stays full ends us."""
    for _ in range(_TRIES):
        try:
            return act()
        except sqlite3.OperationalError as error:
            _LOG.error("the journal cannot be written, trying again: %s", error)
            time.sleep(_BETWEEN_TRIES_S)
    return act()
