# SPDX-License-Identifier: Apache-2.0
"""Guests and their seats with all daemons: the same by the select wrapper and by soft hold."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from sandbox.jobs import OURS, sbatch, wait_for
from slipstream.sandbox import Sandbox, SandboxError, Shape
from slipstream.sandbox.select_plugin import plugin_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(300)]

SHAPE = Shape(nodes=2, gpus_per_node=1, racks=1, cpus_per_node=8, gpu_memory_mib=1024)
LEASE_S = 20
SLEEP = "exec sleep 600"


class Box:
    """A sandbox with our daemons, and how advice should be carried out in it."""

    def __init__(self, cluster: Sandbox, carrier: str, folder: Path) -> None:
        self.cluster = cluster
        self.carrier = carrier
        self._output = folder / "out"

    def job(self, *words: str, script: str = SLEEP, output: Path | None = None) -> str:
        """Submit one that sleeps, and be heard by the scheduler if it has a flag.

        On a busy machine job_submit's 20 ms may pass: Slurm decides alone then, which others test.
        """
        while True:
            job = sbatch(self.cluster, output or self._output, *words, script=script)
            told = (self.cluster.layout.log / "slurmctld.log").read_text().split(" daemon: ")
            if "--slip-" not in " ".join(words) or told[-1].startswith("answered"):
                return job
            self.cluster.run("scancel", job)

    def plain_owner(self, node: str, eventually: Eventually, *words: str) -> str:
        """A job that holds the node's only GPU, seen by the scheduler."""
        job = self.job("--gres=gpu:1", f"--nodelist={node}", *words)
        assert eventually(lambda: self.why(job).get("phase") == "running"), self.why(job)
        return job

    def where(self, job: str) -> str:
        """State and nodes, by Slurm."""
        return self.cluster.run("squeue", "-h", f"--jobs={job}", "-o", "%T %N").stdout.strip()

    def says(self, *words: str) -> dict[str, Any]:
        """A command's words for programs; nothing if the scheduler does not answer."""
        argv = (sys.executable, "-m", "slipstream.cli", *words)
        done = self.cluster.run(*argv, "--json", check=False)
        told: dict[str, Any] = json.loads(done.stdout) if not done.returncode else {}
        return told

    def why(self, job: str) -> dict[str, Any]:
        """What is said of a job."""
        found: dict[str, Any] = self.says("why", job).get("why", {})
        return found


@pytest.fixture(scope="module", params=["board", "hold"])
def one_box(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Box]:
    """With the wrapper and without it; the daemons are the same."""
    folder = tmp_path_factory.mktemp("carriers")
    try:
        plugins = plugin_dir() if request.param == "board" else ""
    except SandboxError as error:
        pytest.skip(str(error))
    with Sandbox.started(
        SHAPE,
        name="carriers",
        home=folder,
        daemons=True,
        plugin_dir=plugins,
        scheduler={
            "shares": "lab=1,shop=1",
            "guest_after_s": "2",
            # Nothing here is about how long it takes.
            "lease_s": str(LEASE_S),
            "poll_slowest_s": "3",
            "poll_away_s": "3",
        },
    ) as cluster:
        yield Box(cluster, request.param, folder)


@pytest.fixture
def box(one_box: Box, eventually: Eventually) -> Iterator[Box]:
    """With every daemon alive, and empty afterwards."""
    yield one_box
    one_box.cluster.revive()
    one_box.cluster.run("scancel", "--user=root", check=False)
    assert eventually(lambda: not one_box.cluster.run("squeue", "-h").stdout.strip())
    assert eventually(lambda: one_box.says("jobs").get("jobs") == [])


def test_the_daemon_finds_out_what_carries_its_advice(box: Box, eventually: Eventually) -> None:
    """Before any job was submitted, and again after slurmctld was killed and came back."""
    assert eventually(lambda: box.says("mode").get("carrier") == box.carrier)
    box.cluster.kill("slurmctld")
    assert eventually(lambda: bool(box.says("mode").get("slurm_away")))
    box.cluster.revive()
    assert eventually(lambda: not box.says("mode").get("slurm_away", True))
    assert eventually(lambda: box.says("mode").get("carrier") == box.carrier)


@pytest.mark.parametrize("words", [(), ("--slip-class=shared", "--no-slip-share")])
def test_a_guest_starts_where_the_gpu_takes_guests(
    box: Box, words: tuple[str, ...], eventually: Eventually
) -> None:
    """The owner of n1's GPU has no hooks, or does not share: the guest is on n2."""
    box.plain_owner("n1", eventually, *words)
    guests = [box.job("--gres=gpu:1", OURS) for _ in range(3)]
    assert eventually(lambda: {box.where(job) for job in guests} == {"RUNNING n2"}), [
        (box.where(job), box.why(job)) for job in guests
    ]
    shown = [box.cluster.run("scontrol", "show", "job", job).stdout for job in guests]
    assert {"bound=1" in text for text in shown} == {box.carrier == "hold"}


def test_a_guest_waits_for_a_seat_and_holds_up_nobody(box: Box, eventually: Eventually) -> None:
    """Both GPUs are owned without hooks: it waits and says so; it starts where one is freed."""
    first = box.plain_owner("n1", eventually)
    second = box.plain_owner("n2", eventually)
    guest = box.job("--gres=gpu:1", OURS)
    assert eventually(lambda: box.why(guest).get("reason") == "no_guest_seat"), box.why(guest)
    told = box.why(guest)
    assert told["because"] == [
        f"n1: owner {first} has no hooks",
        f"n2: owner {second} has no hooks",
    ]
    assert (told["advice"]["nodes"], told["advice"]["strength"]) == ([], "require")
    plain = box.job()
    assert eventually(lambda: box.where(plain).startswith("RUNNING"))
    assert box.where(guest) == "PENDING"
    box.cluster.run("scancel", second)
    assert eventually(lambda: box.where(guest) == "RUNNING n2"), box.why(guest)


def test_each_task_of_a_waiting_array_waits(box: Box, eventually: Eventually) -> None:
    """Two tasks find no seat; one GPU is freed and both sit there."""
    box.plain_owner("n1", eventually)
    second = box.plain_owner("n2", eventually)
    array = box.job("--gres=gpu:1", OURS, "--array=1-2")
    tasks = [f"{array}_{number}" for number in (1, 2)]
    assert eventually(lambda: all(box.why(one).get("reason") == "no_guest_seat" for one in tasks))
    assert [box.where(one) for one in tasks] == ["PENDING", "PENDING"]
    box.cluster.run("scancel", second)
    assert eventually(lambda: {box.where(one) for one in tasks} == {"RUNNING n2"}), [
        box.why(one) for one in tasks
    ]


def test_a_guaranteed_job_waits_for_its_accounts_quota(box: Box, eventually: Eventually) -> None:
    """A GPU of two is the lab's: its second job waits beside a free one, which the shop gets."""
    words = ("--gres=gpu:1", "--slip-class=guaranteed")
    first = box.job(*words, "--account=lab")
    assert eventually(lambda: box.where(first).startswith("RUNNING")), box.why(first)
    assert eventually(lambda: box.why(first).get("phase") == "running")
    second = box.job(*words, "--account=lab")
    assert eventually(lambda: box.why(second).get("reason") == "over_quota"), f"{box.why(second)}"
    third = box.job(*words, "--account=shop")
    assert eventually(lambda: box.where(third).startswith("RUNNING")), box.why(third)
    assert box.where(second) == "PENDING"
    box.cluster.run("scancel", first)
    assert eventually(lambda: box.where(second).startswith("RUNNING")), box.why(second)


def test_a_disk_that_takes_its_time_lets_nobody_past_a_quota(
    box: Box, eventually: Eventually
) -> None:
    """Slurm looks for places while the journal cannot be written: what we answered holds already.

    The second of two alike is answered from the first, if it comes soon enough.
    """
    words = ("--gres=gpu:1", "--slip-class=guaranteed", "--account=lab")
    first = box.job(*words)
    assert eventually(lambda: box.why(first).get("phase") == "running"), box.why(first)
    with closing(sqlite3.connect(box.cluster.layout.state / "journal.sqlite")) as journal:
        journal.execute("BEGIN IMMEDIATE")
        until_s = time.monotonic() + LEASE_S  # nothing is renewed meanwhile
        late = [box.job(*words) for _ in range(2)]
        assert eventually(lambda: all(box.why(job).get("phase") == "waiting" for job in late))
        for _ in range(2):
            plain = box.job()  # behind them: Slurm has passed them over
            assert eventually(lambda job=plain: box.where(job).startswith("RUNNING"))  # type: ignore[misc]
        found = {box.where(job) for job in late}
        assert found == {"PENDING"}, f"{until_s - time.monotonic():.1f} s of the lease were left"
        journal.rollback()
    box.cluster.run("scancel", first)
    assert eventually(lambda: box.where(late[0]).startswith("RUNNING")), box.why(late[0])
    assert box.where(late[1]) == "PENDING"


def test_nodes_are_kept_for_a_gang_and_guests_sit_there(box: Box, eventually: Eventually) -> None:
    """A node is free and another not: small owners that come later wait with it, a guest does not.

    It is Slurm's backfill that keeps it; our advice must not lead anybody around that.
    """
    first = box.plain_owner("n1", eventually)
    second = box.plain_owner("n2", eventually)
    owner = ("--gres=gpu:1", "--slip-class=guaranteed")
    gang = box.job(*owner, "--nodes=2", "--account=lab")
    small = [box.job(*owner, "--account=shop") for _ in range(2)]
    assert eventually(lambda: all(box.why(job).get("reason") for job in (gang, *small)))
    box.cluster.run("scancel", second)
    guest = box.job("--gres=gpu:1", OURS, "--time=5")
    assert eventually(lambda: box.where(guest) == "RUNNING n2"), box.why(guest)
    assert {box.where(job) for job in (gang, *small)} == {"PENDING"}
    box.cluster.run("scancel", first)
    assert eventually(lambda: box.where(gang) == "RUNNING n[1-2]"), box.why(gang)
    assert box.where(guest) == "RUNNING n2"


def test_tasks_with_roles_run_where_they_are_planned(
    box: Box, tmp_path: Path, eventually: Eventually
) -> None:
    """The script finds a host file, and srun follows it."""
    assert eventually(lambda: [len(one["devices"]) for one in box.says("gpus")["nodes"]] == [1, 1])
    words = ("--gres=gpu:1", "--slip-class=guaranteed", "--account=lab", "--nodes=2", "--ntasks=3")
    show = 'cat "$SLURM_HOSTFILE"; echo; srun --label printenv SLURMD_NODENAME | sort'
    job = box.job(*words, "--slip-roles=ps:1,worker:2", script=show, output=tmp_path / "out-%j")
    wait_for(box.cluster, job)
    told = (tmp_path / f"out-{job}").read_text()
    planned, _, ran = told.partition("\n\n")
    assert planned.split() == [line.partition(": ")[2] for line in ran.splitlines()], told
    assert sorted({*planned.split()}) == ["n1", "n2"]


def test_an_auto_job_that_waits_too_long_is_a_guest(box: Box, eventually: Eventually) -> None:
    """Its account has no GPU left: it takes a seat of the free one, where owners may still come."""
    words = ("--gres=gpu:1", "--account=lab")
    first = box.job(*words, "--slip-class=guaranteed")
    assert eventually(lambda: box.why(first).get("phase") == "running"), box.why(first)
    assert box.says("mode", "enforce")
    try:
        job = box.job(*words, "--slip-class=auto")
        assert eventually(lambda: box.where(job).startswith("RUNNING")), box.why(job)
    finally:
        assert box.says("mode", "advise")
    assert eventually(lambda: box.why(job).get("phase") == "running"), box.why(job)
    told = box.why(job)
    assert (told["class"], told["role"], told["gpus"], told["slots"]) == ("auto", "guest", 0, 1)
    assert box.where(job) != box.where(first)
    shown = box.cluster.run("scontrol", "show", "job", job).stdout
    assert "role=guest" in shown


def test_all_daemons_gone_a_waiting_guest_starts_by_the_expiry(
    box: Box, eventually: Eventually
) -> None:
    """No seat, then nobody who could say so: Slurm decides alone when the lease is over."""
    for node in ("n1", "n2"):
        box.plain_owner(node, eventually)
    guest = box.job("--gres=gpu:1", OURS)
    assert eventually(lambda: box.why(guest).get("reason") == "no_guest_seat"), box.why(guest)
    ours = [name for name in box.cluster.daemons() if name.startswith(("scheduler", "coordinator"))]
    assert len(ours) == 1 + SHAPE.nodes
    for name in ours:
        box.cluster.kill(name)
    assert box.where(guest) == "PENDING"
    deadline = time.monotonic() + LEASE_S + 60
    while time.monotonic() < deadline and box.where(guest) == "PENDING":
        time.sleep(0.5)
    assert box.where(guest).startswith("RUNNING")
