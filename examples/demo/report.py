# SPDX-License-Identifier: Apache-2.0
"""The demo's report: one HTML file with the plots inside it, no network needed to read it."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from demo import plots
from demo.comparison import THROTTLED

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from demo.comparison import Comparison, Figure
    from demo.results import JobRun
    from demo.scene import SceneResult


def write(comparison: Comparison, path: Path, seen: SceneResult | None = None) -> None:
    """Write report.html, and the pictures beside it, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    overview = plots.overview(comparison)
    (path.parent / "overview.svg").write_text(overview)
    if seen and seen.spans:
        (path.parent / "live.svg").write_text(plots.scene(seen))
    path.write_text(_page(comparison, overview, _live(seen) if seen and seen.spans else ""))


def _live(seen: SceneResult) -> str:
    """Turns and a move, as they were seen."""
    picture = plots.scene(seen)
    story = "".join(f"<li>{html.escape(line)}</li>" for line in seen.story)
    return f"""<h2>Live: turns on one GPU, then a move</h2>
<p>Two trainings of class <code>shared</code> on one GPU: one trains, the other is parked in host
memory, {seen.turns} turns in all. Then the other node is back, and one goes on there: saved
between two mini-batches, requeued, restored.</p>
{picture[picture.index("<svg") :]}
<p>What its story says:</p><ol>{story}</ol>
<p><code>slipstream why</code> of it afterwards:</p><pre>{html.escape(seen.why)}</pre>
"""


def _page(comparison: Comparison, overview: str, live: str) -> str:
    cards = "".join(_card(figure) for figure in comparison.of_all())
    rows = "".join(_row(_cells(comparison, *pair)) for pair in comparison.pairs)
    names = [figure.name for figure in comparison.of_job(*next(comparison.pairs))]
    head = _row(["job", "GPUs", "class", "ended", *names], "th")
    prices = "".join(f"<li>{html.escape(one.sentence)}</li>" for one in comparison.prices())
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Slipstream demo: stock Slurm and Slipstream side by side</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 80rem; margin: 2rem auto; padding: 0 1rem;
        color: #1d2733; background: #fff }}
 .cards {{ display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.5rem 0 }}
 .cards div {{ flex: 1 1 11rem; padding: 1rem; background: #f3f5f8; border-radius: .5rem }}
 .cards b {{ display: block; font-size: 1.4rem }} .cards span {{ color: #5b6776 }}
 svg {{ width: 100%; height: auto }}
 table {{ border-collapse: collapse; width: 100%; font-size: .85rem }}
 th, td {{ text-align: right; padding: .35rem .6rem; border-bottom: 1px solid #e4e7eb }}
 th:first-child, td:first-child {{ text-align: left }}
</style>
<h1>{len(comparison.stock.jobs)} training jobs, twice: on stock Slurm and with Slipstream</h1>
<p>Real slurmctld, slurmd and PyTorch; the GPUs are simulated. Plain Slurm gives each job its GPUs
whole and until it ends. With Slipstream the same jobs carry classes: opportunistic ones start at
once as guests on GPUs that others own, and the owners queue for whole GPUs as ever.</p>
<div class="cards">{cards}</div>
<p>What the owners pay for it:</p><ul>{prices}</ul>
<p>{html.escape(THROTTLED)} All jobs of the demo also share this machine's processor cores: when
more start at once, each needs longer to import PyTorch (the pale bars), owners too.</p>
{overview[overview.index("<svg") :]}
<table>{head}{rows}</table>
{live}</html>
"""


def _card(figure: Figure) -> str:
    name = html.escape(figure.name)
    return f"<div><b>{figure.both}</b><span>{name}: {figure.change}</span></div>"


def _cells(comparison: Comparison, plain: JobRun, ours: JobRun) -> list[str]:
    ends = dict.fromkeys(run.state.lower() for run in (plain, ours))
    return [
        ours.name,
        str(ours.gpus),
        f"{ours.slip_class}, {'guest' if ours.is_guest else 'owner'}",
        " → ".join(ends),
        *(f"{one.both} ({one.change})" for one in comparison.of_job(plain, ours)),
    ]


def _row(cells: Iterable[str], tag: str = "td") -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"
