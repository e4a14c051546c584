# SPDX-License-Identifier: Apache-2.0
"""Carrying out a fault: a job is brought to the moment, something is taken away and given back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chaos.cluster import covered
from chaos.plan import OF_A_MOVE, Fault, Kind, Moment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.cluster import Cluster, Job

MOMENT_S: Final = 25.0
"""How long a moment is waited for: without it the fault strikes all the same, and that is told."""
_BEGINS_S: Final = 60.0
_BETWEEN_MOVES_S: Final = 65.0
_BEGUN: Final = ("moves to", "is to train with")
_LEAVES_TEXT: Final = "requeued"
_TIMES_ASKED: Final = 2
_MOST_GPUS: Final = 2
_ACCEPTED: Final = 200


class Striker:
    """Does to a cluster what a plan says, and remembers what came of it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._struck_at_s: dict[str, float] = {}
        self.missed = 0
        self.moves_asked = 0
        self.wrong: list[str] = []
        """What was wrong while it happened: the histories would not show it."""

    def strike(self, fault: Fault) -> str:
        """Do it; says to whom and how it went."""
        job = self._victim(fault)
        if job is None:
            self.missed += 1
            return "nobody is left to do it to"
        if fault.kind is Kind.SLURMCTLD:
            self._cluster.written_down(job)
        if fault.moment in OF_A_MOVE:
            return self._during_a_move(fault, job)
        came = self._cluster.until(
            lambda: self._cluster.phases().get(job.number) == fault.moment, MOMENT_S
        )
        return self._hit(fault, job, came=came)

    def _during_a_move(self, fault: Fault, job: Job) -> str:
        before = len(job.lines())
        asked_at_s = time.time()
        if fault.kind is Kind.TWO_MOVES:
            return self._two_moves(job)
        with contextlib.ExitStack() as stack:
            if fault.kind is Kind.RAMDISK_FULL:
                for folder in self._ramdisk(job):
                    stack.enter_context(covered(folder, full=True))
            if not self._asked(job, resizes=round(fault.pick * 100) % 2 == 1):
                self.missed += 1
                return f"job {job.number} does not move"
            came = self._cluster.until(
                lambda: self._has_come(fault.moment, job, asked_at_s, before), MOMENT_S
            )
            return self._hit(fault, job, came=came)

    def _hit(self, fault: Fault, job: Job, *, came: bool) -> str:
        self.missed += not came
        with self._away(fault, job):
            time.sleep(fault.away_s)
        if came:
            return f"job {job.number}"
        story = self._cluster.story(job)[-1:]
        return f"job {job.number}, but the moment did not come: {story}"

    @contextlib.contextmanager
    def _away(self, fault: Fault, job: Job) -> Iterator[None]:
        box = self._cluster.box
        node, began_s = self._cluster.node_of(job), time.time()
        daemons = {
            Kind.COORDINATOR: f"coordinator-{node}",
            Kind.SCHEDULER: "scheduler",
            Kind.SLURMD: f"slurmd-{node}",
            Kind.SLURMCTLD: "slurmctld",
        }
        with contextlib.ExitStack() as stack:
            if fault.kind in daemons:
                box.kill(daemons[fault.kind])
            elif fault.kind is Kind.TRAINER:
                self._kill_trainer(job)
            elif fault.kind is Kind.SHARED_GONE:
                stack.enter_context(covered(box.layout.durable, full=False))
            elif fault.kind is Kind.SWITCH:
                box.layout.disable_file.touch()
                stack.callback(box.layout.disable_file.unlink)
            elif fault.kind is Kind.REQUEUE:
                box.run("scontrol", "requeue", job.number, check=False)
            yield
        self._cluster.revive()
        if fault.kind is Kind.SLURMCTLD:
            self._cluster.controller_gone.append((began_s, time.time()))

    def _kill_trainer(self, job: Job) -> None:
        """Only if it still is that process: numbers come again."""
        pid = job.lines()[-1].pid
        job.killed_at_s = time.time()
        with contextlib.suppress(OSError):
            if b"chaos/training.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)

    def _two_moves(self, job: Job) -> str:
        """Two at once: one moves it, the other is refused."""
        body = json.dumps({"job": job.number})
        status: list[int] = []

        def moves() -> bool:
            with ThreadPoolExecutor(_TIMES_ASKED) as pool:
                both = [
                    pool.submit(self._cluster.asks, "POST /v1/move", body)
                    for _ in range(_TIMES_ASKED)
                ]
                status[:] = sorted(one.result().get("status", 0) for one in both)
            return _ACCEPTED in status

        self.moves_asked += 1
        self.missed += not self._cluster.until(lambda: job.over or moves(), 2 * MOMENT_S)
        if status.count(_ACCEPTED) > 1:
            self.wrong.append(f"job {job.number} was moved by two sagas at once")
        return f"job {job.number}: {status}"

    # --- who, and when ----------------------------------------------------------------------------

    def _victim(self, fault: Fault) -> Job | None:
        """One that trains; for a move one that can be moved, for a turn one that takes turns.

        A job is moved at most once in a minute: if nobody is left, one more is submitted.
        """
        role = "mover" if fault.moment in OF_A_MOVE else "turns"
        rests_s = _BETWEEN_MOVES_S if fault.moment in OF_A_MOVE else 0.0
        cluster = self._cluster

        def able() -> list[Job]:
            latest_s = time.monotonic() - rests_s
            there = [one for one in cluster.jobs if one.role == role and not one.killed_at_s]
            rested = [one for one in there if self._struck_at_s.get(one.number, 0.0) <= latest_s]
            return [one for one in rested if one.lines() and not one.over]

        if not able():
            cluster.submit(role)
        if not cluster.until(able, _BEGINS_S):
            return None
        found = able()
        job = found[int(fault.pick * len(found))]
        self._struck_at_s[job.number] = time.monotonic()
        return job

    def _asked(self, job: Job, *, resizes: bool) -> bool:
        """Have it moved, as soon as that can be; or resized, if there is room for it."""
        body = {"job": job.number}

        def accepts(what: str, **more: int) -> bool:
            answer = self._cluster.asks(f"POST {what}", json.dumps({**body, **more}))
            return answer.get("status") == _ACCEPTED

        def moves() -> bool:
            other = 1 if self._cluster.why(job).get("gpus") == _MOST_GPUS else _MOST_GPUS
            return (resizes and accepts("/v1/resize", gpus=other)) or accepts("/v1/move")

        self.moves_asked += 1
        return self._cluster.until(lambda: job.over or moves(), 2 * MOMENT_S) and not job.over

    def _has_come(self, moment: Moment, job: Job, asked_at_s: float, before: int) -> bool:
        """How far a move is, by the story from where it was asked for, and by Slurm."""
        story = " ".join(self._cluster.story(job, asked_at_s))
        match moment:
            case Moment.SAVING:
                return any(text in story for text in _BEGUN)
            case Moment.LEAVING:
                return _LEAVES_TEXT in story
            case Moment.PLACING:
                return self._cluster.slurm_states().get(job.number) == "PENDING"
            case _:
                return any(line.what == "start" for line in job.lines()[before:])

    def _ramdisk(self, job: Job) -> list[Path]:
        return sorted(self._cluster.box.layout.run.glob(f"n*/checkpoints/{job.number}-*"))
