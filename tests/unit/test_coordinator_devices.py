# SPDX-License-Identifier: Apache-2.0
"""Granting devices: the right rules, in the right files, in the right order."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from passing import come_and_go
from slipstream.coordinator import devices
from slipstream.coordinator.devices import DeviceCgroups, Grant

pytestmark = pytest.mark.unit

NULL, ZERO = Path("/dev/null"), Path("/dev/zero")
REAL_ROOT = Path("/sys/fs/cgroup/devices")


def job_tree(root: Path, *steps: str, slurm: str = "slurm") -> Path:
    """A job's cgroups as Slurm makes them."""
    job = root / slurm / "uid_1000" / "job_7"
    for folder in (job, *(job / step for step in steps)):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "devices.allow").touch()
    return job


def granted(folder: Path) -> str:
    """What was written there last."""
    return (folder / "devices.allow").read_text()


def test_a_job_that_slurm_does_not_constrain_needs_nothing(tmp_path: Path) -> None:
    """There is no cgroup of it."""
    grant = DeviceCgroups(tmp_path).grant(uid=1000, job_id=7, devices=[NULL])
    assert (grant.constrained, grant.refused) == (False, ())


def test_steps_may_end_while_a_job_is_granted_devices(tmp_path: Path) -> None:
    """A step that begins has its devices, whatever becomes of the others."""
    job = job_tree(tmp_path, "step_1")
    with come_and_go(*(job / f"step_{number}" for number in range(10, 20))):
        for _ in range(300):
            grant = DeviceCgroups(tmp_path).grant(uid=1000, job_id=7, devices=[NULL])
            assert grant == Grant(constrained=True)
    assert granted(job / "step_1")


def test_job_steps_and_tasks_are_all_granted(tmp_path: Path) -> None:
    """A running step of the same job too: the new one has just stripped it."""
    steps = ("step_batch", "step_batch/task_0", "step_0", "step_0/task_0", "step_0/task_1")
    job = job_tree(tmp_path, *steps)
    grant = DeviceCgroups(tmp_path).grant(uid=1000, job_id=7, devices=[NULL])
    assert (grant.constrained, grant.refused) == (True, ())
    assert {granted(folder) for folder in (job, *(job / step for step in steps))} == {"c 1:3 rw"}


def test_parents_are_granted_before_their_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel refuses a child what its parent may not."""
    job_tree(tmp_path, "step_0", "step_0/task_0", "step_batch", "step_batch/task_0")
    order: list[str] = []
    real_open = os.open

    def noted(path: Path, flags: int) -> int:
        order.append(str(path.parent.relative_to(tmp_path / "slurm/uid_1000")))
        return real_open(path, flags)

    monkeypatch.setattr(os, "open", noted)
    DeviceCgroups(tmp_path).grant(uid=1000, job_id=7, devices=[NULL])
    for place, folder in enumerate(order):
        assert all(str(above) in order[:place] for above in Path(folder).parents if above.name)


def test_the_tree_of_this_node_is_taken(tmp_path: Path) -> None:
    """Several slurmd on one machine have a tree each."""
    mine = job_tree(tmp_path, slurm="slurm_n1")
    other = job_tree(tmp_path, slurm="slurm")
    DeviceCgroups(tmp_path, node="n1").grant(uid=1000, job_id=7, devices=[ZERO])
    assert (granted(mine), granted(other)) == ("c 1:5 rw", "")


def test_another_users_job_of_that_number_is_not_touched(tmp_path: Path) -> None:
    """The user is part of the way."""
    job = job_tree(tmp_path)
    grant = DeviceCgroups(tmp_path).grant(uid=1001, job_id=7, devices=[NULL])
    assert (grant.constrained, granted(job)) == (False, "")


def test_what_is_no_device_is_not_granted(tmp_path: Path) -> None:
    """One that is missing, and a plain file; the others still are."""
    job = job_tree(tmp_path)
    plain = tmp_path / "nvidia0"
    plain.touch()
    grant = DeviceCgroups(tmp_path).grant(
        uid=1000, job_id=7, devices=[plain, tmp_path / "nvidia1", NULL]
    )
    assert [sentence.rpartition(": ")[2] for sentence in grant.refused] == [
        "is not a character device",
        "No such file or directory",
    ]
    assert granted(job) == "c 1:3 rw"


def test_a_step_that_ends_meanwhile_is_no_error(tmp_path: Path) -> None:
    """Its files are gone before its folder is."""
    job = job_tree(tmp_path, "step_0")
    (job / "step_0/devices.allow").unlink()
    assert DeviceCgroups(tmp_path).grant(uid=1000, job_id=7, devices=[NULL]).refused == ()


def test_the_kernel_takes_the_rules() -> None:
    """A real device cgroup (v1): denied everything, then granted one device."""
    if os.geteuid() != 0 or not (REAL_ROOT / "devices.allow").exists():
        pytest.skip("needs root and the device controller of cgroup v1")
    name = f"slurm_test{os.getpid()}"
    folders = [REAL_ROOT / name, REAL_ROOT / name / "uid_1000"]
    folders += [folders[-1] / "job_7", folders[-1] / "job_7/step_0"]
    try:
        for folder in folders:
            try:
                folder.mkdir()
            except OSError as error:
                pytest.skip(f"no cgroup can be made here: {error}")
            if folder.name == "job_7":
                (folder / "devices.deny").write_text("a")  # its steps begin with as little
        grant = DeviceCgroups(REAL_ROOT, node=name.removeprefix("slurm_")).grant(
            uid=1000, job_id=7, devices=[NULL]
        )
        assert grant == devices.Grant(constrained=True)
        assert "c 1:3 rw" in (folders[-1] / "devices.list").read_text()
        assert _may_open(NULL, folders[-1])
        assert not _may_open(ZERO, folders[-1])
    finally:
        for folder in reversed(folders):
            if folder.exists():
                folder.rmdir()


def _may_open(device: Path, cgroup: Path) -> bool:
    """Whether a process in that cgroup may open the device."""
    assert stat.S_ISCHR(device.stat().st_mode)
    child = os.fork()
    if child == 0:
        try:
            descriptor = os.open(cgroup / "cgroup.procs", os.O_WRONLY)
            os.write(descriptor, str(os.getpid()).encode())
            os.close(os.open(device, os.O_RDWR))
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
