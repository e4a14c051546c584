# SPDX-License-Identifier: Apache-2.0
"""Whose a job is: Slurm's word, by the slurmstepd above whoever asks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator_rig import asked_as, eventually, told
from stepd_rig import slurm_node

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepd_rig import Slurm

pytestmark = pytest.mark.unit

USER = 4321
ASKING = f"""
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import coordinator_rig
run_dir, out, uid, job = sys.argv[1:]
file = open(out, "w")
os.setuid(int(uid))
file.write(coordinator_rig.ask(Path(run_dir), uid=uid, job=job))
file.flush()
time.sleep(600)
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    """A node of two GPUs, and who starts jobs on it."""
    with slurm_node() as found:
        yield found


def asked_in(slurm: Slurm, folder: Path, job: int, asks_for: int) -> str:
    """What a process of an ordinary user's is answered that Slurm has started for a job."""
    script, out = folder / "asking.py", folder / f"{job}.out"
    script.write_text(ASKING)
    slurm.start(job, f"{sys.executable} {script} {slurm.node.run_dir} {out} {USER} {asks_for}")
    assert eventually(lambda: out.exists() and out.read_text())
    return out.read_text()


@needs_root
def test_a_task_is_of_the_job_that_slurm_has_started_it_for(slurm: Slurm, tmp_path: Path) -> None:
    """The user's own page, and no page of the next job, whose number can be guessed."""
    mine = told(asked_in(slurm, tmp_path, 23, asks_for=23))
    assert Path(mine["SLIPSTREAM_CONTROL"]).stat().st_uid == USER
    assert "is no process of job 25" in asked_in(slurm, tmp_path, 24, asks_for=25)


@needs_root
def test_who_comes_first_has_no_right_to_a_job(slurm: Slurm, tmp_path: Path) -> None:
    """A seat that is somebody else's by mistake does not keep the job's user from it."""
    assert "is no process of job 23" in asked_as(USER + 1, slurm.node.run_dir, job=23, uid=USER + 1)
    slurm.node.ask(job=23, uid=USER + 1)
    assert told(asked_in(slurm, tmp_path, 23, asks_for=23))
    assert "is not of uid" in asked_as(
        USER + 1, slurm.node.run_dir, job=23, uid=USER + 1, op="block"
    )
