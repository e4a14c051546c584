# SPDX-License-Identifier: Apache-2.0
"""`slipstream estimate SCRIPT`: what a job of this script would be thought to need."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from slipstream.cli.daemon_api import json_option, show_json
from slipstream.cli.sbatch_lines import clues_of
from slipstream.core.answers import estimated
from slipstream.core.estimate import duration, memory
from slipstream.estimator import Estimator, read
from slipstream.slurm_plugin import SlurmParseError

if TYPE_CHECKING:
    from slipstream.core.estimate import Estimate
    from slipstream.estimator import Features


@click.command()
@json_option
@click.option("--explain", is_flag=True, help="Also what was read from the script.")
@click.argument("script", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1)
def estimate(script: Path, arguments: tuple[str, ...], *, as_json: bool, explain: bool) -> None:
    """Say what a job of SCRIPT would be thought to need, without submitting it.

    What is asked of Slurm is read from its #SBATCH lines; ARGUMENTS are those of the script.

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
    found = Estimator().estimate(features)
    if as_json:
        told = {"v": 1, "estimate": {**asdict(found), "text": estimated(found)}}
        if explain:
            told["features"] = asdict(features)
        show_json(told)
        return
    console = Console()
    console.print(estimated(found), highlight=False, markup=False)
    console.print(_needs(found))
    if explain:
        console.print(_features(features))


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
