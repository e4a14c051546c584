# SPDX-License-Identifier: Apache-2.0
"""A scheduler killed between any two writes of a move or a resize: the next one goes on.

Nothing is done twice, and a job that is resized never asks for anything but its two sizes.

The scheduler's journal, machine, enactor and hands are the real ones; Slurm is the fake of the
contract tests, kept in a file that outlives whoever is killed.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from core_world import machine, token
from fakes.slurm_cluster import FakeCluster, FakeNode
from fakes.slurm_commands import FakeCommands
from slipstream.core.commands import Requeue, Save, Start
from slipstream.core.events import (
    ClusterSeen,
    Event,
    JobSaved,
    MoveAsked,
    NodeReported,
    ResizeAsked,
    SchedulerStarted,
    TimerFired,
)
from slipstream.core.sights import Training
from slipstream.scheduler.daemon import replayed
from slipstream.scheduler.enactor import Deeds, Enactor
from slipstream.scheduler.hands import Hands
from slipstream.scheduler.journal import Entry, Journal, Outcome
from slipstream.scheduler.orders import Orders
from slipstream.scheduler.watcher import node_sight_of, sight_of
from slipstream.slurm_plugin import CliSlurm
from slipstream.slurm_plugin.gres import Gres, total
from slipstream.slurm_plugin.requests import Submission
from unit.test_scheduler_crash import FileBoard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.slurm_plugin.run import Completed

pytestmark = pytest.mark.unit

CHILD = """
import sys
from pathlib import Path
from unit.test_scheduler_crash_moves import Scheduler, change
change(Scheduler(Path(sys.argv[1]), sys.argv[2]), int(sys.argv[3]))
"""
PATIENCE_S = 30.0
SIZE = 3
DEEDS = {"requeue": ("scontrol", "requeue"), "start": ("scontrol", "update")}
POINTS = [
    f"{when} {what}"
    for what in ("requeue", "start")
    for when in ("before the journal of", "before", "after", "after all of")
]


class KeptCommands:
    """Slurm's commands over a cluster that is in a file: what was done stays done."""

    def __init__(self, folder: Path, dies: str) -> None:
        self._file = folder / "cluster"
        self._dies = dies
        self._lock = threading.Lock()
        self._commands: FakeCommands = pickle.loads(self._file.read_bytes())  # noqa: S301 (ours)

    @staticmethod
    def begin(folder: Path, *names: str) -> None:
        """Some nodes, and a job of ours on the first."""
        nodes = [FakeNode(name, 32, {"gpu": 4, "slot": 12}) for name in names]
        commands = FakeCommands(FakeCluster(nodes, {"r1": names}))
        asked = Submission(script="#!/bin/sh\n", gres_per_node=(Gres("gpu", count=1),))
        CliSlurm(commands).submit(asked)
        (job,) = commands.cluster.jobs.values()
        words = "class=shared role=owner gpus=node:1 elastic=1-3"
        job.admin_comment = f"[slipstream v=1 token={token(1)} {words}]"
        commands.cluster.advance(1.0)
        commands.ran.clear()
        (folder / "cluster").write_bytes(pickle.dumps(commands))

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> Completed:
        """As Slurm would, unless somebody is killed over it."""
        what = next((name for name, words in DEEDS.items() if tuple(argv[:2]) == words), "")
        if self._dies == f"before {what}":
            os.kill(os.getpid(), signal.SIGKILL)
        with self._lock:
            done = self._commands.run(argv, timeout_s=timeout_s, stdin=stdin)
            self._keep()
        if self._dies == f"after {what}":
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def pass_time(self) -> FakeCluster:
        """A second of Slurm's."""
        with self._lock:
            self._commands.cluster.advance(1.0)
            self._keep()
            return self._commands.cluster

    def times(self, what: str) -> int:
        """How often Slurm was asked for a deed, by all schedulers together."""
        with self._lock:
            return sum(argv[:2] == DEEDS[what] for argv in self._commands.ran)

    def _keep(self) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_bytes(pickle.dumps(self._commands))
        draft.replace(self._file)


class DeadlyJournal(Journal):
    """Killed before a move's next command is on the disk, or when all of it is."""

    dies = ""

    def record(self, entries: Sequence[Entry]) -> list[object]:  # type: ignore[override]
        """Not if it is to be the last."""
        commands = [type(one).__name__.lower() for entry in entries for one in entry.commands]
        if any(self.dies == f"before the journal of {name}" for name in commands):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().record(entries)  # type: ignore[return-value]

    def finish(self, results: Sequence[tuple[int, Outcome, str]]) -> None:
        """And then, maybe, no more."""
        super().finish(results)
        kinds = dict(self._db.execute("SELECT id, kind FROM intention").fetchall())
        done = [kinds[one].lower() for one, outcome, _ in results if outcome is Outcome.DONE]
        if any(self.dies == f"after all of {name}" for name in done):
            os.kill(os.getpid(), signal.SIGKILL)


class Node(Orders):
    """A coordinator that answers at once, however often it is asked."""

    def __init__(self, told: queue.SimpleQueue[Event]) -> None:
        super().__init__()
        self._told = told

    def save(self, order: Save) -> None:
        """Saved."""
        self._told.put(
            JobSaved(at_s=time.time(), node="n1", job_id=order.job_id, number=order.number)
        )


class Scheduler:
    """What the daemon ties together, without its sockets."""

    def __init__(self, folder: Path, dies: str = "never") -> None:
        self.commands = KeptCommands(folder, dies)
        self.slurm = CliSlurm(self.commands)
        self.journal = DeadlyJournal(folder / "journal.sqlite")
        self.journal.dies = dies
        self.machine = replayed(self.journal)
        self.told: queue.SimpleQueue[Event] = queue.SimpleQueue()
        deeds = Deeds(Node(self.told), Hands(self.slurm))
        self.enactor = Enactor(
            self.journal, FileBoard(folder), self.told.put, self.failed.append, deeds
        )
        self.enactor.start(tuple(self.machine.state.advice.values()))
        if self.machine.state.moves:
            self.take(SchedulerStarted(time.time()))

    failed: list[str] = []  # noqa: RUF012 (one is enough to fail)

    def take(self, event: Event) -> None:
        """As the engine does."""
        self.enactor.put(Entry(event, tuple(self.machine.handle(event))))

    def look(self) -> None:
        """Poll Slurm, and hear whoever has told something."""
        deadline_s = time.monotonic() + PATIENCE_S
        while self._is_busy():  # Slurm's seconds pass sooner here than a busy machine's threads act
            assert time.monotonic() < deadline_s
            time.sleep(0.005)
        self.commands.pass_time()
        jobs = tuple(sight_of(job) for job in self.slurm.jobs())
        (shown,) = jobs
        assert shown.wants_gpus in (1, SIZE), "it asks for one of its two sizes, always"
        nodes = tuple(node_sight_of(one) for one in self.slurm.nodes())
        self.take(ClusterSeen(at_s=time.time(), jobs=jobs, nodes=nodes, complete=True))
        while not self.told.empty():
            self.take(self.told.get())

    def _is_busy(self) -> bool:
        deeds = (one.command for one in self.journal.intentions())
        return bool(self.enactor.behind()) or any(
            isinstance(one, Save | Requeue | Start) for one in deeds
        )

    def job(self) -> tuple[str, tuple[str, ...], int, int]:
        """Its state, where, with how many GPUs, and how often it was requeued."""
        (job,) = self.slurm.jobs()
        held = total([gres for share in job.holds for gres in share.gres], "gpu")
        return job.state, job.nodes, held, job.restarts


def change(scheduler: Scheduler, size: int) -> None:
    """Ask for a move or a size unless that was done, and look until the job is as it should be."""
    where = "n1" if size else "n2"
    if not scheduler.machine.state.jobs:
        scheduler.take(machine().state.remembered(time.time()))
    scheduler.look()
    if not scheduler.machine.state.left and not scheduler.machine.state.moves:
        told = Training(ref="1", phase="training", minibatch=9, restorable=True)
        scheduler.take(NodeReported(at_s=time.time(), node="n1", jobs=(told,)))
        now_s = time.time()
        scheduler.take(
            ResizeAsked(at_s=now_s, key="1", gpus=size, forced=True)
            if size
            else MoveAsked(at_s=now_s, key="1", nodes=("n2",), forced=True)
        )
    deadline_s = time.monotonic() + PATIENCE_S
    while scheduler.job()[:3] != ("RUNNING", (where,), size or 1):
        assert time.monotonic() < deadline_s, scheduler.machine.state.moves
        scheduler.look()
        time.sleep(0.02)
    scheduler.look()
    scheduler.enactor.stop()


@pytest.mark.parametrize(
    ("dies", "size"),
    [
        *((dies, 0) for dies in [*POINTS, "never"]),
        *((dies, SIZE) for dies in POINTS if dies.endswith("start")),  # up to then they are alike
    ],
)
def test_it_goes_on_wherever_its_scheduler_was_killed(tmp_path: Path, dies: str, size: int) -> None:
    """The job is requeued once, and runs on its new node, or with its new size on the same.

    Nothing is left open in the journal.
    """
    KeptCommands.begin(tmp_path, *(("n1",) if size else ("n1", "n2")))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), dies, str(size)],
        env={"PYTHONPATH": ":".join([str(Path(__file__).parents[1]), *filter(None, sys.path)])},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == (0 if dies == "never" else -signal.SIGKILL), done.stderr
    second = Scheduler(tmp_path)
    change(second, size)
    assert second.job() == ("RUNNING", ("n1" if size else "n2",), size or 1, 1)
    assert second.commands.times("requeue") == 1
    assert second.commands.times("start") in (1, 2), "told twice is the same as once"
    open_ones = [one.command for one in second.journal.intentions()]
    assert not [one for one in open_ones if isinstance(one, Save | Requeue | Start)]
    assert not second.failed
    second.journal.close()


def test_a_deed_that_fails_over_one_job_does_not_end_the_others(tmp_path: Path) -> None:
    """Somebody has emptied a job's AdminComment while it moves: there is no marker to change.

    That is refused like anything Slurm would not do, and what comes after it is done.
    """
    KeptCommands.begin(tmp_path, "n1", "n2")
    one = Scheduler(tmp_path)
    (job,) = one.commands.pass_time().jobs.values()
    job.admin_comment, job.state = "", "PENDING"
    one.enactor.put(Entry(TimerFired(1.0), (Start(token(1), "1", 1, ("n2",)),)))
    one.enactor.put(Entry(TimerFired(2.0), (Save(token(1), "1", "n1", 7),)))
    one.enactor.stop()
    told = [one.told.get_nowait(), one.told.get_nowait()]
    assert [type(event).__name__ for event in told] == ["CommandRefused", "JobSaved"]
    one.journal.close()
