# SPDX-License-Identifier: Apache-2.0
"""The demo's machinery on a real cluster, with jobs short enough for a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.watch import Watch
from demo.workload import DemoJob
from slipstream.slurm_plugin import CliSlurm
from slipstream.slurm_plugin.run import SubprocessRunner

if TYPE_CHECKING:
    from pathlib import Path

    from slipstream.sandbox import Sandbox

pytestmark = pytest.mark.sandbox

JOBS = (
    DemoJob("sweep-long", "mlp", 100, 30, 10, 500),
    DemoJob("ddp-pair", "mlp", 40, 20, 10, 300, gpus=2),
    DemoJob("debug-next", "lstm", 30, 20, 10, 300),
)


def test_jobs_are_submitted_watched_and_measured(cluster: Sandbox, tmp_path: Path) -> None:
    """Every job completes, and its GPU, its first mini-batch and its use are known."""
    slurm = CliSlurm(SubprocessRunner(cluster.environment))
    shown: list[int] = []
    results = Watch(cluster, slurm, tmp_path).run(JOBS, lambda runs: shown.append(len(runs)))
    outputs = {path.name: path.read_text() for path in tmp_path.glob("*.out")}
    assert results.all_completed, outputs
    assert shown
    assert results.kind == "slipstream"
    for job, run in zip(JOBS, results.jobs, strict=True):
        assert len(run.places) == job.gpus
        assert run.minibatch == run.minibatches == job.minibatches
        assert (run.first_minibatch_after_s or 0) > 0
        assert (results.gpu_use_of(run) or 0) > 0
