# SPDX-License-Identifier: Apache-2.0
"""Writes a run into the history when a job has ended. A thread of its own: nobody waits for it.

What was asked comes from the submission, what was measured from the coordinators' reports, that it
has ended from Slurm. Whatever is missing costs that run in the history, and nothing else.
"""

from __future__ import annotations

import logging
import queue
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from slipstream.core.figures import Figures, taken
from slipstream.core.records import Phase
from slipstream.core.sights import Standing
from slipstream.estimator.features import read
from slipstream.estimator.finished import run_of, with_earlier
from slipstream.estimator.history import FILE, History, HistoryError
from slipstream.estimator.runs import run_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from slipstream.core.events import ClusterSeen, NodeReported
    from slipstream.core.sights import JobSight
    from slipstream.core.state import State
    from slipstream.estimator import Clues
    from slipstream.estimator.history import Asked
    from slipstream.estimator.runs import Run

_LOG = logging.getLogger(__name__)
_LINGERS_S: Final = 4.0
"""After a job's end: the last reports of its nodes are still on their way."""
_BREATH_S: Final = 0.2
_MOST_AT_START: Final = 5_000
_WAITING: Final = (Phase.WAITING, Phase.SUBMITTED)
_HERE: Final = frozenset({Standing.RUNNING, Standing.SUSPENDED, Standing.COMPLETING})


@dataclass(slots=True)
class _Job:
    """One that runs, or did a moment ago."""

    sight: JobSight
    figures: Figures
    """What was measured in all its starts: the same that `slipstream why` shows."""

    def run(self, key: str, ended_s: float, asked: Asked) -> Run | None:
        """Its last start, and the earlier ones if that went on from them."""
        starts = [
            {part.node: part.measured for part in parts if part.measured}
            for parts in self.figures.starts()
        ]
        if not starts:
            return None
        run = run_of(key, ended_s, asked, tuple(starts[-1].values()))
        went_on = any(part.resumed_at for part in self.figures.starts()[-1])
        if run is None or not went_on:
            return run  # a job that began again from nothing needs no more than its last start
        earlier = [tuple(nodes.values()) for nodes in starts[:-1]]
        return with_earlier(run, earlier, self.figures.total.again)


@dataclass(frozen=True, slots=True)
class _Asked:
    at_s: float
    clues: Clues


@dataclass(frozen=True, slots=True)
class _Ended:
    at_s: float
    job: _Job


class Historian:
    """Told by the event loop; `start` begins the thread that writes.

    Args:
        state_dir: where the history is.
        learn: called in that thread with runs, the oldest first: all there are, then each new one.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        state_dir: Path,
        learn: Callable[[Sequence[Run]], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.written = 0
        self.failures = 0
        """Runs and submissions that could not be kept."""
        self._path = state_dir / FILE
        self._learn = learn
        self._clock = clock
        self._jobs: dict[str, _Job] = {}
        self._numbers: dict[str, str] = {}
        """Slurm's own number of a job to its name: nodes know tasks of arrays by the first."""
        self._earlier: dict[str, Figures] = {}
        """Of jobs that were requeued and wait to start again."""
        self._ended: list[_Ended] = []
        self._queue: queue.SimpleQueue[_Asked | _Ended | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="historian", daemon=True)

    # --- told by the event loop ---------------------------------------------------------------

    def recall(self, state: State) -> None:
        """Take up what the journal knows: jobs may have ended while nobody looked."""
        for record in state.jobs.values():
            if record.sight:
                self._see(record.sight)
        for ref, figures in state.figures.items():
            if job := self._jobs.get(ref):
                job.figures = figures
            elif (waits := state.jobs.get(ref)) and waits.phase in _WAITING:
                self._earlier[ref] = figures
        for report in state.reports.values():
            self.reported(report)

    def submitted(self, clues: Clues) -> None:
        """A job was submitted with these."""
        self._queue.put(_Asked(self._clock(), clues))

    def reported(self, report: NodeReported) -> None:
        """A coordinator told what its jobs have taken."""
        for training in (*report.jobs, *report.ended):
            job = self._jobs.get(self._numbers.get(training.ref, training.ref))
            if job and training.measured:
                job.figures = taken(job.figures, report.node, training)

    def seen(self, event: ClusterSeen) -> None:
        """Slurm was looked at."""
        for sight in event.jobs:
            self._see(sight)
        there = {sight.ref for sight in event.jobs}
        gone = [ref for ref in self._jobs if ref not in there] if event.complete else ()
        for ref in (*event.jobs_gone, *gone):
            self._end(ref)
            self._earlier.pop(ref, None)

    def tick(self) -> None:
        """Hand over what ended a while ago."""
        due_s = self._clock() - _LINGERS_S
        while self._ended and self._ended[0].at_s <= due_s:
            ended = self._ended.pop(0)
            self._forget(ended.job.sight)
            self._queue.put(ended)

    def _see(self, sight: JobSight) -> None:
        if sight.request is None:
            return
        if sight.standing in _HERE:
            if sight.ref not in self._jobs:
                figures = self._earlier.pop(sight.ref, None) or Figures(key=sight.ref)
                self._jobs[sight.ref] = _Job(sight, figures)
            self._jobs[sight.ref].sight = sight
            self._numbers[str(sight.number)] = sight.ref
        elif sight.standing is Standing.ENDED:
            self._end(sight.ref)
            self._earlier.pop(sight.ref, None)
        elif job := self._jobs.get(sight.ref):  # requeued: what it took so far is half a run
            self._earlier[sight.ref] = job.figures
            self._forget(job.sight)

    def _end(self, ref: str) -> None:
        job = self._jobs.get(ref)
        if job and not any(one.job is job for one in self._ended):
            self._ended.append(_Ended(self._clock(), job))

    def _forget(self, sight: JobSight) -> None:
        self._jobs.pop(sight.ref, None)
        self._numbers.pop(str(sight.number), None)
        self._ended = [one for one in self._ended if one.job.sight.ref != sight.ref]

    # --- the thread -----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Finish what was handed over, then end."""
        self._queue.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        try:
            history = History(self._path)
        except (HistoryError, sqlite3.Error, OSError) as error:
            _LOG.critical("no history is kept, and no estimate learns: %s", error)
            self.failures += 1
            return
        with closing(history):
            self._guarded(lambda: self._learn(_latest(history.runs())))
            told: list[_Asked | _Ended | None] = []
            while None not in told:
                told = self._told()
                asked = [one for one in told if isinstance(one, _Asked)]
                self._guarded(lambda those=asked: self._remember(history, those))  # type: ignore[misc]
                for ended in told:
                    if isinstance(ended, _Ended):
                        self._guarded(lambda one=ended: self._write(history, one))  # type: ignore[misc]

    def _told(self) -> list[_Asked | _Ended | None]:
        """All that there is, and what comes with it: a burst of submissions is written at once."""
        told = [self._queue.get()]
        if told[0] is not None:
            time.sleep(_BREATH_S)
        while not self._queue.empty():  # nobody else takes from it
            told.append(self._queue.get())
        return told

    def _remember(self, history: History, asked: list[_Asked]) -> None:
        if asked:
            history.remember((one.clues.request.token, one.at_s, read(one.clues)) for one in asked)

    def _write(self, history: History, told: _Ended) -> None:
        sight = told.job.sight
        token = sight.request.token if sight.request else ""
        asked = history.recalled(token)
        key = run_key(sight.ref, sight.submitted_at_s)
        run = told.job.run(key, told.at_s, asked) if asked else None
        if run:
            history.add([run])
            self._learn([run])
            self.written += 1

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception:  # noqa: BLE001 (a run that is lost must not cost the next ones)
            self.failures += 1
            if self.failures == 1:
                _LOG.exception("a run or a submission is lost for the history")


def _latest(runs: Iterable[Run]) -> list[Run]:
    """The oldest first."""
    return list(islice(runs, _MOST_AT_START))[::-1]
