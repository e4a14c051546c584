# SPDX-License-Identifier: Apache-2.0
"""The demo's machinery on a real cluster, with jobs short enough for a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo.watch import Watch
from demo.workload import GUESTS, DemoJob
from slipstream.sandbox import Sandbox, Shape
from slipstream.slurm_plugin import CliSlurm
from slipstream.slurm_plugin.run import SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.sandbox

JOBS = (
    DemoJob("sweep-long", "mlp", 100, 30, 10, 500),
    DemoJob("ddp-pair", "mlp", 40, 20, 10, 300, gpus=2),
    DemoJob("debug-next", "lstm", 60, 20, 10, 300, slip_class=GUESTS),
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """With our daemons: only they know where a guest sits."""
    shape = Shape(nodes=1, gpus_per_node=2, racks=1, gpu_memory_mib=1024)
    home = tmp_path_factory.mktemp("demo")
    with Sandbox.started(shape, name="demo", home=home, daemons=True) as sandbox:
        yield sandbox


def test_jobs_are_submitted_watched_and_measured(cluster: Sandbox, tmp_path: Path) -> None:
    """Every job completes; its GPU, first mini-batch and use are known, and so are a guest's."""
    slurm = CliSlurm(SubprocessRunner(cluster.environment))
    shown: list[int] = []
    results = Watch(cluster, slurm, tmp_path).run(JOBS, lambda runs: shown.append(len(runs)))
    outputs = {path.name: path.read_text() for path in tmp_path.glob("*.out")}
    assert results.all_completed, outputs
    assert shown
    assert results.kind == "slipstream"
    assert [run.is_guest for run in results.jobs] == [False, False, True]
    for job, run in zip(JOBS, results.jobs, strict=True):
        assert len(run.places) == job.gpus
        assert run.minibatch == run.minibatches == job.minibatches
        assert (run.first_minibatch_after_s or 0) > 0
        assert (run.minibatch_ms or 0) >= job.kernel_ms
        assert (results.gpu_use_of(run) or 0) > 0
