# SPDX-License-Identifier: Apache-2.0
"""The report of a comparison as one HTML file with its plots inside."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.simulator.report import Report

_DIGITS: Final = re.compile(r"(\d\.\d\d)\d+")
"""Of a coordinate: what nobody sees is left out."""
_OURS: Final = "#c8553d"
_NAME: Final = "slipstream"
_CYCLE: Final = ("C0", "C1", "C2", "C4", "C5", "C6", "C7", "C8", "C9", "k")
_THEIRS: Final = "#9aa5b1"
_STYLE: Final[dict[Any, Any]] = {  # matplotlib types its keys as a literal of hundreds
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.axisbelow": True,
    "font.family": "sans-serif",
    "grid.color": "#e4e7eb",
    "svg.fonttype": "none",  # text stays text: smaller, and found by a search
    "svg.hashsalt": "slipstream",
}
_TIMES: Final = {"1 s": 1, "1 min": 60, "1 h": 3_600, "1 day": 86_400, "1 week": 604_800}
_COLUMNS: Final = (
    ("policy", "policy"),
    ("completion_mean_s", "completion, mean s"),
    ("completion_p50_s", "median"),
    ("completion_p99_s", "99th percentile"),
    ("queueing_mean_s", "queueing, mean s"),
    ("first_minibatches_mean_s", "first 100 mini-batches, mean s"),
    ("makespan_s", "makespan s"),
    ("use_pct", "GPUs in use %"),
    ("fairness", "fairness"),
    ("owner_slowdown_mean_pct", "owners slowed, mean %"),
    ("moves", "moves"),
    ("parks", "parks"),
)
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body{{font:15px/1.5 sans-serif;max-width:75em;margin:2em auto;padding:0 1em;color:#1f2933}}
table{{border-collapse:collapse;width:100%}}th,td{{padding:.3em .6em;text-align:right;
border-bottom:1px solid #e4e7eb}}th:first-child,td:first-child{{text-align:left}}
tr.ours{{font-weight:bold}}svg{{max-width:100%;height:auto}}
</style></head><body><h1>{title}</h1><p>{about}</p><table>{table}</table>{plots}</body></html>
"""


def page(reports: Sequence[Report], title: str, about: str) -> str:
    """All of it, in one text."""
    ordered = sorted(reports, key=lambda one: (one.completion_mean_s, one.policy))
    return _PAGE.format(
        title=html.escape(title),
        about=html.escape(about),
        table=_table(ordered),
        plots=plots(ordered),
    )


def plots(reports: Sequence[Report]) -> str:
    """All plots as one SVG."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(15, 9), layout="constrained")
        (mean, first), (curve, tenants) = figure.subplots(2, 2)
        names = [one.policy for one in reports]
        colours = [_OURS if name == _NAME else _THEIRS for name in names]
        bars = mean.barh(names, [one.completion_mean_s / 3600 for one in reports], color=colours)
        mean.bar_label(bars, fmt="%.1f", padding=4)
        mean.set_title("mean completion, hours")
        waits = [one.first_minibatches_mean_s / 60 for one in reports]
        bars = first.barh(names, waits, color=colours)
        first.bar_label(bars, fmt="%.1f", padding=4)
        first.set_xscale("symlog")
        first.set_title("mean time to the first 100 mini-batches, minutes")
        for axes in (mean, first):
            axes.invert_yaxis()
            axes.grid(visible=False, axis="y")
            axes.margins(x=0.12)
        for one, colour in zip(reports, _curves(reports), strict=True):
            ours = one.policy == _NAME
            thick: dict[str, Any] = {"lw": 3, "zorder": 4} if ours else {"lw": 1.2}
            ranks = [at / len(one.curve_s) for at in range(len(one.curve_s))]
            curve.plot(one.curve_s, ranks, label=one.policy, color=colour, **thick)
            dots: dict[str, Any] = {"ms": 10, "zorder": 4} if ours else {"ms": 6, "alpha": 0.8}
            slowed = one.tenant_slowdown
            tenants.plot(list(slowed), list(slowed.values()), "o", color=colour, **dots)
        curve.set_xscale("log")
        curve.set_xticks([*_TIMES.values()], [*_TIMES])
        curve.minorticks_off()
        curve.set_title("part of the jobs completed within")
        curve.legend(fontsize=8)
        tenants.set_yscale("log")
        tenants.tick_params(axis="x", rotation=45)
        tenants.set_title("each tenant's completion over its time alone")
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        return _DIGITS.sub(r"\1", text.getvalue()[text.getvalue().index("<svg") :])


def _curves(reports: Sequence[Report]) -> list[str]:
    """Ours as in the bars, all others one of the cycle each."""
    others = iter(_CYCLE)
    return [_OURS if one.policy == _NAME else next(others) for one in reports]


def _table(reports: Sequence[Report]) -> str:
    head = "".join(f"<th>{html.escape(text)}</th>" for _, text in _COLUMNS)
    rows = []
    for one in reports:
        cells = "".join(f"<td>{_cell(getattr(one, name))}</td>" for name, _ in _COLUMNS)
        rows.append(f'<tr class="{"ours" if one.policy == _NAME else ""}">{cells}</tr>')
    return f"<tr>{head}</tr>{''.join(rows)}"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"  # noqa: PLR2004 (digits)
    return html.escape(str(value))
