# SPDX-License-Identifier: Apache-2.0
"""Coordinators beside a real cluster: guests are seated, seen, and keep order without them."""

from __future__ import annotations

import itertools
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator_rig import Coordinator, Events, eventually, running
from occupancy_rig import history
from slipstream.sandbox import Sandbox, Shape
from slipstream.wire import control_block, gpu_state
from slipstream.wire.control_block import Phase, Progress, Up

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sandbox

ROOT = Path(__file__).parents[2]
ENDLESS = ("--minibatches=1000000", "--report-every=1000", "--memory-mib=100")


@dataclass
class _Words:
    """A page's words, as they are in the file now."""

    page: Path

    def read(self, first: int, count: int) -> list[int]:
        """So many of them."""
        return memoryview(self.page.read_bytes()).cast("Q").tolist()[first : first + count]


@dataclass
class Coordinated:
    """A sandbox of one node with its coordinator, and a folder for its jobs."""

    sandbox: Sandbox
    coordinator: Coordinator
    folder: Path

    def submit(self, role: str, *options: str, gres: str = "slot:1") -> int:
        """Start the example trainer, unchanged, as a task that the node is asked for."""
        task = ROOT / "tests/coordinator_task.py"
        line = " ".join(
            [
                f"{sys.executable} {task} {self.coordinator.run_dir.parent} {role}",
                f"{sys.executable} {ROOT}/examples/train.py {' '.join(options)}",
            ]
        )
        done = self.sandbox.run(
            *("sbatch", "--parsable", f"--gres={gres}", f"--output={self.folder}/%j.out"),
            f"--wrap=exec {line}",
        )
        return int(done.stdout)

    def output(self, job: int) -> str:
        """What a job has printed."""
        path = self.folder / f"{job}.out"
        return path.read_text() if path.exists() else ""

    def progress(self, job: int) -> Progress:
        """What a job's page says."""
        for page in (self.coordinator.run_dir / "blocks" / str(job)).glob("batch.*"):
            if read := control_block.read_half(Up, _Words(page).read):
                return control_block.read_progress(read)
        return Progress()

    def trains(self, *jobs: int) -> bool:
        """Whether they all have mini-batches to show."""
        return all(self.progress(job).minibatches > 3 for job in jobs)

    def seats(self) -> dict[int, list[str]]:
        """Who sits where, as the coordinator keeps it."""
        table = json.loads((self.coordinator.run_dir / "seats.json").read_text())
        return {seat["job_id"]: seat["gpu_uuids"] for seat in table["seats"]}

    def cancel(self, *jobs: int) -> None:
        """End jobs and wait until their seats are free."""
        self.sandbox.run("scancel", *map(str, jobs))
        assert eventually(lambda: not set(jobs) & set(self.seats()), within_s=60)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinated]:
    """One node of two GPUs and its coordinator."""
    home = tmp_path_factory.mktemp("c")
    shape = Shape(nodes=1, racks=1, gpus_per_node=2, gpu_memory_mib=1024)
    with Sandbox.started(shape, name="seats", home=home) as sandbox:
        run_dir = home / "run" / "n1"
        run_dir.mkdir(parents=True)
        environment = {**sandbox.node_environment("n1"), "SLIPSTREAM_RUN_DIR": str(home / "run")}
        with running(Coordinator(run_dir, environment, ("--lease-s=2",))) as coordinator:
            yield Coordinated(sandbox, coordinator, home)


def test_guests_get_distinct_gpus_and_a_third_shares_the_least_used(node: Coordinated) -> None:
    """Two trainings on two GPUs, one of them busy; the third goes to the other."""
    busy = node.submit("guest", *ENDLESS, "--kernel-ms=20", "--host-ms=1")
    assert eventually(lambda: node.trains(busy), within_s=45), node.output(busy)
    idle = node.submit("guest", *ENDLESS, "--kernel-ms=1", "--host-ms=60")
    assert eventually(lambda: node.trains(idle), within_s=45), node.output(idle)
    assert node.seats()[busy] != node.seats()[idle]
    time.sleep(3)  # use is a mean over a while
    third = node.submit("guest", *ENDLESS, "--kernel-ms=1", "--host-ms=60")
    assert eventually(lambda: node.trains(third), within_s=45), node.output(third)
    seats = node.seats()
    node.cancel(busy, idle, third)
    assert seats[third] == seats[idle]


def test_a_training_is_seen_in_its_page_and_in_events(node: Coordinated) -> None:
    """Mini-batches and their time, of an example that knows nothing of us; an owner beside it."""
    with Events(node.coordinator.run_dir.parent / "events.sock").listening() as scheduler:
        owner = node.submit("owner", *ENDLESS, "--host-ms=20", gres="gpu:1")
        assert eventually(lambda: node.seats().get(owner)), "its GPU is known once it runs"
        guest = node.submit("guest", *ENDLESS, "--host-ms=20")
        assert eventually(lambda: node.trains(owner, guest), within_s=45), node.output(guest)

        def told() -> bool:
            jobs = {job["job_id"]: job for event in scheduler.heard for job in event["jobs"]}
            return all(jobs.get(job, {}).get("minibatch", 0) > 3 for job in (owner, guest))

        assert eventually(told)
        event = scheduler.heard[-1]
    node.cancel(owner, guest)
    (report,) = (job for job in event["jobs"] if job["job_id"] == guest)
    assert report["phase"] == "training"
    assert 20 <= report["minibatch_ms"] < 200
    places = {gpu["owner_job"]: gpu for gpu in event["gpus"]}
    assert places[owner]["index"] == 0, "what Slurm gave it"
    assert places[owner]["guest_jobs"] == []
    assert places[None]["guest_jobs"] == [guest]


def test_without_a_coordinator_guests_of_one_gpu_take_turns(node: Coordinated) -> None:
    """Killed: training goes on, in turns by the GPU's own account. Back: seats and leases too."""
    options = (*ENDLESS, "--kernel-ms=10", "--kernels-per-minibatch=2", "--host-ms=5")
    jobs = [node.submit("guest", *options) for _ in range(3)]
    assert eventually(lambda: node.trains(*jobs), within_s=45), node.output(jobs[0])
    seats = node.seats()
    (shared,) = (
        pair for pair in itertools.combinations(jobs, 2) if seats[pair[0]] == seats[pair[1]]
    )

    lost_before = [node.progress(job).leases_lost for job in shared]
    node.coordinator.kill()
    assert eventually(
        lambda: any(node.progress(job).phase == Phase.WAITING_FOR_BATON for job in shared)
    )
    began_ns = time.monotonic_ns()
    before = [node.progress(job).minibatches for job in shared]
    time.sleep(9)
    turns = _turns(node, seats[shared[0]][0], began_ns)
    after = [node.progress(job).minibatches for job in shared]
    lost = [node.progress(job).leases_lost for job in shared]

    node.coordinator.start()
    assert eventually(lambda: node.trains(*jobs))
    time.sleep(1)
    again = [node.progress(job).phase for job in shared]
    kept = node.seats()
    node.cancel(*jobs)
    assert all(new > old + 20 for old, new in zip(before, after, strict=True)), (before, after)
    assert [new - old for old, new in zip(lost_before, lost, strict=True)] == [1, 1]
    assert 4 <= len(turns) <= 9, turns
    assert max(turn_s for _, turn_s in turns) < 3.0, "a slice is two seconds, and a mini-batch"
    assert again == [Phase.TRAINING, Phase.TRAINING]
    assert kept == seats


def _turns(node: Coordinated, uuid: str, began_ns: int) -> list[tuple[int, float]]:
    """Who ran kernels on a GPU since then: place in its table, and for how many seconds."""
    gpus = gpu_state.map_node(node.sandbox.layout.gpu_state("n1")).gpus
    (gpu,) = (one for one in gpus if one.uuid.decode() == uuid)
    ran = [one for one in history(gpu, gpu_state.COMPUTE) if one.start_ns >= began_ns]
    turns = []
    for slot, group in itertools.groupby(ran, key=lambda one: one.slot):
        kernels = list(group)
        turns.append((slot, (kernels[-1].end_ns - kernels[0].start_ns) / 1e9))
    return turns
