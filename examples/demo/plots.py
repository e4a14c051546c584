# SPDX-License-Identifier: Apache-2.0
"""The demo's picture: both runs side by side on one time axis, as SVG."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from demo.comparison import Comparison
    from demo.results import JobRun, Results
    from demo.scene import SceneResult

_COLOURS: Final = {
    "production": "#3a6ea5",
    "sweep": "#e0a030",
    "ddp": "#7b5ea7",
    "language": "#5a9e6f",
    "debug": "#c8553d",
}
_WAITING: Final = "#c9ced6"
_NODES: Final = {"n1": "#3a6ea5", "n2": "#e0a030"}
_OWNER_HEIGHT: Final = 0.8
_GUEST_HEIGHT: Final = 0.16
_TITLES: Final = {"stock": "stock Slurm", "slipstream": "with Slipstream"}
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


def overview(comparison: Comparison) -> str:
    """Jobs, GPUs and their use, stock on the left."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(15, 9), layout="constrained")
        columns = figure.subplots(
            3, 2, height_ratios=[3, 1.7, 1.2], sharex=True, sharey="row", squeeze=False
        ).T
        for axes, run in zip(columns, comparison.runs, strict=True):
            _plot_jobs(axes[0], run)
            _plot_gpus(axes[1], run)
            _plot_use(axes[2], run)
        for axes in (columns[0][0], columns[0][1]):
            axes.invert_yaxis()  # once: rows share it
        columns[0][0].set_xlim(0, max(run.makespan_s for run in comparison.runs) * 1.02)
        columns[0][2].set_ylim(0, 105)
        columns[0][2].set_ylabel("use %")
        return _svg(figure)


def scene(seen: SceneResult) -> str:
    """Turns and a move: each training's row is full while it trains, in the colour of its node."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(15, 2.6), layout="constrained")
        axes = figure.subplots()
        names = sorted({span.job for span in seen.spans})
        for span in seen.spans:
            trains = span.phase == "training"
            axes.barh(
                names.index(span.job),
                span.to_s - span.from_s,
                left=span.from_s,
                color=_NODES.get(span.node, _WAITING),
                alpha=1.0 if trains else 0.25,
                height=0.62 if trains else 0.3,
            )
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlabel("seconds")
        took = (
            "" if seen.move_s is None else f", then {seen.moved} moves to n2 in {seen.move_s:.0f} s"
        )
        axes.set_title(
            f"{seen.turns} turns on one GPU of n1 (blue){took} (orange); "
            "narrow and pale: it waits, loads or is on its way",
            loc="left",
            fontsize=9,
        )
        return _svg(figure)


def _plot_jobs(axes: Axes, run: Results) -> None:
    """Each job's life: waiting, starting, training."""
    begun_s = run.begun_at_s
    for row, job in enumerate(run.jobs):
        submitted = job.submitted_at_s - begun_s
        started = (job.started_at_s or job.submitted_at_s) - begun_s
        first = (job.first_minibatch_at_s or job.ended_at_s or begun_s) - begun_s
        ended = (job.ended_at_s or begun_s) - begun_s
        axes.barh(row, started - submitted, left=submitted, color=_WAITING, height=0.62)
        axes.barh(row, first - started, left=started, color=_colour(job), alpha=0.4, height=0.62)
        axes.barh(row, ended - first, left=first, color=_colour(job), height=0.62)
        axes.plot(first, row, marker="|", color="black", markersize=12)
    axes.set_yticks(range(len(run.jobs)), [job.name for job in run.jobs])
    axes.set_title(
        f"{_TITLES.get(run.kind, run.kind)}: first mini-batch after "
        f"{run.first_minibatch_mean_s:.0f} s (mean), all done after {run.makespan_s:.0f} s\n",
        loc="left",
        fontsize=11,
        fontweight="bold",
    )
    axes.text(
        *(0, 1.01, "waiting (grey), starting (pale), training (full); mark: first mini-batch"),
        transform=axes.transAxes,
        fontsize=9,
    )


def _plot_gpus(axes: Axes, run: Results) -> None:
    """Who has which GPU when: owners fill the row, guests are narrow bars inside it."""
    rows = {place: row for row, place in enumerate(run.places)}
    lanes = _guest_lanes(run.jobs)
    for job in run.jobs:
        if job.started_at_s is None or job.ended_at_s is None:
            continue
        left, width = job.started_at_s - run.begun_at_s, job.ended_at_s - job.started_at_s
        height = _GUEST_HEIGHT if job.is_guest else _OWNER_HEIGHT
        for place in job.places:
            row = rows[place] + (_offset(lanes[job.job_id]) if job.is_guest else 0.0)
            axes.barh(
                row,
                width,
                left=left,
                color=_colour(job),
                height=height,
                ec="white",
                zorder=3 if job.is_guest else 2,
            )
    names = [f"{node} GPU {index}" for node, index in run.places]
    axes.set_yticks(range(len(names)), names)
    axes.set_title(
        "which job holds which GPU; narrow bars are guests beside the owner",
        loc="left",
        fontsize=9,
    )


def _guest_lanes(jobs: list[JobRun]) -> dict[int, int]:
    """A lane in the row for each guest, so that two on one GPU at a time are not one bar."""
    lanes: dict[int, int] = {}
    guests = [job for job in jobs if job.is_guest and job.started_at_s is not None]
    for job in guests:
        beside = {
            lanes[other.job_id]
            for other in guests
            if other.job_id in lanes and set(other.places) & set(job.places) and _meet(other, job)
        }
        lanes[job.job_id] = next(lane for lane in range(len(guests)) if lane not in beside)
    return lanes


def _meet(one: JobRun, other: JobRun) -> bool:
    """Whether both ran at some time."""
    begins = max(one.started_at_s or 0.0, other.started_at_s or 0.0)
    return begins < min(one.ended_at_s or 0.0, other.ended_at_s or 0.0)


def _offset(lane: int) -> float:
    """Where a lane is in its row: from the lower edge of the owner's bar upwards."""
    return (_OWNER_HEIGHT - _GUEST_HEIGHT) / 2 - 0.04 - lane * (_GUEST_HEIGHT + 0.04)


def _plot_use(axes: Axes, run: Results) -> None:
    """Use of each GPU, as NVML reports it."""
    for node, index in run.places:
        mine = [s for s in run.samples if (s.node, s.index) == (node, index)]
        axes.plot(
            [sample.at_s - run.begun_at_s for sample in mine],
            [sample.use_pct for sample in mine],
            linewidth=0.8,
            label=f"{node} GPU {index}",
        )
    axes.set_xlabel("seconds since the first sbatch")
    axes.legend(loc="upper right", fontsize=7, ncols=4, frameon=False)
    axes.set_title(f"GPU use by NVML: {run.gpu_use_pct:.0f} % in the mean", loc="left", fontsize=9)


def _colour(job: JobRun) -> str:
    return _COLOURS[job.name.split("-")[0]]


def _svg(figure: Figure) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
