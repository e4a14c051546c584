# SPDX-License-Identifier: Apache-2.0
"""`slipstream setup` on a plain cluster: a guest runs on it, and afterwards it is plain again."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import OURS, sbatch, wait_for
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]

SHAPE = Shape(nodes=1, gpus_per_node=2, racks=1, cpus_per_node=8)


def restarted(box: Sandbox, eventually: Eventually) -> None:
    """As the command says: GRES and plugins are read at the start only."""
    for name in ("slurmd-n1", "slurmctld"):
        box.kill(name)
    box.revive()
    assert eventually(lambda: box.run("sinfo", "-h", "-o", "%t").stdout.strip() == "idle")


def test_a_plain_cluster_takes_guests_and_is_plain_again(
    tmp_path: Path, eventually: Eventually
) -> None:
    """Applied, restarted, a guest holds a slot; taken back, Slurm does not know the flag."""
    with Sandbox.started(SHAPE, name="s", home=tmp_path, stock=True) as box:
        files = {path: path.read_bytes() for path in box.layout.etc.iterdir()}
        where = (f"--library={tmp_path / 'lib' / 's.so'}", f"--lua={tmp_path / 'lua'}")
        setup = (sys.executable, "-m", "slipstream.cli", "setup", *where)
        assert "+++" in box.run(*setup).stdout
        box.run(*setup, "--apply")
        restarted(box, eventually)
        output = tmp_path / "out"
        script = "scontrol show job $SLURM_JOB_ID; echo gpu $CUDA_VISIBLE_DEVICES"
        guest = sbatch(box, output, "--gres=gpu:1", OURS, script=script)
        wait_for(box, guest)
        told = output.read_text()
        assert re.search("gres[:/]slot:1", told)
        assert "role=guest" in told
        assert told.rstrip().endswith(("gpu 0", "gpu 1"))
        box.run(*setup, "--undo")
        assert {path: path.read_bytes() for path in box.layout.etc.iterdir()} == files
        restarted(box, eventually)
        assert "slip-class" not in box.run("sbatch", "--help").stdout
        plain = sbatch(box, output, "--gres=gpu:1", script=script)
        wait_for(box, plain)
