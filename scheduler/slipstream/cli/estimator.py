# SPDX-License-Identifier: Apache-2.0
"""`slipstream estimator status|train|evaluate`: what was learnt from runs, and how good it is."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import click
from rich.console import Console
from rich.table import Table

from slipstream.cli.daemon_api import json_option, show_json
from slipstream.cli.estimator_plot import draw
from slipstream.cli.history import opened_history, state_dir_option
from slipstream.cli.table import coloured
from slipstream.core.estimate import duration
from slipstream.estimator import native
from slipstream.estimator.fit_process import BUSY
from slipstream.estimator.history import FILE
from slipstream.estimator.labels import NAMES
from slipstream.estimator.model import EVERYBODY
from slipstream.estimator.models import FOLDER, Models
from slipstream.estimator.runs_csv import read_csv

if TYPE_CHECKING:
    from slipstream.estimator.evaluation import Outcome
    from slipstream.estimator.model import Model
    from slipstream.estimator.runs import Run

_SHOWN: Final = ("gpu_memory_mib", "minibatch_ms", "run_s")


@click.group()
def estimator() -> None:
    """What estimates are made from: models that learn from finished runs.

    \b
    The scheduler fits them by itself, after every 3 runs of a program by a user.
      slipstream estimator status       which models there are, and how far off they are
      slipstream estimator train        fit now, all of them
      slipstream estimator evaluate     hide some hyper-parameters, fit, and compare
    """


@estimator.command()
@state_dir_option
@json_option
def status(state_dir: Path, *, as_json: bool) -> None:
    """Say which models there are, from how many runs, and how far they are off.

    The error is the median on hyper-parameters that a model had not seen when it was asked.
    """
    models = Models(state_dir / FOLDER)
    models.refresh()
    with closing(opened_history(state_dir)) as history:
        try:
            families = history.families()
        except sqlite3.Error as error:
            raise click.ClickException(f"{state_dir / FILE}: {error}") from error
    if as_json:
        show_json(
            {
                "v": 1,
                "native": _native(),
                "runs": sum(families.values()),
                "models": {name: _told(one) for name, one in sorted(models.by_family.items())},
                "bad_files": models.bad,
            }
        )
        return
    console = Console(no_color=not coloured())
    waiting = sum(name not in models.by_family for name in families)
    console.print(
        f"{sum(families.values())} runs of {len(families)} families, {waiting} of them without a "
        f"model yet; forests are walked by {'native code' if _native() else 'numpy'}",
        highlight=False,
    )
    console.print(_table(models))
    for name, why in sorted(models.bad.items()):
        console.print(f"{name} is not used: {why}", style="red", highlight=False, markup=False)


@estimator.command()
@state_dir_option
@json_option
def train(state_dir: Path, *, as_json: bool) -> None:
    """Fit all models now, from all runs, at the lowest priority.

    The scheduler reads them by itself; it needs no restart.
    """
    argv = [sys.executable, "-m", "slipstream.estimator.fit_process", str(state_dir), "--all"]
    began_s = time.monotonic()
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode == BUSY:
        raise click.ClickException("another process fits these models already; try again later")
    if done.returncode:
        raise click.ClickException(f"fitting failed: {done.stderr.strip() or done.returncode}")
    took_s = time.monotonic() - began_s
    models = Models(state_dir / FOLDER)
    models.refresh()
    if as_json:
        show_json({"v": 1, "models": len(models.by_family), "seconds": round(took_s, 3)})
    else:
        click.echo(f"{len(models.by_family)} models in {took_s:.1f} s")


@estimator.command()
@state_dir_option
@json_option
@click.option("--table", type=click.File("r", encoding="utf-8"), help="Runs of this CSV instead.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 50),
    default=3,
    show_default=True,
    help="So many draws of what is hidden.",
)
@click.option(
    "--plot",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Predicted against measured, as PNG, SVG or PDF.",
)
def evaluate(
    state_dir: Path, table: TextIO | None, seeds: int, plot: Path | None, *, as_json: bool
) -> None:
    """Hide a fifth of all hyper-parameter settings, fit from the rest, and compare.

    Nothing is changed by it. It takes seconds for each draw.

    \b
    Examples:
      slipstream estimator evaluate --plot estimates.png
      slipstream estimator evaluate --table runs.csv --json
    """
    runs = list(read_csv(table)) if table else _all_runs(state_dir)
    # Only here: commands that fit nothing would wait for scikit-learn to be imported.
    from slipstream.estimator.evaluation import held_out  # noqa: PLC0415

    outcome = held_out(runs, range(seeds), lambda line: click.echo(line, err=True))
    if not outcome.runs:
        raise click.ClickException(
            f"{len(runs)} runs are too few: a family needs 8 different settings of its program"
        )
    if plot:
        draw(outcome, plot)
    if as_json:
        show_json({"v": 1, **_figures(outcome)})
        return
    console = Console(no_color=not coloured())
    shown = Table("what", "R²", "median error", title_justify="left")
    for name, one in _figures(outcome)["labels"].items():
        shown.add_row(name, *("" if value is None else f"{value:.3f}" for value in one.values()))
    console.print(shown)
    console.print(
        f"GPU memory: {outcome.under_estimated_pct:.1f} % of {len(outcome.bounds_mib)} hidden runs "
        f"took more than their bound, which is {outcome.median_over_estimate_ratio:.2f} times what "
        "is taken (median)",
        highlight=False,
    )


def _all_runs(state_dir: Path) -> list[Run]:
    with closing(opened_history(state_dir)) as history:
        return list(history.runs())


def _figures(outcome: Outcome) -> dict[str, Any]:
    labels = {
        name: {"r2": outcome.r2(name), "median_error": outcome.median_error(name)}
        for name in NAMES
        if name in outcome.measured
    }
    return {
        "labels": labels,
        "runs": len(outcome.runs),
        "under_estimated_memory_pct": outcome.under_estimated_pct,
        "median_over_estimate_ratio": outcome.median_over_estimate_ratio,
    }


def _native() -> bool:
    try:
        native.load()
    except native.NativeError:
        return False
    return True


def _told(model: Model) -> dict[str, Any]:
    return {
        "runs": model.runs,
        "fitted_s": model.fitted_s,
        "newest_s": model.newest_s,
        "gpu_counts": list(model.gpu_counts),
        "labels": {name: asdict(score) for name, score in model.scores.items()},
    }


def _table(models: Models) -> Table:
    table = Table("family", "runs", "fitted", "memory off by", "mini-batch", "run time", "not used")
    for family, model in sorted(models.by_family.items()):
        errors = (model.scores.get(name) for name in _SHOWN)
        off = [f"{name}: {score.off}" for name, score in model.scores.items() if score.off]
        ago_s = max(0.0, time.time() - model.fitted_s)
        table.add_row(
            *(
                "all runs" if family == EVERYBODY else family,
                str(model.runs),
                duration(ago_s) + " ago",
            ),
            *("" if one is None else f"{one.error:.0%}" for one in errors),
            "; ".join(off),
        )
    return table
