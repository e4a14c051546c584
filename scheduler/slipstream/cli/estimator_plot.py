# SPDX-License-Identifier: Apache-2.0
"""Predicted against measured, as a picture. matplotlib is an extra, imported where it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from slipstream.estimator.evaluation import Outcome

_PLOTTED: Final = {
    "gpu_memory_mib": "GPU memory, MiB",
    "minibatch_ms": "time of a mini-batch, ms",
    "gpu_use_pct": "GPU use, %",
    "network_mbps": "network of several GPUs, Mbit/s",
}
_LINEAR: Final = "gpu_use_pct"
_ALL_PCT: Final = 100.0
_OFF: Final = 1.25
_OFF_PCT: Final = 10.0
"""Estimates within this factor, or so many points of use, lie in the grey band."""
_BAND: Final[dict[str, Any]] = {"color": "#7b8794", "alpha": 0.15, "linewidth": 0}
_STYLE: Final[dict[Any, Any]] = {  # matplotlib types its keys as a literal of hundreds
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "font.family": "sans-serif",
    "grid.color": "#e4e7eb",
}


def draw(outcome: Outcome, path: Path) -> None:
    """One panel for each of four labels; sizes and times on logarithmic axes."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 (an extra)
        from matplotlib.figure import Figure  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise click.ClickException(
            "a plot needs matplotlib: pip install 'slurm-slipstream[sandbox]'"
        ) from error
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(9, 8.4), layout="constrained", dpi=110)
        panels = figure.subplots(2, 2).flat
        for axes, (label, title) in zip(panels, _PLOTTED.items(), strict=True):
            _panel(axes, outcome, label, title)
        handles, names = panels[0].get_legend_handles_labels()
        if handles:
            figure.legend(
                handles, names, loc="outside lower center", ncols=5, frameon=False, markerscale=2
            )
        try:
            figure.savefig(path)
        except (OSError, ValueError) as error:
            raise click.ClickException(f"{path}: {error}") from error
    click.echo(f"plot in {path}", err=True)


def _panel(axes: Axes, outcome: Outcome, label: str, title: str) -> None:
    points = _points(outcome, label)
    r2 = outcome.r2_where_any(label)
    axes.set(xlabel="measured", ylabel="predicted")
    axes.set_title(title + ("" if r2 is None else f"   R² {r2:.2f}"), loc="left")
    if not points:
        return
    every = [value for family in points.values() for pair in family for value in pair]
    if label == _LINEAR:
        line = [0.0, _ALL_PCT]
        around = ([one - _OFF_PCT for one in line], [one + _OFF_PCT for one in line])
    else:
        axes.set(xscale="log", yscale="log")
        line = [min(every) / _OFF, max(every) * _OFF]
        around = ([one / _OFF for one in line], [one * _OFF for one in line])
    axes.fill_between(line, *around, **_BAND)
    axes.plot(line, line, color="#7b8794", linewidth=1)
    axes.set(xlim=line, ylim=line, aspect="equal")
    for family, pairs in points.items():
        measured, said = zip(*pairs, strict=True)
        axes.scatter(measured, said, s=9, alpha=0.6, linewidths=0, label=family)


def _points(outcome: Outcome, label: str) -> dict[str, list[tuple[float, float]]]:
    """Of each program what was measured and said, where there was anything."""
    found: dict[str, list[tuple[float, float]]] = {}
    values = zip(
        outcome.families.get(label, ()),
        outcome.measured.get(label, ()),
        outcome.said.get(label, ()),
        strict=True,
    )
    for family, measured, said in sorted(values):
        if measured > 0 and said > 0:
            found.setdefault(family.rpartition("/")[2], []).append((measured, said))
    return found
