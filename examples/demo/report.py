# SPDX-License-Identifier: Apache-2.0
"""The demo's report: one HTML file with plots inside it, no network needed to read it."""

from __future__ import annotations

import html
import io
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from matplotlib.axes import Axes

    from demo.results import JobRun, Results

_COLOURS: Final = {
    "production": "#3a6ea5",
    "sweep": "#e0a030",
    "ddp": "#7b5ea7",
    "language": "#5a9e6f",
    "debug": "#c8553d",
}
_WAITING: Final = "#c9ced6"
_STYLE: Final[dict[Any, Any]] = {  # matplotlib types its keys as a literal of hundreds
    "axes.grid": True,
    "axes.grid.axis": "x",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "sans-serif",
    "grid.color": "#e4e7eb",
    "axes.axisbelow": True,
    "svg.hashsalt": "slipstream",
}


def write(results: Results, path: Path) -> None:
    """Write report.html, and the overview as a picture of its own beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(_STYLE):
        overview = _svg(_overview(results))
    (path.parent / "overview.svg").write_text(overview)
    path.write_text(_page(results, overview))


def _overview(results: Results) -> Figure:
    figure = Figure(figsize=(11, 8.5), layout="constrained")
    jobs_axes, gpu_axes, use_axes = figure.subplots(3, 1, height_ratios=[3, 1.4, 1.4], sharex=True)
    begun_s = min(job.submitted_at_s for job in results.jobs)
    _plot_jobs(jobs_axes, results.jobs, begun_s)
    _plot_gpus(gpu_axes, results, begun_s)
    _plot_use(use_axes, results, begun_s)
    use_axes.set_xlabel("seconds since the first sbatch")
    return figure


def _plot_jobs(axes: Axes, jobs: list[JobRun], begun_s: float) -> None:
    """Each job's life: waiting, starting, training."""
    for row, job in enumerate(jobs):
        submitted = job.submitted_at_s - begun_s
        started = (job.started_at_s or job.submitted_at_s) - begun_s
        first = (job.first_minibatch_at_s or job.ended_at_s or 0.0) - begun_s
        ended = (job.ended_at_s or 0.0) - begun_s
        axes.barh(row, started - submitted, left=submitted, color=_WAITING, height=0.62)
        axes.barh(row, first - started, left=started, color=_colour(job), alpha=0.4, height=0.62)
        axes.barh(row, ended - first, left=first, color=_colour(job), height=0.62)
        axes.plot(first, row, marker="|", color="black", markersize=12)
    axes.set_yticks(range(len(jobs)), [job.name for job in jobs])
    axes.invert_yaxis()
    axes.set_title(
        "Waiting (grey), starting (pale), training (full); the mark is the first mini-batch",
        loc="left",
        fontsize=10,
    )


def _plot_gpus(axes: Axes, results: Results, begun_s: float) -> None:
    """Who has which GPU when."""
    places = sorted({(sample.node, sample.index) for sample in results.samples})
    rows = {place: row for row, place in enumerate(places)}
    for job in results.jobs:
        if job.started_at_s is None or job.ended_at_s is None:
            continue
        for place in job.places:
            left, width = job.started_at_s - begun_s, job.ended_at_s - job.started_at_s
            axes.barh(rows[place], width, left=left, color=_colour(job), height=0.8, ec="white")
    axes.set_yticks(range(len(places)), [f"{node} GPU {index}" for node, index in places])
    axes.invert_yaxis()
    axes.set_title("Which job holds which GPU", loc="left", fontsize=10)


def _plot_use(axes: Axes, results: Results, begun_s: float) -> None:
    """Use of each GPU, as NVML reports it."""
    places = sorted({(sample.node, sample.index) for sample in results.samples})
    for node, index in places:
        mine = [s for s in results.samples if (s.node, s.index) == (node, index)]
        axes.plot(
            [sample.at_s - begun_s for sample in mine],
            [sample.use_pct for sample in mine],
            linewidth=1,
            label=f"{node} GPU {index}",
        )
    axes.set_ylim(0, 105)
    axes.set_xlim(0, results.makespan_s * 1.02)
    axes.set_ylabel("use %")
    axes.legend(loc="upper right", fontsize=8, ncols=4, frameon=False)
    axes.set_title(
        f"GPU use by NVML: {results.gpu_use_pct:.0f} % in the mean", loc="left", fontsize=10
    )


def _colour(job: JobRun) -> str:
    return _COLOURS[job.name.split("-")[0]]


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _page(results: Results, overview: str) -> str:
    figures = [
        ("first mini-batch after, mean", f"{results.first_minibatch_mean_s:.1f} s"),
        ("completed after, mean", f"{results.completion_mean_s:.1f} s"),
        ("all done after", f"{results.makespan_s:.1f} s"),
        ("GPU use by NVML, mean", f"{results.gpu_use_pct:.0f} %"),
    ]
    cards = "".join(f"<div><b>{value}</b><span>{name}</span></div>" for name, value in figures)
    rows = "".join(_row(_cells(results, job)) for job in results.jobs)
    head = _row(
        ["job", "GPUs", "ended", "first mini-batch after", "completed after", "its GPUs' use"], "th"
    )
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Slipstream demo: {html.escape(results.kind)} Slurm</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
        color: #1d2733; background: #fff }}
 .cards {{ display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.5rem 0 }}
 .cards div {{ flex: 1 1 11rem; padding: 1rem; background: #f3f5f8; border-radius: .5rem }}
 .cards b {{ display: block; font-size: 1.7rem }} .cards span {{ color: #5b6776 }}
 svg {{ width: 100%; height: auto }}
 table {{ border-collapse: collapse; width: 100% }}
 th, td {{ text-align: right; padding: .35rem .6rem; border-bottom: 1px solid #e4e7eb }}
 th:first-child, td:first-child {{ text-align: left }}
</style>
<h1>{len(results.jobs)} training jobs on {html.escape(results.kind)} Slurm</h1>
<p>Real slurmctld, slurmd and PyTorch; the GPUs are simulated. Plain Slurm gives each job its GPUs
whole and until it ends: this is the baseline that sharing is measured against.</p>
<div class="cards">{cards}</div>
{overview[overview.index("<svg") :]}
<table>{head}{rows}</table>
</html>
"""


def _cells(results: Results, job: JobRun) -> list[str]:
    return [
        job.name,
        str(job.gpus),
        job.state.lower(),
        _seconds(job.first_minibatch_after_s),
        _seconds(job.completed_after_s),
        _percent(results.gpu_use_of(job)),
    ]


def _row(cells: Iterable[str], tag: str = "td") -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} %"
