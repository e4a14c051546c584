# SPDX-License-Identifier: Apache-2.0
"""What a job takes on its node: GPUs by NVML, processes and network by /proc, phases by pages."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from slipstream.coordinator.blocks import Block
from slipstream.coordinator.events import event
from slipstream.coordinator.gpus import ProcessUse, Window
from slipstream.coordinator.measuring import Measuring
from slipstream.coordinator.processes import ProcFs
from slipstream.coordinator.seats import Seat, Task
from slipstream.wire.control_block import Identity, Phase, Progress, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

MS = 1_000_000
LOADS, PARKED, PAUSED, TRAINS_NOW = Phase.LOADING, Phase.PARKED, Phase.PAUSED, Phase.TRAINING
FS = ProcFs()
CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(9)"])
while time.process_time() < 0.2:
    pass
block = bytearray(64 << 20)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def task() -> Iterator[Task]:
    """A task that has computed for a while, holds 64 MiB and has a child."""
    with subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE) as process:
        assert process.stdout
        said = {process.stdout.readline().strip() for _ in range(2)}
        assert said == {b"1", b"ready"}
        yield Task("batch", 0, process.pid, FS.started_ticks(process.pid))
        for pid in reversed(FS.family(process.pid)):
            os.kill(pid, 9)


def seat(job_id: int, *tasks: Task, gpu: str = "GPU-a") -> Seat:
    """A job on one GPU."""
    return Seat(job_id, 0, Role.OWNER, "guaranteed", "t", (gpu,), tasks)


def block(job_id: int, progress: Progress) -> Block:
    """The page of one of its processes, as it was last read."""
    identity = Identity(job_id, "batch", 0, 0, Role.OWNER, "guaranteed", "t", ("GPU-a",), 1, 1)
    return Block(Path(f"{job_id}"), identity, -1, progress)


TRAINS = Progress(
    pid=1, phase=Phase.TRAINING, minibatches=11, started_ns=1, first_boundary_ns=1000 * MS
)


def told(measuring: Measuring, job_id: int = 7) -> dict[str, Any]:
    """What is measured of a job."""
    return measuring.meters[job_id].told()


def test_waiting_for_others_is_counted() -> None:
    """All of it while every process stands still, and what a share leaves out while one trains."""
    measuring = Measuring(FS)

    def lasts(seconds: float, *phases: Phase, share_pct: int = 100) -> float:
        pages = [
            replace(block(7, replace(TRAINS, phase=phase)), path=Path(f"7.{at}"))
            for at, phase in enumerate(phases)
        ]
        measuring.look({7: seat(7)}, pages, [], now_s[0])
        now_s[0] += seconds
        told_now = {7: [page.progress for page in pages]}
        measuring.count_waits(told_now, lambda _: share_pct, now_s[0])
        return round(measuring.meters[7].waited_s, 3)

    now_s = [100.0]
    assert lasts(9.0, Phase.PAUSED, Phase.PARKED) == 0.0, "since when is not known"
    assert lasts(1.0, Phase.PAUSED, Phase.PARKED) == 1.0
    assert lasts(1.0, Phase.PAUSED, Phase.TRAINING) == 1.0
    assert lasts(1.0, Phase.TRAINING, Phase.TRAINING, share_pct=25) == 1.75
    assert lasts(1.0, Phase.LOADING, Phase.LOADING, share_pct=25) == 1.75
    assert lasts(60.0, Phase.PARKED, Phase.ENDED) == 6.75, "this daemon was stopped meanwhile"


@pytest.mark.parametrize(
    ("pages", "waits"),
    [
        pytest.param({"agent": (LOADS, 0), "rank": (PARKED, 9)}, True, id="torchrun, parked"),
        pytest.param({"agent": (LOADS, 0), "rank": (PAUSED, 9)}, True, id="torchrun, paused"),
        pytest.param({"agent": (LOADS, 0), "rank": (PAUSED, 0)}, True, id="before its first turn"),
        pytest.param({"agent": (LOADS, 0), "rank": (TRAINS_NOW, 9)}, False, id="torchrun trains"),
        pytest.param(
            {"agent": (LOADS, 0), "a": (PARKED, 9), "b": (TRAINS_NOW, 9)}, False, id="one"
        ),
        pytest.param({"agent": (LOADS, 0)}, False, id="no rank yet"),
        pytest.param({"agent": (LOADS, 0), "rank": (LOADS, 0)}, False, id="still loading"),
        pytest.param({"old": (Phase.ENDED, 9), "new": (LOADS, 0)}, False, id="begins anew"),
        pytest.param({"alone": (LOADS, 9)}, False, id="trained and loads again"),
    ],
)
def test_those_that_train_decide_whether_a_job_waits(
    *, pages: dict[str, tuple[Phase, int]], waits: bool
) -> None:
    """A launcher has a page that stays at `loading`, and it never trains."""
    measuring = Measuring(FS)
    measuring.look({7: seat(7)}, [], [], 100.0)
    told_now = {7: [Progress(pid=1, phase=phase, minibatches=n) for phase, n in pages.values()]}
    for now_s in (100.0, 101.0):
        measuring.count_waits(told_now, lambda _: 100, now_s)
    assert measuring.meters[7].waited_s == (1.0 if waits else 0.0)


def test_a_process_that_was_killed_decides_nothing() -> None:
    """Its page said that it trains; torchrun has started another in its place, which is parked."""
    measuring = Measuring(FS)
    killed = replace(block(7, TRAINS), path=Path("7.killed"))
    measuring.look({7: seat(7)}, [killed], [], 100.0)
    for now_s in (100.0, 101.0):
        measuring.count_waits({7: [replace(TRAINS, phase=PARKED)]}, lambda _: 100, now_s)
    assert measuring.meters[7].waited_s == 1.0


def test_processes_are_counted_with_their_children(task: Task) -> None:
    """Processor time, memory, how long it has lived."""
    measuring = Measuring(FS)
    measuring.look({7: seat(7, task)}, [], [])
    found = told(measuring)
    assert found["cpu_s"] >= 0.2
    assert 64 < found["host_memory_mib"] < 1024
    assert 0 < found["lived_s"] < 300
    assert found["ranks"] == 0
    assert not found["finished"]


def test_gpu_processes_belong_to_the_job_they_descend_from(task: Task) -> None:
    """Also a grandchild; a stranger's are nobody's."""
    measuring = Measuring(FS)
    child = FS.family(task.pid)[1]
    uses = [
        ProcessUse("GPU-a", task.pid, 100 << 20),
        ProcessUse("GPU-a", child, 50 << 20),
        ProcessUse("GPU-a", os.getpid(), 9 << 30),
    ]
    measuring.look({7: seat(7, task)}, [], uses)
    measuring.look({7: seat(7, task)}, [], uses[:1])
    assert told(measuring)["gpu_memory_mib"] == 150


def test_use_counts_from_the_first_boundary_to_the_latest(task: Task) -> None:
    """Neither launching nor leaving is training; work is counted all the same."""
    measuring = Measuring(FS)
    seats = {7: seat(7, task)}

    def look(latest_ms: int, use_pct: float, from_ms: int, to_ms: int) -> None:
        page = block(7, replace(TRAINS, last_boundary_ns=latest_ms * MS))
        use = ProcessUse("GPU-a", task.pid, 1, use_pct, from_ms * MS, to_ms * MS)
        measuring.look(seats, [page], [use])

    look(1000, 10.0, 900, 1000)  # launches
    look(1000, 40.0, 1000, 1100)
    look(1050, 60.0, 1100, 1200)
    assert "gpu_use_pct" not in told(measuring)
    look(1300, 0.0, 1300, 1400)  # it never comes to another boundary
    found = told(measuring)
    assert (found["gpu_use_pct"], found["gpu_use_spread_pct"]) == (50.0, 10.0)
    assert found["busy_s"] == 0.11
    assert found["minibatch_ms"] == 30.0


def test_the_network_counts_while_boundaries_pass(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What leaves the node, without what stays on it."""
    head = "Inter-|   Receive\n face |bytes\n"
    line = "{name}: 1 0 0 0 0 0 0 0 {sent} 0 0 0 0 0 0 0\n"
    (tmp_path / "net").mkdir()

    def sends(sent: int) -> None:
        text = (
            head + line.format(name="    lo", sent=sent * 9) + line.format(name="  eth0", sent=sent)
        )
        (tmp_path / "net" / "dev").write_text(text)

    real = ProcFs._read  # noqa: SLF001 (the one place that reads)
    monkeypatch.setattr(
        ProcFs,
        "_read",
        lambda self, pid, name: (
            (tmp_path / name).read_bytes() if name == "net/dev" else real(self, pid, name)
        ),
    )
    measuring = Measuring(FS)
    for now_s, latest_ms, sent in (
        (1.0, 1000, 1 << 20),
        (3.0, 1500, 5 << 20),
        (9.0, 1500, 9 << 20),
    ):
        sends(sent)
        page = block(7, replace(TRAINS, last_boundary_ns=latest_ms * MS))
        measuring.look({7: seat(7, task)}, [page], [], now_s)
    found = told(measuring)
    assert found["sent_mib"] == 4.0
    assert found["network_mbps"] == pytest.approx(4 * 1.048576 * 8 / 2, abs=0.01)
    measuring.look({7: seat(7, task), 8: seat(8, task, gpu="GPU-b")}, [], [], 10.0)
    assert "sent_mib" not in told(measuring), "who of two sent it cannot be told"
    assert told(measuring)["alone"]


def test_alone_is_who_never_shared_a_gpu(task: Task) -> None:
    """A job whose processes have left takes nothing of its GPU."""
    measuring = Measuring(FS)
    measuring.look({7: seat(7, task), 8: seat(8)}, [], [])
    assert told(measuring)["alone"]
    measuring.look({7: seat(7, task), 8: seat(8, task)}, [], [])
    measuring.look({7: seat(7, task)}, [], [])
    assert not told(measuring)["alone"]


def test_what_was_measured_is_told_until_the_seat_is_gone(task: Task) -> None:
    """The last report comes after the last process: with phases, and that it finished."""
    measuring = Measuring(FS)
    page = block(7, replace(TRAINS, last_boundary_ns=3000 * MS, saving_ns=250 * MS))
    measuring.look({7: seat(7, task)}, [page], [])
    page.progress = replace(page.progress, phase=Phase.ENDED, minibatches=21)
    measuring.page_left(page)
    measuring.look({7: seat(7)}, [], [])
    node = event(
        node="n1",
        at_s=1.0,
        window=Window(),
        seats={7: seat(7)},
        owned={},
        progress={},
        measured=measuring.meters,
    )
    (job,) = node["jobs"]
    found = job["measured"]
    assert found["finished"]
    assert (found["ranks"], found["minibatches"]) == (1, 21)
    assert (found["train_s"], found["save_s"], found["launch_s"]) == (1.75, 0.25, 1.0)
    measuring.look({}, [], [])
    assert not measuring.meters


def test_totals_survive_a_restart_and_last_figures_are_told_twice(
    task: Task, tmp_path: Path
) -> None:
    """Waits and mini-batches go on from the file; what has left meanwhile is told as ended."""
    path = tmp_path / "figures.json"
    first = Measuring(FS, path)
    first.recall({})
    page = block(7, replace(TRAINS, last_boundary_ns=3000 * MS, phase=Phase.PARKED))
    seats = {7: seat(7, task), 8: seat(8, task)}
    first.look(seats, [page], [], 100.0)
    for now_s in (100.0, 103.0):
        first.count_waits({7: [page.progress]}, lambda _: 100, now_s)
    first.look(seats, [page], [], 110.0)
    second = Measuring(FS, path)
    second.recall({7: seat(7, task)})
    assert [one.told["job_id"] for one in second.ended] == [8], "nobody saw it leave"
    second.look({7: seat(7, task)}, [], [], 200.0)
    meter = second.meters[7]
    assert (meter.counts.minibatches, meter.waited_s, meter.parked_s) == (11, 3.0, 3.0)
    second.look({}, [], [], 201.0)
    told = [one.told for one in second.ended]
    assert [(one["job_id"], one["minibatch"]) for one in told] == [(8, 0), (7, 11)]
    second.was_told(told[:1])
    second.was_told(told)
    assert [one.told["job_id"] for one in second.ended] == [7], "the other one was told twice"
    second.look({}, [], [], 202.0)
    third = Measuring(FS, path)
    third.recall({})
    assert [one.told["job_id"] for one in third.ended] == [7]
    path.write_text("{")
    third.recall({})
    assert not third.ended


def test_old_jobs_are_looked_at_seldom(task: Task) -> None:
    """A node with many processes has better things to do."""
    measuring = Measuring(FS)
    seats = {7: seat(7, replace(task, started_ticks=1))}
    measuring.look(seats, [], [], 100.0)
    before = told(measuring)["lived_s"]
    time.sleep(0.05)
    measuring.look(seats, [], [], 101.0)
    assert told(measuring)["lived_s"] == before
    measuring.look(seats, [], [], 102.5)
    assert told(measuring)["lived_s"] > before


def test_a_job_is_quiet_only_as_far_as_a_driver_says_so(task: Task) -> None:
    """Use ends it, silence of the driver about processes does not count, no process on it does."""
    measuring, seats = Measuring(FS), {7: seat(7, task)}

    def quiet(*uses: ProcessUse, tells: tuple[str, ...] = ("GPU-a",)) -> float | None:
        measuring.look(seats, [], uses, 20.0, tells=tells)
        return measuring.meters[7].quiet_since_s

    used = ProcessUse("GPU-a", task.pid, 300 << 20, 40.0, 10**9, 2 * 10**9)
    idle = replace(used, use_pct=0.0, from_ns=2 * 10**9, to_ns=3 * 10**9)
    unknown = replace(idle, from_ns=0, to_ns=0)
    assert quiet(used) is None
    assert quiet(unknown) is None
    assert quiet(idle) == 2.0
    assert quiet(unknown) == 2.0
    assert measuring.meters[7].resident_mib == 300
    assert measuring.meters[7].gpu_pids == {task.pid}
    assert quiet(idle, tells=()) is None
    assert quiet() == 20.0
    assert measuring.meters[7].resident_mib == 0
    assert quiet(used) is None
