# SPDX-License-Identifier: Apache-2.0
"""Beside a slurmd that constrains devices (cgroup v1): a guest opens its own GPU and no other."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(300)]

CGROUPS = Path("/sys/fs/cgroup/devices")
CONSTRAINS = "CgroupAutomount=no\nCgroupPlugin=cgroup/v1\nConstrainDevices=yes\n"
LOOK = """
import errno, os, sys
def found(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return errno.errorcode[error.errno]
    return "opened"
folder = sys.argv[1]
told = [found(f"{folder}/nvidia{index}") for index in (0, 1)]
print(sys.argv[2], os.environ.get("CUDA_VISIBLE_DEVICES"), *told, flush=True)
"""
MAY, MAY_NOT = "ENXIO", "EPERM"
"""No driver answers for the devices of a sandbox; who is denied one does not come so far."""
SHOW_NODE = ("scontrol", "show", "node", "n1", "--oneliner")
GUEST = ("--slip-class=opportunistic", "--gpus=1")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One node of two GPUs, with our daemons, whose slurmd is started anew to constrain."""
    if os.geteuid() != 0 or not os.access(CGROUPS / "cgroup.procs", os.W_OK):
        pytest.skip("needs root and the device controller of cgroup v1, to be written to")
    before = set(CGROUPS.glob("slurm*"))
    shape = Shape(nodes=1, gpus_per_node=2, racks=1, gpu_memory_mib=1024)
    home = tmp_path_factory.mktemp("dev")
    with Sandbox.started(shape, name="devices", home=home, daemons=True) as sandbox:
        conf = sandbox.layout.slurm_conf
        text = re.sub(r"(?m)^TaskPlugin=.*$", "TaskPlugin=task/cgroup", conf.read_text())
        conf.write_text(text)
        (sandbox.layout.etc / "cgroup.conf").write_text(CONSTRAINS)
        for daemon in ("slurmctld", "slurmd-n1"):
            sandbox.kill(daemon)
        sandbox.revive()
        until_idle(sandbox)
        yield sandbox
    for tree in set(CGROUPS.glob("slurm*")) - before:
        for folder in sorted([tree, *tree.rglob("*/")], reverse=True):
            if folder.is_dir():
                folder.rmdir()


def until_idle(box: Sandbox) -> None:
    """Wait for the node to be back."""
    deadline_s = time.monotonic() + 60
    while "State=IDLE " not in (shown := box.run(*SHOW_NODE, check=False).stdout):
        assert time.monotonic() < deadline_s, shown
        time.sleep(0.1)


def lines(box: Sandbox, folder: Path, *words: str, script: str) -> list[list[str]]:
    """What a batch job prints."""
    look = folder / "look.py"
    look.write_text(LOOK)
    look_at = f"/usr/bin/python3 {look} {box.layout.devices('n1')}"
    text = "#!/bin/sh\n" + script.replace("LOOK", look_at)
    (folder / "job.sh").write_text(text)
    out = folder / "out"
    out.unlink(missing_ok=True)  # Slurm appends
    job = ("sbatch", "--wait", f"--output={out}", *words, str(folder / "job.sh"))
    done = box.run(*job, check=False)
    assert done.returncode == 0, (done.stderr, out.read_text())
    return [line.split() for line in out.read_text().splitlines()]


def test_slurm_denies_who_holds_no_gpu(box: Sandbox, tmp_path: Path) -> None:
    """So that the other test shows something: a plain job of one GPU may open that one alone."""
    (nothing,) = lines(box, tmp_path, script="LOOK job\n")
    assert nothing[2:] == [MAY_NOT, MAY_NOT]
    (one,) = lines(box, tmp_path, "--gres=gpu:1", script="LOOK job\n")
    assert one[2:] == [MAY, MAY_NOT]


def test_a_guest_may_open_its_gpu_and_no_other(box: Sandbox, tmp_path: Path) -> None:
    """In its script, in a step, and in its script after the step, which has stripped it."""
    script = "LOOK before\nsrun --quiet LOOK step\nLOOK after\n"
    found = lines(box, tmp_path, *GUEST, script=script)
    assert [line[0] for line in found] == ["before", "step", "after"]
    granted = {tuple(line[1:]) for line in found}
    assert granted in ({("0", MAY, MAY_NOT)}, {("0", MAY_NOT, MAY)}), found
