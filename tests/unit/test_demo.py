# SPDX-License-Identifier: Apache-2.0
"""The demo's figures and report, from a run that was made up to be checked by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from demo import report
from demo.results import JobRun, Results
from demo.workload import JOBS, SHAPE
from slipstream.sandbox.nvml_probe import GpuSample

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit


def sample(at_s: float, index: int, use_pct: int) -> GpuSample:
    """What NVML said of one GPU of n1."""
    return GpuSample(at_s, "n1", index, f"GPU-{index}", use_pct, 0, 1024, 1)


RUN = Results(
    "stock",
    [
        JobRun(
            *("sweep-a", "mlp", 1, 1, 100.0, "COMPLETED", 102.0, 104.0, 110.0), places=[("n1", 0)]
        ),
        JobRun(
            *("debug-<b>", "cnn", 1, 2, 100.0, "COMPLETED", 110.0, 112.0, 120.0), places=[("n1", 0)]
        ),
    ],
    [
        *(sample(103.0, 0, 50), sample(103.0, 1, 0), sample(108.0, 0, 70), sample(108.0, 1, 0)),
        *(sample(115.0, 0, 80), sample(115.0, 1, 0), sample(130.0, 0, 99), sample(130.0, 1, 0)),
    ],
)


def test_the_figures_are_means_over_jobs_and_gpus() -> None:
    """First mini-batch, completion, the end of all, and use while there was work."""
    assert RUN.first_minibatch_mean_s == pytest.approx(8.0)
    assert RUN.completion_mean_s == pytest.approx(15.0)
    assert RUN.makespan_s == pytest.approx(20.0)
    assert RUN.gpu_use_pct == pytest.approx((50 + 70 + 80) / 6)


def test_a_jobs_use_is_that_of_its_own_gpus_while_it_ran() -> None:
    """Neither the other GPU nor the time after its end counts."""
    assert RUN.gpu_use_of(RUN.jobs[0]) == pytest.approx(60.0)
    assert RUN.gpu_use_of(RUN.jobs[1]) == pytest.approx(80.0)


def test_a_failed_job_is_not_a_completed_demo() -> None:
    """One job that did not complete, and the demo has failed."""
    failed = JobRun("debug-c", "mlp", 1, 3, 100.0, "FAILED", 101.0, None, 102.0)
    assert RUN.all_completed
    assert not Results("stock", [*RUN.jobs, failed], RUN.samples).all_completed


def test_the_report_is_one_page_that_needs_nothing_else(tmp_path: Path) -> None:
    """Plots are inside it, no address is fetched, and a hostile name stays text."""
    report.write(RUN, tmp_path / "out/report.html")
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("<svg") == 1
    assert "debug-&lt;b&gt;" in page
    assert "<b>8.0 s</b>" in page
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert (tmp_path / "out/overview.svg").read_text().startswith("<?xml")


def test_there_are_more_jobs_than_gpus_and_they_fit_four_minutes() -> None:
    """What the demo promises of its own workload."""
    gpus = SHAPE.nodes * SHAPE.gpus_per_node
    assert sum(job.gpus for job in JOBS) > 2 * gpus
    assert sum(job.seconds * job.gpus for job in JOBS) / gpus < 120
    assert {job.model for job in JOBS} == {"mlp", "cnn", "transformer", "lstm"}
    assert all(job.gpus <= SHAPE.gpus_per_node for job in JOBS)
