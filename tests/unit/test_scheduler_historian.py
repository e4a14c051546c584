# SPDX-License-Identifier: Apache-2.0
"""A run for each job that ended: what was asked, what was measured, and what is lost meanwhile."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from slipstream.core.classes import JobClass, Per, Role
from slipstream.core.events import ClusterSeen, NodeReported
from slipstream.core.machine import Machine
from slipstream.core.sights import Gpus, JobSight, Measured, Request, Standing, Training
from slipstream.estimator import Clues
from slipstream.estimator.history import FILE, History
from slipstream.scheduler.historian import Historian

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slipstream.estimator.runs import Run

pytestmark = pytest.mark.unit

REQUEST = Request(
    token="0123456789abcdef",  # noqa: S106 (no secret)
    job_class=JobClass.SHARED,
    role=Role.OWNER,
    gpus=Gpus(Per.NODE, 1),
    uid=1,
)
CLUES = Clues(request=REQUEST, script="python t.py --lr 0.5")
RUNS = JobSight(
    ref="12_3", number=15, standing=Standing.RUNNING, submitted_at_s=1000, request=REQUEST
)
TOOK = Measured(ranks=1, gpus=1, gpu_memory_mib=100.0, lived_s=9.0, finished=True)


@dataclass
class Rig:
    """A historian whose clock a test moves."""

    folder: Path
    now_s: float = 2000.0
    learned: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.one = self.anew()

    def anew(self) -> Historian:
        """As after a restart of the daemon."""
        self.one = Historian(self.folder, self.learn, lambda: self.now_s)
        return self.one

    def learn(self, runs: Sequence[Run]) -> None:
        """What the estimator would take in."""
        self.learned += runs

    def reports(
        self, measured: Measured | None, node: str = "n1", restart: int = 0, resumed_at: int = 0
    ) -> None:
        """A coordinator's word."""
        job = Training(
            ref="15",
            measured=measured,
            minibatch=measured.minibatches if measured else None,
            restart=restart,
            resumed_at=resumed_at,
        )
        self.one.reported(NodeReported(at_s=1.0, node=node, jobs=(job,)))

    def sees(self, *jobs: JobSight, gone: tuple[str, ...] = (), complete: bool = False) -> None:
        """A look at Slurm."""
        self.one.seen(ClusterSeen(at_s=1.0, jobs=jobs, jobs_gone=gone, complete=complete))

    def written(self) -> list[Run]:
        """What the history has, once the thread has done what it was given."""
        self.now_s += 10
        self.one.tick()
        self.one.start()
        self.one.stop()
        with closing(History(self.folder / FILE)) as history:
            return list(history.runs())


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A new history."""
    return Rig(tmp_path)


def test_a_job_that_ended_is_a_run(rig: Rig) -> None:
    """By the name of the array's task, with features and the latest measurement of each node."""
    rig.one.submitted(CLUES)
    rig.sees(RUNS)
    rig.reports(replace(TOOK, gpu_memory_mib=50.0))
    rig.reports(TOOK)
    rig.reports(TOOK, "n2")
    rig.sees(gone=("12_3",))
    rig.reports(replace(TOOK, gpu_memory_mib=200.0))  # the last one comes late
    (run,) = rig.written()
    assert (run.key, run.family, run.numbers["arg.lr"]) == ("12_3@1000", "1/t.py", 0.5)
    assert (run.gpu_memory_mib, run.nodes, run.ranks, run.run_s) == (200.0, 2, 2, 9.0)
    assert rig.learned == [run]
    assert (rig.one.written, rig.one.failures) == (1, 0)


def test_a_job_that_is_shown_as_ended_is_a_run_once(rig: Rig) -> None:
    """Slurm shows ended jobs for a while, and then no more."""
    rig.one.submitted(CLUES)
    rig.sees(RUNS)
    rig.reports(TOOK)
    for _ in range(2):
        rig.sees(replace(RUNS, standing=Standing.ENDED))
    rig.sees(gone=("12_3",))
    assert len(rig.written()) == 1
    assert rig.one.written == 1


def test_the_end_is_waited_for_a_moment(rig: Rig) -> None:
    """The nodes' last reports are on their way."""
    rig.one.submitted(CLUES)
    rig.sees(RUNS)
    rig.sees(gone=("12_3",))
    rig.now_s += 1
    rig.one.tick()
    rig.reports(TOOK)
    assert len(rig.written()) == 1


def test_a_job_that_ended_while_the_daemon_was_away_is_a_run(rig: Rig) -> None:
    """What it took was in the journal, what it asked in the history."""
    rig.one.submitted(CLUES)
    rig.one.start()
    rig.one.stop()
    machine = Machine()
    machine.handle(ClusterSeen(at_s=1.0, jobs=(RUNS,), complete=True))
    job = Training(ref="15", measured=TOOK)
    machine.handle(NodeReported(at_s=2.0, node="n1", jobs=(job,)))
    rig.anew().recall(machine.state)
    rig.sees(complete=True)
    assert [run.gpu_memory_mib for run in rig.written()] == [100.0]


@pytest.mark.parametrize(("resumed_at", "took"), [(25, (55, 24.0)), (0, (30, 9.0))])
def test_a_moved_job_is_one_run(rig: Rig, resumed_at: int, took: tuple[int, float]) -> None:
    """Of all its starts, but for what was done again; only of the last, if that began anew."""
    rig.one.submitted(CLUES)
    rig.sees(RUNS)
    rig.reports(replace(TOOK, minibatches=30, lived_s=15.0, finished=False))
    rig.sees(replace(RUNS, standing=Standing.WAITING))
    rig.sees(replace(RUNS, nodes=("n2",)))
    rig.reports(replace(TOOK, minibatches=30), "n2", restart=1, resumed_at=resumed_at)
    rig.sees(gone=("12_3",))
    (run,) = rig.written()
    assert (run.minibatches, run.run_s) == took
    assert (run.gpus, run.nodes) == (1, 1)


def test_at_start_all_there_is_is_learnt(rig: Rig) -> None:
    """The oldest first."""
    rig.one.submitted(CLUES)
    for at_s in (1000, 3000):
        sight = replace(RUNS, submitted_at_s=at_s)
        rig.sees(sight)
        rig.reports(TOOK)
        rig.sees(gone=("12_3",))
        rig.now_s += 10
        rig.one.tick()
    rig.written()
    rig.learned.clear()
    rig.anew()
    rig.written()
    assert [run.key for run in rig.learned] == ["12_3@1000", "12_3@3000"]


@pytest.mark.parametrize("what", ["never submitted", "never measured", "requeued", "a stranger"])
def test_what_is_missing_costs_only_that_run(rig: Rig, what: str) -> None:
    """No failure, no line in the log: it was just not seen."""
    if what != "never submitted":
        rig.one.submitted(CLUES)
    sight = replace(RUNS, request=None) if what == "a stranger" else RUNS
    rig.sees(sight)
    if what != "never measured":
        rig.reports(TOOK)
    if what == "requeued":
        rig.sees(replace(RUNS, standing=Standing.WAITING))
    rig.sees(gone=("12_3",))
    assert rig.written() == []
    assert rig.one.failures == 0


def test_a_history_that_cannot_be_opened_is_told_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """The daemon goes on without."""
    (rig.folder / FILE).mkdir()
    with caplog.at_level(logging.CRITICAL):
        rig.one.submitted(CLUES)
        rig.one.start()
        rig.one.stop()
    assert "no history is kept" in caplog.text
    assert rig.one.failures == 1
