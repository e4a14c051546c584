# SPDX-License-Identifier: Apache-2.0
"""`slipstream simulate TRACE`: what a policy, or each of them, would make of a trace."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress
from rich.table import Column, Table

from slipstream.cli.daemon_api import json_option, run_dir_option
from slipstream.cli.table import coloured
from slipstream.core.cluster.rules import Rule
from slipstream.simulator.names import NAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.simulator.report import Report
    from slipstream.simulator.simulate import Setting

_DEFAULT_DATA: Final = "../shared/data"
_HOUR_S: Final = 3600.0
_MOST_SHOWN: Final = 5
_HEADS: Final = (
    "mean h",
    "p50 s",
    "p99 h",
    "queued h",
    "first min",
    "use %",
    "fair",
    "slow %",
    "moves",
    "CPU s",
)


@click.command()
@json_option
@click.option(
    "--policy",
    "chosen",
    type=click.Choice(NAMES),
    multiple=True,
    help="Which one; may be given several times. [default: slipstream]",
)
@click.option("--compare", is_flag=True, help="All policies, on all cores.")
@click.option("--jobs", "most_jobs", type=click.IntRange(1), help="Only the first so many.")
@click.option(
    "--cluster",
    type=click.Choice(["live"]),
    help="The nodes of the cluster this runs on, by its scheduler or else by Slurm's commands.",
)
@run_dir_option
@click.option("--nodes", type=click.IntRange(1), help="Nodes of the cluster.")
@click.option(
    "--load",
    "load_pct",
    type=click.FloatRange(1, 1000),
    default=100.0,
    show_default=True,
    help="Without --nodes: as many as this offered load in percent asks for.",
)
@click.option("--gpus-per-node", type=click.IntRange(1), default=8, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="Of what a trace leaves open.")
@click.option(
    "--elastic",
    "elastic_pct",
    type=click.FloatRange(0, 100),
    default=0.0,
    show_default=True,
    help="The part of the jobs, in percent, that may grow to twice their GPUs.",
)
@click.option(
    "--without",
    "without",
    type=click.Choice([str(rule) for rule in Rule]),
    multiple=True,
    help="Switch a rule of slipstream's policy off, to see what it is worth.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    default=lambda: os.environ.get("SLIPSTREAM_DATA", _DEFAULT_DATA),
    show_default=f"$SLIPSTREAM_DATA or {_DEFAULT_DATA}",
    help="Folder with the measured throughputs and placements.",
)
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write a report with plots.")
@click.option("--svg", type=click.Path(path_type=Path), help="Write the plots alone.")
@click.option(
    "--journal",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write down what slipstream's policy was told and what it said.",
)
@click.option("--replay", is_flag=True, help="TRACE is such a journal: decide it all again.")
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def simulate(trace: Path, *, replay: bool, **given: Any) -> None:  # noqa: ANN401 (click's)
    """Run TRACE in virtual time: Philly's CSV, what sacct prints, or our simple CSV.

    See docs/simulator.md for the formats, the model and its assumptions.
    """
    if replay:
        _replay(trace)
    else:
        _simulate(trace, **given)


def _simulate(
    trace: Path,
    *,
    as_json: bool,
    page: Path | None,
    svg: Path | None,
    **given: Any,  # noqa: ANN401 (click's)
) -> None:
    # Only here: other commands would wait for numpy and matplotlib.
    from slipstream.simulator import simulate as simulator  # noqa: PLC0415
    from slipstream.simulator.measured import NoDataError  # noqa: PLC0415
    from slipstream.simulator.traces import TraceError  # noqa: PLC0415

    try:
        reports = _run(_settings(trace, given), simulator)
    except (NoDataError, TraceError) as error:
        raise click.ClickException(str(error)) from error
    reports.sort(key=lambda one: (one.completion_mean_s, one.policy))
    if page or svg:
        _draw(reports, trace.name, page, svg)
    if as_json:
        click.echo(json.dumps([one.document() for one in reports], indent=1))
    else:
        _show(reports)


def _replay(journal: Path) -> None:
    """Decide a journal again; exit code 1 if anything is decided otherwise."""
    from slipstream.simulator.journal import JournalError, replayed  # noqa: PLC0415

    try:
        with journal.open() as lines:
            found = list(replayed(lines))
    except JournalError as error:
        raise click.ClickException(f"{journal}: {error}") from error
    for one in found[:_MOST_SHOWN]:
        click.echo(f"{one.event}\n  was: {one.recorded}\n  now: {one.decided}")
    click.echo(f"{len(found)} events decided otherwise" if found else "all decided as before")
    sys.exit(1 if found else 0)


def _settings(trace: Path, given: dict[str, Any]) -> list[Setting]:
    from slipstream.simulator.simulate import Setting  # noqa: PLC0415
    from slipstream.simulator.workload import Mix  # noqa: PLC0415

    chosen = given.pop("chosen") or ("slipstream",)
    if given.pop("compare"):
        chosen = NAMES
    if given["journal"] and "slipstream" not in chosen:
        raise click.UsageError("--journal is of slipstream's policy: choose it, too")
    run_dir, cluster = given.pop("run_dir"), None
    if given.pop("cluster"):
        if given["nodes"]:
            raise click.UsageError("--cluster live has its own nodes: leave --nodes out")
        from slipstream.cli.live_cluster import live_shape  # noqa: PLC0415

        cluster = live_shape(run_dir)
    given["without"] = tuple(Rule(name) for name in given["without"])
    given["mix"] = Mix(elastic_pct=given.pop("elastic_pct"))
    return [Setting(trace=trace, policy=name, cluster=cluster, **given) for name in chosen]


def _draw(reports: Sequence[Report], name: str, page: Path | None, svg: Path | None) -> None:
    try:
        from slipstream.simulator import html  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise click.ClickException(
            "plots need matplotlib: pip install 'slurm-slipstream[sandbox]'"
        ) from error
    if page:
        about = f"{reports[0].jobs:,} jobs of {name} on {reports[0].gpus:,} GPUs"
        page.write_text(html.page(reports, "slipstream simulate", about))
    if svg:
        svg.write_text(html.plots(reports))


def _run(settings: Sequence[Setting], simulator: Any) -> list[Report]:  # noqa: ANN401 (a module)
    """With a bar on the terminal, if there is one."""
    console = Console(stderr=True, no_color=not coloured())
    with Progress(console=console, transient=True) as bar:
        if len(settings) == 1:
            task = bar.add_task(settings[0].policy, total=1.0)
            return [simulator.run(settings[0], lambda part: bar.update(task, completed=part))]
        task = bar.add_task(f"{len(settings)} policies", total=len(settings))
        found = []
        for _, report in simulator.compare(settings):
            found.append(report)
            bar.update(task, advance=1, description=f"{report.policy} is done")
        return found


def _show(reports: Sequence[Report]) -> None:
    heads = (Column(one, justify="right", overflow="fold") for one in _HEADS)
    table = Table(Column("policy", no_wrap=True), *heads, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for one in reports:
        table.add_row(
            one.policy,
            f"{one.completion_mean_s / _HOUR_S:.1f}",
            f"{one.completion_p50_s:.0f}",
            f"{one.completion_p99_s / _HOUR_S:.0f}",
            f"{one.queueing_mean_s / _HOUR_S:.1f}",
            f"{one.first_minibatches_mean_s / 60:.0f}",
            f"{one.use_pct:.0f}",
            f"{one.fairness:.2f}",
            f"{one.owner_slowdown_mean_pct:.2f}",
            str(one.moves),
            f"{one.cpu_s:.0f}",
        )
    console = Console(no_color=not coloured())
    console.print(table)
    if reports[0].left_out:
        console.print(f"{reports[0].left_out} jobs of the trace are larger than the cluster.")
