# SPDX-License-Identifier: Apache-2.0
"""`slipstream estimate SCRIPT`: what a job of this script would be thought to need."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from slipstream.cli.daemon_api import ask, json_option, run_dir_option, show_json
from slipstream.cli.history import state_dir_option
from slipstream.cli.sbatch_lines import clues_of
from slipstream.cli.table import coloured
from slipstream.core.answers import estimated
from slipstream.core.estimate import Basis, Estimate, duration, memory
from slipstream.estimator import Estimator, read
from slipstream.estimator.history import FILE, History, HistoryError
from slipstream.estimator.likeness import most_like, what_matters
from slipstream.estimator.model import EVERYBODY
from slipstream.estimator.models import FOLDER, Models
from slipstream.estimator.runs import RunError
from slipstream.slurm_plugin import SlurmParseError

if TYPE_CHECKING:
    from slipstream.estimator import Features
    from slipstream.estimator.likeness import Like
    from slipstream.estimator.model import Model
    from slipstream.estimator.runs import Run


@click.command()
@run_dir_option
@json_option
@state_dir_option
@click.option(
    "--explain", is_flag=True, help="Also which runs it is like, what matters, and what was read."
)
@click.argument("script", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1)
def estimate(
    script: Path, arguments: tuple[str, ...], *, as_json: bool, explain: bool, **places: Path
) -> None:
    """Say what a job of SCRIPT would be thought to need, without submitting it.

    What is asked of Slurm is read from its #SBATCH lines; ARGUMENTS are those of the script. Who
    may read the scheduler's files is answered from them; everybody else by the scheduler, which is
    sent what was read from the script, as with a submission. --explain needs the files.

    \b
    Examples:
      slipstream estimate train.sh
      slipstream estimate --explain train.sh -- --batch-size 64
    """
    try:
        text = script.read_text(errors="replace")
        clues = clues_of(text, arguments, os.geteuid())
    except (OSError, SlurmParseError) as error:
        raise click.ClickException(f"{script}: {error}") from error
    features = read(clues)
    found, model, runs = _found(places["state_dir"], places["run_dir"], features)
    if as_json:
        told: dict[str, Any] = {"v": 1, "estimate": {**asdict(found), "text": estimated(found)}}
        if explain:
            told["features"] = asdict(features)
            told["like"] = [_like(one) for one in most_like(model, features, runs)] if model else []
            told["matters"] = (
                [one._asdict() for one in what_matters(model, features)] if model else []
            )
        show_json(told)
        return
    console = Console(no_color=not coloured())
    console.print(estimated(found), highlight=False, markup=False)
    console.print(_needs(found))
    if explain and model:
        console.print(_likeness(model, features, runs))
        console.print(_matters(model, features))
    if explain:
        console.print(_features(features))


def _found(
    state_dir: Path, run_dir: Path, features: Features
) -> tuple[Estimate, Model | None, list[Run]]:
    """The estimate; with what it rests on, where that may be read."""
    if not os.access(state_dir / FOLDER, os.R_OK | os.X_OK):
        try:
            sent = json.dumps(asdict(features), separators=(",", ":"))
            told = ask(run_dir, "/v1/estimate", features=sent)["estimate"]
            return msgspec.convert({**told}, Estimate), None, []
        except (click.ClickException, KeyError, msgspec.ValidationError) as error:
            why = getattr(error, "message", None) or str(error)
            click.echo(f"the scheduler could not be asked: {why}", err=True)
    estimator, runs = _learnt(state_dir, features)
    found = estimator.estimate(features)
    return found, _model(estimator, found, features), runs


def _learnt(state_dir: Path, features: Features) -> tuple[Estimator, list[Run]]:
    """What the scheduler has learnt, as far as it may be read, and the runs of this family."""
    estimator = Estimator(Models(state_dir / FOLDER))
    runs: list[Run] = []
    try:
        estimator.models.refresh()
        if (state_dir / FILE).exists():
            with closing(History(state_dir / FILE)) as history:
                runs = list(history.runs(features.family))
    except (HistoryError, RunError, OSError, sqlite3.Error) as error:
        click.echo(f"{state_dir}: {error}; this is what is said without a history", err=True)
    estimator.families.learn(reversed(runs))
    return estimator, runs


def _model(estimator: Estimator, found: Estimate, features: Features) -> Model | None:
    """The model that an estimate is from."""
    if not found.is_known:
        return None
    family = features.family if found.basis is Basis.FAMILY else EVERYBODY
    return estimator.models.by_family.get(family)


def _like(one: Like) -> dict[str, Any]:
    run = one.run
    measured = {"gpu_memory_mib": run.gpu_memory_mib, "run_s": run.run_s, "gpus": run.gpus}
    return {"run": run.key, "distance": one.distance, **measured}


def _likeness(model: Model, features: Features, runs: list[Run]) -> Table:
    table = Table("run", "far", "GPUs", "GPU memory", "run time", title="most like it")
    for one in most_like(model, features, runs):
        run = one.run
        table.add_row(
            *(run.key, f"{one.distance:.2f}", str(run.gpus)),
            "" if run.gpu_memory_mib is None else memory(round(run.gpu_memory_mib)),
            "" if run.run_s is None else duration(run.run_s),
        )
    return table


def _matters(model: Model, features: Features) -> Table:
    table = Table("feature", "here", "weight", title="what matters for memory and time")
    for name, value, share_pct in what_matters(model, features):
        table.add_row(name, value, f"{share_pct:.0f} %")
    return table


def _needs(found: Estimate) -> Table:
    table = Table("what", "estimate")
    unknown = "not known"
    high = "no limit" if found.run_high_s is None else duration(found.run_high_s)
    rows = {
        "GPUs": str(found.gpus),
        "memory of each GPU, at most": "all of it"
        if found.gpu_memory_mib is None
        else memory(found.gpu_memory_mib),
        "GPU use": f"{found.gpu_use_pct:.0f} % ± {found.gpu_use_spread_pct:.0f}",
        "network of each node": f"{found.network_mbps:.0f} Mbit/s",
        "CPUs": str(found.cpus),
        "host memory of each node": unknown
        if found.host_memory_mib is None
        else memory(found.host_memory_mib),
        "run time": f"{_time(found.run_s)} ({duration(found.run_low_s)} to {high})",
        "mini-batch": unknown if found.minibatch_ms is None else f"~{found.minibatch_ms:.3g} ms",
        "beside others on its GPUs": unknown
        if found.shared_slowdown is None
        else f"{found.shared_slowdown:.2g} times as long",
        "launch, train, save": ", ".join(map(_time, (found.launch_s, found.train_s, found.save_s))),
    }
    for row in rows.items():
        table.add_row(*row)
    return table


def _time(seconds: float | None) -> str:
    return "not known" if seconds is None else f"~{duration(seconds)}"


def _features(features: Features) -> Table:
    table = Table("feature", "value", title=f"family {features.family}", title_justify="left")
    for name, number in sorted(features.numbers.items()):
        table.add_row(name, f"{number:g}")
    for name, word in sorted(features.words.items()):
        table.add_row(name, repr(str(word)))
    return table
