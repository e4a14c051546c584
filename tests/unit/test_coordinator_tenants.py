# SPDX-License-Identifier: Apache-2.0
"""Who runs on a node by what /proc says, in trees made for the purpose."""

from __future__ import annotations

import os
import shutil
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from slipstream.coordinator.processes import Kin, ProcFs
from slipstream.coordinator.seats import Task
from slipstream.coordinator.tenants import CARRIER, Tenants

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.unit

ROOT = os.geteuid()
"""Whose slurmstepd is: the user of the coordinator."""


@dataclass
class Tree:
    """A /proc of a test's own."""

    root: Path

    def add(
        self,
        pid: int,
        name: str,
        environment: Mapping[str, str] | None = None,
        *,
        parent: int = 1,
        uid: int = ROOT,
        ticks: int = 7,
        title: str = "",
    ) -> None:
        """A process, in place of the one that was there."""
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t0\t0\t0\n")
        fields = " ".join(["S", str(parent), *["0"] * 17, str(ticks)])
        (folder / "stat").write_text(f"{pid} ({name}) {fields} 0 0\n")
        (folder / "cmdline").write_text(f"{title}\0")
        told = "".join(f"{key}={value}\0" for key, value in (environment or {}).items())
        (folder / "environ").write_text(told)

    def task(self, pid: int, job: int, step: str = "batch", **environment: str) -> None:
        """A task of a job below a slurmstepd of its own."""
        self.add(pid - 1, "slurmstepd", title=f"slurmstepd: [{job}.{step}]")
        told = {"SLURM_JOB_ID": str(job), "SLURMD_NODENAME": "n1", **environment}
        self.add(pid, "slurm_script", told, parent=pid - 1, uid=1000)

    def end(self, pid: int) -> None:
        """It is gone."""
        shutil.rmtree(self.root / str(pid))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Only the first process, and files that are none."""
    made = Tree(tmp_path)
    made.add(1, "systemd")
    (tmp_path / "meminfo").write_text("")
    return made


@pytest.fixture
def tenants(tree: Tree) -> Tenants:
    """Those of n1."""
    return Tenants(ProcFs(tree.root), "n1", "")


def test_an_unflagged_owner_is_found_with_its_gpus(tree: Tree, tenants: Tenants) -> None:
    """Its script, by what Slurm told it."""
    tree.task(11, 5, SLURM_JOB_GPUS="0,2", CUDA_VISIBLE_DEVICES="0,1")
    (found,) = tenants.look().values()
    assert (found.job_id, found.uid, set(found.holds)) == (5, 1000, {0, 2})
    assert found.tasks == (Task("batch", 0, 11, 7),)
    assert (found.is_guest, found.keeps_guests_away) == (False, False)


def test_tasks_of_one_job_hold_what_they_hold_together(tree: Tree, tenants: Tenants) -> None:
    """With --gpus-per-task Slurm tells each of its own GPU only."""
    tree.task(11, 5, "0", SLURM_STEP_GPUS="0")
    second = {"SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n1", "SLURM_LOCALID": "1"}
    tree.add(12, "train", {**second, "SLURM_STEP_GPUS": "1"}, parent=10, uid=1000)
    (found,) = tenants.look().values()
    assert found.holds == {0, 1}
    assert found.tasks == (Task("0", 0, 11, 7), Task("0", 1, 12, 7))


@pytest.mark.parametrize(
    ("step", "environment", "holds"),
    [
        ("0", {"SLURM_JOB_GPUS": "0"}, set()),
        ("batch", {"SLURM_JOB_GPUS": "1", "SLURM_STEP_GPUS": "0", "SLURM_STEP_ID": "0"}, {1}),
        ("batch", {"CUDA_VISIBLE_DEVICES": "0"}, set()),
        ("interactive", {"SLURM_JOB_GPUS": "3", "SLURM_STEP_ID": "4294967290"}, {3}),
    ],
)
def test_what_was_inherited_does_not_count(
    tree: Tree, tenants: Tenants, step: str, environment: dict[str, str], holds: set[int]
) -> None:
    """Neither a step's from its script on another node, nor a script's from a step's sbatch."""
    tree.task(11, 5, step, **environment)
    assert tenants.look()[5].holds == holds


def test_a_guest_is_known_by_its_carrier(tree: Tree, tenants: Tenants) -> None:
    """It is told of GPUs as an owner is, and holds none. Values that are no words do not count.

    Of a guest that was upgraded before its start the SPANK plugin has made an owner.
    """
    carrier = "class=shared,role=guest,token=ab12,evil=a b,share=no"
    tree.task(11, 5, CUDA_VISIBLE_DEVICES="1", SLURM_JOB_GPUS="1", **{CARRIER: carrier})
    upgraded = carrier.replace("role=guest", "role=owner")
    tree.task(21, 6, SLURM_JOB_GPUS="0", **{CARRIER: upgraded})
    found = tenants.look()
    assert found[5].is_guest
    assert not found[5].holds
    assert found[5].sees == (1,)
    assert found[5].carrier == {"class": "shared", "role": "guest", "token": "ab12", "share": "no"}
    assert not found[6].is_guest
    assert found[6].holds == {0}
    assert found[6].keeps_guests_away


@pytest.mark.parametrize(
    "environment",
    [
        {"SLURMD_NODENAME": "n2"},
        {"SLIPSTREAM_GPU_STATE": "of another sandbox"},
        {"SLURM_JOB_ID": "5; rm"},
        {"SLURM_JOB_ID": ""},
    ],
)
def test_what_is_not_of_this_node_is_passed_over(
    tree: Tree, tenants: Tenants, environment: dict[str, str]
) -> None:
    """Another node or another sandbox on the same machine, or no job at all."""
    tree.task(11, 5, **{"SLURM_JOB_GPUS": "0", **environment})
    assert tenants.look() == {}


@pytest.mark.parametrize(
    "environment",
    [
        {"CUDA_VISIBLE_DEVICES": "9" * 5000},
        {"SLURM_JOB_GPUS": "0," + "9" * 5000},
        {"SLURM_LOCALID": "²"},
        {"SLURM_JOB_NUM_NODES": "9" * 5000},
        {"SLURM_JOB_NODELIST": ",".join(f"n{letter}[0-99999]" for letter in "abcdefghijkl")},
    ],
)
def test_numbers_that_are_none_are_not_there(
    tree: Tree, tenants: Tenants, environment: dict[str, str]
) -> None:
    """Users choose what most variables say: it must not end their node's coordinator."""
    tree.task(11, 5, **environment)
    found = tenants.look()[5]
    assert (found.sees, found.holds, found.nodes, found.gang) == ((), frozenset(), 0, ())
    assert found.tasks[0].task == 0


@pytest.mark.parametrize("job", ["6", "²", "05"])
def test_a_job_is_what_slurm_says_it_is(tree: Tree, tenants: Tenants, job: str) -> None:
    """Not what a process has written over its own environment."""
    tree.task(11, 5, SLURM_JOB_GPUS="0", SLURM_JOB_ID=job)
    assert tenants.look() == {}


def test_only_slurms_own_children_are_believed(tree: Tree, tenants: Tenants) -> None:
    """Anybody can write an environment, and anybody can be called slurmstepd."""
    told = {"SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n1", "SLURM_JOB_GPUS": "0"}
    tree.add(11, "sleep", told, parent=1, uid=1000)
    tree.add(20, "slurmstepd", uid=ROOT + 1000, title="slurmstepd: [5.batch]")
    tree.add(21, "sleep", told, parent=20, uid=1000)
    tree.add(30, "slurmstepd", title="slurmstepd infinity")
    tree.add(31, "sleep", told, parent=30, uid=1000)
    assert tenants.look() == {}


def test_what_was_told_first_counts(tree: Tree, tenants: Tenants) -> None:
    """A script that becomes a program which knows nothing of Slurm holds its GPUs all the same."""
    tree.task(11, 5, SLURM_JOB_GPUS="0")
    tenants.look()
    tree.add(11, "python", {"PATH": "/bin"}, parent=10, uid=1000)
    assert tenants.look()[5].holds == {0}


def test_a_task_that_is_about_to_start_is_looked_at_again(tree: Tree, tenants: Tenants) -> None:
    """Between fork and exec it is called slurmstepd, and for a moment it knows nothing of Slurm."""
    tree.add(10, "slurmstepd", title="slurmstepd: [5.batch]")
    tree.add(11, "slurmstepd", parent=10, uid=1000)
    assert tenants.look() == {}
    tree.add(11, "slurm_script", parent=10, uid=1000)
    assert tenants.look() == {}
    tree.add(11, "env", {"PATH": "/bin"}, parent=10, uid=1000)
    assert tenants.look() == {}
    tree.task(11, 5, SLURM_JOB_GPUS="0")
    assert set(tenants.look()) == {5}


def test_jobs_that_have_ended_are_not_there(tree: Tree, tenants: Tenants) -> None:
    """Neither when the process is gone nor when another has its number."""
    tree.task(11, 5, SLURM_JOB_GPUS="0")
    tree.task(21, 6, SLURM_JOB_GPUS="1")
    assert set(tenants.look()) == {5, 6}
    tree.end(11)
    tree.add(21, "cron", ticks=8)
    assert tenants.look() == {}


def test_a_number_that_was_given_again_is_another_process(tree: Tree, tenants: Tenants) -> None:
    """Only numbers are looked at that were not there the last time: that makes a look cheap."""
    tree.add(10, "cron")
    tree.add(11, "cron")
    tenants.look()
    tree.end(10)
    tree.end(11)
    tenants.look()
    tree.task(11, 5, SLURM_JOB_GPUS="0")
    assert set(tenants.look()) == {5}


def test_a_slurmstepd_is_asked_for_its_title_once(tree: Tree, tenants: Tenants) -> None:
    """And again if its number is another's by now, or if it had none yet."""
    tree.add(10, "slurmstepd", title="")
    tenants.look()
    tree.add(10, "slurmstepd", title="slurmstepd: [5.batch]")
    tenants.look()
    tree.add(10, "slurmstepd", title="slurmstepd: [5.extern]")
    tree.add(11, "sleep", {"SLURM_JOB_ID": "5", "SLURMD_NODENAME": "n1"}, parent=10, uid=1000)
    assert tenants.look()[5].tasks[0].step == "batch"
    tree.end(10)
    tree.end(11)
    tree.add(10, "slurmstepd", title="slurmstepd: [6.7]", ticks=99)
    tree.add(12, "sleep", {"SLURM_JOB_ID": "6", "SLURMD_NODENAME": "n1"}, parent=10, uid=1000)
    assert tenants.look()[6].tasks[0].step == "7"


def test_a_process_that_ends_while_it_is_looked_at_is_nobody(tree: Tree) -> None:
    """Its folder is there and nothing can be read."""
    (tree.root / "99").mkdir()
    procfs = ProcFs(tree.root)
    assert (procfs.kin(99), procfs.title(99), procfs.environment(99)) == (None, "", {})
    assert Tenants(procfs, "n1", "").look() == {}


def test_the_real_tree_is_read_the_same_way() -> None:
    """This process, as the kernel tells of it."""
    procfs = ProcFs()
    mine = procfs.kin(os.getpid())
    assert isinstance(mine, Kin)
    assert (mine.parent, procfs.real_uid(os.getpid())) == (os.getppid(), os.getuid())
    assert mine.started_ticks == procfs.started_ticks(os.getpid()) > 0
    assert os.getpid() in procfs.pids()
    assert "python" in procfs.title(os.getpid())


@pytest.mark.parametrize(("age_s", "is_found"), [(1, True), (3600, False)])
def test_a_young_process_may_become_another(tree: Tree, age_s: int, *, is_found: bool) -> None:
    """Seen between fork and exec under its starter's name, it is looked at again."""
    now_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")
    started_ticks = int(now_ticks - age_s * os.sysconf("SC_CLK_TCK"))
    tenants = Tenants(ProcFs(tree.root), "n1", "")
    tree.add(99, "python", ticks=started_ticks)
    assert tenants.look() == {}
    tree.task(100, 5, SLURM_JOB_GPUS="0")
    assert (5 in tenants.look()) is is_found
