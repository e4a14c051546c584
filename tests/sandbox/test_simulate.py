# SPDX-License-Identifier: Apache-2.0
"""`slipstream simulate` on a real cluster: its nodes as the shape, its accounting as the trace."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from sandbox.jobs import with_books
from simulator_rig import data_folder, simple_csv, trace
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = pytest.mark.sandbox

SACCT = ("sacct", "-aXP", "--format=JobID,Account,Submit,ElapsedRaw,Timelimit,AllocTRES")


def simulated(cluster: Sandbox, *words: object) -> dict[str, Any]:
    """The report of our policy."""
    command = (sys.executable, "-m", "slipstream.cli", "simulate", "--json")
    done = cluster.run(*command, *map(str, words))
    (report,) = json.loads(done.stdout)
    found: dict[str, Any] = report
    return found


def test_slurm_tells_the_nodes_where_no_daemon_runs(cluster: Sandbox, tmp_path: Path) -> None:
    """Two nodes of two GPUs; larger jobs are left out."""
    data, file = data_folder(tmp_path / "data"), simple_csv(tmp_path / "trace", trace(20))
    words = ("--cluster=live", "--run-dir", tmp_path, "--data", data, file)
    found = simulated(cluster, *words)
    assert (found["gpus"], found["jobs"], found["left_out"]) == (4, 18, 2)


def test_the_daemon_tells_the_nodes_and_sacct_the_jobs(
    tmp_path: Path, eventually: Eventually
) -> None:
    """What ran here yesterday, under our policy."""
    shape = Shape(nodes=1, gpus_per_node=2, racks=1)
    with with_books(shape, tmp_path, daemons=True) as box:
        for gpus in (1, 2):
            box.run("sbatch", "--output=/dev/null", f"--gres=gpu:{gpus}", "--wrap=sleep 1")

        def ended() -> bool:
            rows = box.run(*SACCT).stdout.splitlines()
            return len(rows) == 3 and all(int(row.split("|")[3]) > 0 for row in rows[1:])

        assert eventually(ended)
        file = tmp_path / "trace"
        file.write_text(box.run(*SACCT).stdout)
        data = data_folder(tmp_path / "data")
        found = simulated(box, "--cluster=live", "--data", data, file)
    assert (found["gpus"], found["jobs"], found["left_out"]) == (2, 2, 0)
