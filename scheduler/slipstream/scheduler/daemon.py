# SPDX-License-Identifier: Apache-2.0
"""The daemon: one process, one event loop, one thread that polls and one that journals and enacts.

`kill -9` is the normal way to stop it: what was journalled is done at the next start.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import math
import os
import signal
import sqlite3
import sys
import time
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final

from slipstream.core import parking
from slipstream.core.events import (
    ClusterSeen,
    JobSaved,
    NodeReported,
    RulesChanged,
    SchedulerStarted,
    SlurmFound,
)
from slipstream.core.machine import Machine
from slipstream.estimator.learner import Learner
from slipstream.estimator.models import FOLDER, Models
from slipstream.scheduler import door, peers
from slipstream.scheduler.api import Api
from slipstream.scheduler.board_sink import FILE_NAME, BoardSink
from slipstream.scheduler.carriers import Carrier, Carriers, Choice
from slipstream.scheduler.copies import Copies
from slipstream.scheduler.dashboard.site import Dashboard
from slipstream.scheduler.enactor import Deeds, Enactor
from slipstream.scheduler.engine import Engine
from slipstream.scheduler.event_socket import EventSocket
from slipstream.scheduler.guard import Guard
from slipstream.scheduler.hands import Hands
from slipstream.scheduler.historian import Historian
from slipstream.scheduler.hold_sink import HoldSink
from slipstream.scheduler.journal import Entry, Journal
from slipstream.scheduler.journal_codec import JournalError
from slipstream.scheduler.messages import Discarded, FilesMapped, TurnsCalled
from slipstream.scheduler.orders import Orders
from slipstream.scheduler.questions import Questions
from slipstream.scheduler.sink import SinkError
from slipstream.scheduler.submit_socket import SubmitSocket
from slipstream.scheduler.watcher import Watcher
from slipstream.scheduler.web import loopback, web_server
from slipstream.slurm_plugin import CliSlurm, Poller, link, site
from slipstream.slurm_plugin.link import address
from slipstream.slurm_plugin.munge import Munge, MungeError
from slipstream.slurm_plugin.wrapper_sign import WrapperSign
from slipstream.wire.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from slipstream.core.events import Event
    from slipstream.core.rules import Rules
    from slipstream.scheduler.engine import Counters
    from slipstream.scheduler.messages import Told
    from slipstream.scheduler.settings import Settings
    from slipstream.scheduler.sink import AdviceSink
    from slipstream.slurm_plugin import Slurm

_LOG = logging.getLogger(__name__)
JOURNAL: Final = "journal.sqlite"
HOURS: Final = "hours.json"
_ROOT_ONLY: Final = 0o600
_EVERYBODY: Final = 0o666
_TURN_OF_A_THREAD_S: Final = 0.0005
"""Python's 5 ms, several times in one answer, are most of what job_submit waits for us."""

_ENDED: Final = "ended"
"""What a node says of a job whose program has left its training, or is gone."""
_LOOK_EVERY_S: Final = 0.2
"""How old the answer may be to whether slurmctld follows the board: it takes longer to start."""


class StartError(Exception):
    """The daemon cannot start; says why."""


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; returns the exit code."""
    logging.basicConfig(
        stream=sys.stderr,
        level=settings.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    sys.setswitchinterval(_TURN_OF_A_THREAD_S)
    try:
        with _alone(settings.run_dir):
            return asyncio.run(Daemon(settings, CliSlurm()).serve())
    except (StartError, JournalError, SinkError, OSError, sqlite3.Error) as error:
        _LOG.critical("cannot run: %s", error)
        return 1


@contextlib.contextmanager
def _alone(run_dir: Path) -> Iterator[IO[str]]:
    """Hold the lock of this run dir: two daemons would take each other's sockets."""
    run_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
    with (run_dir / "scheduler.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StartError(f"another scheduler runs with {run_dir}") from error
        yield lock


@dataclass(slots=True)
class _Ending:
    """What ends the daemon, and with which exit code."""

    event: asyncio.Event
    code: int = 0


class Daemon:
    """All parts, tied together."""

    def __init__(self, settings: Settings, slurm: Slurm) -> None:
        self._guard = Guard()
        acting = self._guard.over(slurm)
        settings.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._settings = settings
        self._journal = Journal(settings.state_dir / JOURNAL)
        self._trusted = peers.trusted_uids(settings.slurm_user)
        machine = replayed(self._journal)
        _take_rules(self._journal, machine, settings.rules())
        self._poller = Poller(slurm, settings.pace())
        board = settings.run_dir / FILE_NAME
        sign = WrapperSign(board, peers.uid_named(settings.slurm_user))
        self._held_at = (-math.inf, False)
        self._choice = Choice(settings.carrier, sign.is_given)
        self._hold = HoldSink(acting, self._poller, settings.lease_s, self._holds, self._moving)
        sinks: list[AdviceSink] = [self._hold]
        if settings.carrier is Carrier.HOLD:
            board.unlink(missing_ok=True)  # a wrapper must not follow what nobody says any more
        else:
            sinks.append(BoardSink(settings.run_dir))
        self._orders = Orders()
        self._copies = Copies(settings.state_dir, settings.keep_checkpoints_s, self._orders)
        looks = self._poller
        hands = Hands(acting, looks.nudge, alone=self._hold.alone, hurry=looks.hurry)
        self._enactor = Enactor(
            self._journal,
            Carriers(*sinks),
            self._tell,
            self._journal_failed,
            Deeds(self._orders, hands),
        )
        self._engine = Engine(
            machine,
            self._enactor.put,
            settings.disable_file,
            settings.events_between_checkpoints,
        )
        self._engine.ahead = self._enactor.ahead
        self._engine.estimator.models = Models(settings.state_dir / FOLDER)
        hours = settings.state_dir / HOURS
        self._dashboard = Dashboard(self._engine, self._choice.in_use, hours)
        self._engine.watch = self._dashboard.watch
        self._learner = Learner(settings.state_dir, self._engine.estimator.models)
        self._historian = Historian(settings.state_dir, self._engine.estimator.families.learn)
        self._engine.asked = self._historian.submitted
        self._watcher = Watcher(slurm, self._poller, self._deliver)
        self._door = door_for(settings, self._engine.counters, self._trusted)
        self._supervisor = Supervisor(os.environ)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending: _Ending | None = None

    async def serve(self) -> int:
        """Run until told to stop."""
        self._loop = asyncio.get_running_loop()
        self._ending = _Ending(asyncio.Event())
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._ending.event.set)
        self._engine.look_at_switch()
        state = self._engine.machine.state
        now_s = time.time()
        live = [one for one in state.advice.values() if one.until_s > now_s]
        self._enactor.start(live)
        if state.moves:
            self._engine.take(SchedulerStarted(now_s))
        self._historian.recall(state)
        self._historian.start()
        self._learner.start()
        self._poller.start()
        self._hold.start()
        try:
            await self._serve_sockets()
        finally:
            self._enactor.stop()
            self._hold.stop()
            self._historian.stop()
            self._learner.stop()
            self._dashboard.hours_file.write()
            self._journal.close()
        return self._ending.code

    async def _serve_sockets(self) -> None:
        run_dir, ending = self._settings.run_dir, self._ending
        assert ending is not None  # noqa: S101 (serve has set it)
        submit = SubmitSocket(self._engine, self._trusted, self._holds, self._poller.nudge)
        reports = EventSocket(self._engine.counters, self._trusted, self._heard, self._orders)
        app = Api(
            self._engine,
            self._enactor.behind,
            self._trusted,
            self._reported,
            self._choice.in_use,
            self._copies.told,
            self._dashboard,
        ).application()
        listeners = [peers.listen(run_dir / "api.sock", _EVERYBODY)]
        if self._settings.api_port:
            listeners.append(loopback(self._settings.api_port))
        web = [(web_server(app), listener) for listener in listeners]
        tasks = [asyncio.create_task(one.serve([listener])) for one, listener in web]
        ticks = [self._tick(), self._dashboard.feed.run()]
        tasks += [asyncio.create_task(one) for one in ticks]
        servers = []
        if self._door:
            port = door.listen(address(self._settings.listen))
            private = site.read(os.environ).private
            questions = Questions(app, self._trusted, private=private)
            servers.append(await reports.serve_hosts(port, self._door, questions))
            _LOG.info("other hosts are heard at %s", self._settings.listen)
        # Last: who finds this socket finds everything else.
        servers.append(await reports.serve(peers.listen(run_dir / "events.sock", _ROOT_ONLY)))
        end_submissions = submit.serve(peers.listen(run_dir / "submit.sock", _ROOT_ONLY))
        _LOG.info("ready in %s, mode %s", run_dir, self._engine.machine.state.mode)
        self._supervisor.ready()
        await ending.event.wait()
        self._supervisor.stopping()
        end_submissions()
        for server in servers:
            server.close()
        self._dashboard.feed.close()
        for one, _listener in web:
            one.should_exit = True
        for task in tasks[-len(ticks) :]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._settings.tick_s)
            self._supervisor.alive()
            try:
                self._engine.tick()
                self._orders.follow(self._engine.machine.state.mode)
                self._orders.switch(off=self._engine.machine.state.switched_off)
                self._orders.park(parking.by_node(self._engine.machine.state))
                self._historian.tick()
                self._dashboard.hours_file.tick(time.monotonic())
                self._copies.tick(self._engine.machine.state)
                self._engine.counters.runs_written = self._historian.written
                self._engine.counters.runs_lost = self._historian.failures
                self._engine.counters.breaker = self._guard.breaker
            except Exception:  # noqa: BLE001 (a bug of ours must not end all timers)
                _LOG.exception("a tick failed")
                self._engine.counters.machine_errors += 1
            if self._engine.expecting(self._poller.began_s()):
                self._poller.nudge()

    def _moving(self) -> list[str]:
        return list(self._engine.machine.state.moves)  # at once: soft hold has its own thread

    def _holds(self) -> bool:
        """Whether jobs are kept to their advice by soft hold; looked at once for a burst."""
        now_s = time.monotonic()
        looked_at_s, holds = self._held_at
        if now_s - looked_at_s >= _LOOK_EVERY_S:
            holds = self._choice.in_use() is Carrier.HOLD
            self._held_at = (now_s, holds)
        return holds

    def _heard(self, told: Told) -> None:
        """A coordinator told us something."""
        if isinstance(told, Discarded):
            self._copies.discarded(told)
        elif isinstance(told, TurnsCalled):
            self._orders.call(told)
        elif isinstance(told, FilesMapped):
            self._orders.mapped(told)
        elif isinstance(told, JobSaved):
            self._orders.answered(told.job_id, told.number)
            self._copies.saved(told, self._engine.machine.state)
            self._engine.take(told)
        else:
            self._reported(told)

    def _reported(self, report: NodeReported) -> None:
        """A coordinator told us. If jobs came or went, Slurm will show the same soon."""
        before = self._engine.machine.state.reports.get(report.node)
        self._engine.take(report)
        self._historian.reported(report)
        if before is None or _seats(before) != _seats(report):
            self._poller.nudge()

    def _tell(self, event: Event) -> None:
        """An event from another thread."""
        self._deliver([event])

    def _deliver(self, events: Sequence[Event]) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: so do we
                self._loop.call_soon_threadsafe(self._take_all, events)

    def _take_all(self, events: Sequence[Event]) -> None:
        self._engine.take_all(events)
        for event in events:
            if isinstance(event, SlurmFound):
                self._guard.found()
            if isinstance(event, ClusterSeen):
                self._historian.seen(event)
                self._copies.seen()

    def _journal_failed(self, sentence: str) -> None:
        """Without a journal nothing may be done: end, so that somebody looks at it."""
        _LOG.critical("%s", sentence)
        if self._loop is not None and self._ending is not None:
            self._ending.code = 1
            self._loop.call_soon_threadsafe(self._ending.event.set)


def door_for(settings: Settings, counters: Counters, trusted: frozenset[int]) -> door.Door | None:
    """For other hosts; without the cluster's name nobody could tell which of them are ours."""
    if not settings.listen:
        return None
    known = site.read(os.environ)
    cluster = settings.cluster or known.cluster
    if not cluster:
        raise StartError("listen needs the cluster's name: set cluster, or SLURM_CONF")
    munge = Munge(settings.munge_socket or known.munge_socket)
    try:
        munge.open(munge.seal(b"", os.geteuid()))
    except MungeError as error:
        raise StartError(f"listen needs munged: {error}") from error
    return door.Door(counters, link.Party(munge, cluster, trusted))


def replayed(journal: Journal) -> Machine:
    """The machine as it was when the journal was last written."""
    machine = Machine()
    for event in journal.events():
        machine.handle(event)
    return machine


def _take_rules(journal: Journal, machine: Machine, rules: Rules) -> None:
    """New settings are an event like any other, on disk before they count."""
    if rules != machine.state.rules:
        changed = RulesChanged(time.time(), rules)
        journal.record([Entry(changed, tuple(machine.handle(changed)))])


def _seats(report: NodeReported) -> tuple[object, ...]:
    """Who sits where, and whose program has ended: of turns Slurm knows nothing."""
    return (
        tuple((gpu.uuid, gpu.owner_job, gpu.guest_jobs) for gpu in report.gpus),
        tuple((job.ref, job.phase == _ENDED) for job in report.jobs),
    )
