# SPDX-License-Identifier: Apache-2.0
"""The demo's figures and report, from a run that was made up to be checked by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from demo import report
from demo.comparison import THROTTLED, Comparison
from demo.results import JobRun, Results
from demo.scene import SceneResult, Span
from demo.watch import guest_places, minibatch_ms
from demo.workload import JOBS, SHAPE
from progress import Report
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


def ours() -> Results:
    """The same jobs, the second as a guest beside the first."""
    owner = JobRun(
        *("sweep-a", "mlp", 1, 1, 200.0, "COMPLETED", 202.0, 204.0, 212.0),
        places=[("n1", 0)],
        slip_class="shared",
        minibatch_ms=60.0,
    )
    guest = JobRun(
        *("debug-<b>", "cnn", 1, 2, 200.0, "COMPLETED", 202.0, 206.0, 210.0),
        places=[("n1", 0)],
        slip_class="opportunistic",
        is_guest=True,
        minibatch_ms=90.0,
    )
    return Results("slipstream", [owner, guest], [sample(205.0, 0, 90), sample(205.0, 1, 0)])


def both() -> Comparison:
    """Stock and ours, with known times per mini-batch on stock."""
    return Comparison(
        Results(RUN.kind, [replace(job, minibatch_ms=50.0) for job in RUN.jobs], RUN.samples),
        ours(),
    )


def test_both_runs_stand_beside_each_other() -> None:
    """Stock, ours and the change, in percent, or in points of what is a percentage itself."""
    figures = {one.name: (one.both, one.change) for one in both().of_all()}
    assert figures["first mini-batch after, mean"] == ("8.0 → 5.0 s", "-38 %")
    assert figures["all done after"] == ("20.0 → 12.0 s", "-40 %")
    assert figures["GPU use by NVML, mean"] == ("33 → 45 %", "+12 points")


def test_what_owners_pay_is_told_and_guests_do_not_count() -> None:
    """The owner's mini-batches took 60 instead of 50 ms; it was done after 12 instead of 10 s."""
    (price,) = both().prices()
    assert price.sentence == "all owners: +20 % time per mini-batch, +20 % time to completion"
    assert both().to_dict()["owners_pay"][0]["minibatch_pct"] == pytest.approx(20.0)


def test_runs_of_different_jobs_are_not_compared() -> None:
    """With the names of both."""
    with pytest.raises(ValueError, match="debug-<b>"):
        Comparison(RUN, Results("slipstream", ours().jobs[:1], []))


def test_a_guests_gpu_is_read_from_the_schedulers_answer() -> None:
    """Every guest of every device, and no owner."""
    device = {"index": 1, "owner_job": "7", "guest_jobs": ["8", "9"]}
    nodes: list[dict[str, Any]] = [
        {"node": "n1", "devices": [device]},
        {"node": "n2", "devices": []},
    ]
    assert guest_places(nodes) == [("8", ("n1", 1)), ("9", ("n1", 1))]


def test_the_time_of_a_minibatch_leaves_the_first_out() -> None:
    """It has the start-up in it; and one alone says nothing."""
    first, last = (Report(number, 9, 0.5, 1.0, at_s) for number, at_s in ((1, 10.0), (5, 10.2)))
    assert minibatch_ms([first, last]) == pytest.approx(50.0)
    assert minibatch_ms([first]) is None


def test_the_report_is_one_page_that_needs_nothing_else(tmp_path: Path) -> None:
    """Plots are inside it, no address is fetched, a hostile name stays text, the price is told."""
    report.write(both(), tmp_path / "out/report.html")
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("<svg") == 1
    assert "debug-&lt;b&gt;" in page
    assert "<b>8.0 → 5.0 s</b>" in page
    assert "all owners: +20 % time per mini-batch" in page
    assert THROTTLED in page
    assert 'src="http' not in page
    assert 'href="http' not in page
    assert (tmp_path / "out/overview.svg").read_text().startswith("<?xml")


def test_turns_and_the_move_are_in_the_report(tmp_path: Path) -> None:
    """A picture of their own, the story and the words of `why`; nothing of it is taken for HTML."""
    seen = SceneResult(
        spans=[
            Span("turns-one", "n1", "training", 0.0, 4.0),
            Span("turns-two", "n1", "parked", 0.0, 4.0),
            Span("turns-two", "n2", "training", 8.0, 9.0),
        ],
        turns=5,
        story=["moves to n2: <an operator> asked", "moved, 3.8 s in all"],
        moved="turns-two",
        move_s=3.8,
        why="job 2 (turns-two): running",
    )
    assert seen.is_complete
    assert not replace(seen, move_s=None).is_complete
    report.write(both(), tmp_path / "out/report.html", seen)
    page = (tmp_path / "out/report.html").read_text()
    assert page.count("<svg") == 2
    assert "moves to n2: &lt;an operator&gt; asked" in page
    assert "job 2 (turns-two): running" in page
    assert (tmp_path / "out/live.svg").read_text().startswith("<?xml")


def test_there_are_more_jobs_than_gpus_and_they_fit_four_minutes() -> None:
    """What the demo promises of its own workload."""
    gpus = SHAPE.nodes * SHAPE.gpus_per_node
    assert sum(job.gpus for job in JOBS) > 2 * gpus
    assert sum(job.seconds * job.gpus for job in JOBS) / gpus < 120
    assert {job.model for job in JOBS} == {"mlp", "cnn", "transformer", "lstm"}
    assert all(job.gpus <= SHAPE.gpus_per_node for job in JOBS)
    assert [job.after_s for job in JOBS] == sorted(job.after_s for job in JOBS)


def test_guests_fit_into_the_memory_beside_any_owner() -> None:
    """Memory is not capped yet: the largest owner and the three largest guests must fit one GPU."""
    owners = [job.memory_mib for job in JOBS if not job.is_guest]
    guests = sorted((job.memory_mib for job in JOBS if job.is_guest), reverse=True)
    assert max(owners) + sum(guests[: SHAPE.slots_per_gpu]) <= SHAPE.gpu_memory_mib
