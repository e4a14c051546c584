# SPDX-License-Identifier: Apache-2.0
"""`slipstream history list|export|import`: the finished runs that estimates are made from."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, cast

import click

from slipstream.cli.daemon_api import json_option, show_json
from slipstream.cli.table import show
from slipstream.core.classes import JobClass, Per, Role
from slipstream.core.sights import Gpus, Request
from slipstream.estimator import Clues, read
from slipstream.estimator.history import FILE, History, HistoryError
from slipstream.estimator.runs import Run, RunError, run_key
from slipstream.estimator.runs_csv import read_csv, write_csv
from slipstream.estimator.runs_parquet import (
    SUFFIX,
    ParquetMissingError,
    read_parquet,
    write_parquet,
)
from slipstream.slurm_plugin import SlurmParseError
from slipstream.slurm_plugin.parse_sacct import COLUMNS, FinishedJob, parse_sacct

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

_DEFAULT_STATE_DIR: Final = "/var/lib/slipstream"


def state_dir_option(command: Callable[..., None]) -> Callable[..., None]:
    """Where the history and the models are."""
    return click.option(
        "--state-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=lambda: os.environ.get("SLIPSTREAM_STATE_DIR", _DEFAULT_STATE_DIR),
        show_default=f"$SLIPSTREAM_STATE_DIR or {_DEFAULT_STATE_DIR}",
        help="Folder with the scheduler's files.",
    )(command)


@click.group()
def history() -> None:
    """Finished runs, which estimates are made from.

    They are in a file of the scheduler's, which only root and Slurm's user can read.
    """


@history.command("list")
@state_dir_option
@json_option
@click.option("-j", "--jobs", "numbers", metavar="LIST", help="Only these, as in 12,14_3.")
@click.option("-f", "--family", metavar="LIST", help="Only of these families of programs.")
@click.option(
    *("-m", "--most"), type=click.IntRange(min=1), default=20, show_default=True, help="Runs shown."
)
def list_runs(
    state_dir: Path, *, as_json: bool, numbers: str | None, family: str | None, most: int
) -> None:
    """Show runs that have ended, the newest first.

    \b
    Examples:
      slipstream history list
      slipstream history list -j 12 --json
    """
    refs, families = (set(one.split(",")) if one else None for one in (numbers, family))
    try:
        with closing(opened_history(state_dir)) as kept, closing(_all(kept)) as runs:
            fitting = (
                run
                for run in runs
                if (not refs or {_ref(run), _ref(run).partition("_")[0]} & refs)
                and (not families or run.family in families)
            )
            found = list(islice(fitting, most))
    except (RunError, sqlite3.Error) as error:
        raise click.ClickException(f"{state_dir / FILE}: {error}") from error
    if as_json:
        show_json({"v": 1, "runs": [asdict(run) for run in found]})
        return
    head = ("job", "ended", "family", "GPUs", "alone", "GPU MiB", "use %", "ran", "mini-batch ms")
    show(head, map(_row, found))


def _all(kept: History) -> Generator[Run]:
    yield from kept.runs()


def _ref(run: Run) -> str:
    return run.key.partition("@")[0]


def _row(run: Run) -> list[str]:
    ended = datetime.fromtimestamp(run.ended_s).astimezone().strftime("%Y-%m-%d %H:%M")
    ran = "" if run.run_s is None else str(timedelta(seconds=round(run.run_s)))
    measured = (run.gpu_memory_mib, run.gpu_use_pct)
    return [
        *(_ref(run), ended, run.family, str(run.gpus), "yes" if run.alone else "no"),
        *("" if one is None else f"{one:.0f}" for one in measured),
        *(ran, "" if run.minibatch_ms is None else f"{run.minibatch_ms:.1f}"),
    ]


@history.command("export")
@state_dir_option
@click.argument(
    "file", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True), default="-"
)
def export_runs(state_dir: Path, file: Path) -> None:
    """Write all runs to FILE, the newest first; to the terminal without one.

    As CSV, or as Parquet if its name ends so.
    """
    with closing(opened_history(state_dir)) as runs:
        try:
            if file.suffix == SUFFIX:
                count = write_parquet(runs.runs(), file)
            else:
                with click.open_file(str(file), "w", encoding="utf-8") as out:
                    count = write_csv(runs.runs(), cast("TextIO", out))
        except ParquetMissingError as error:
            raise click.ClickException(str(error)) from error
        except (OSError, RunError, sqlite3.Error) as error:
            raise click.ClickException(f"{state_dir / FILE}: {error}") from error
    click.echo(f"{count} runs", err=True)


@history.command("import")
@state_dir_option
@click.option("--sacct", "from_sacct", is_flag=True, help="FILE is what sacct printed.")
@click.argument(
    "file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False, allow_dash=True),
    default="-",
)
def import_runs(state_dir: Path, file: Path, *, from_sacct: bool) -> None:
    """Add the runs in FILE, as export writes them; one that is there already is replaced.

    \b
    With --sacct what Slurm's accounting has, the columns as an error of it lists them:
      sacct --allusers --parsable2 --starttime=2026-01-01 --format=… > jobs.txt
      slipstream history import --sacct jobs.txt
    """
    try:
        found = _read(file, from_sacct=from_sacct)
        with closing(opened_history(state_dir)) as runs:
            count = runs.add(found)
            kept = len(runs)
    except SlurmParseError as error:
        columns = ",".join(COLUMNS)
        raise click.ClickException(f"{error}\nask with --format={columns}") from error
    except (OSError, RunError, sqlite3.Error) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{count} runs imported, {kept} are kept")


def _read(file: Path, *, from_sacct: bool) -> list[Run]:
    if file.suffix == SUFFIX:
        return list(read_parquet(file))
    with click.open_file(str(file), encoding="utf-8", errors="replace") as lines:
        return _from_sacct(lines.read()) if from_sacct else list(read_csv(lines))


def opened_history(state_dir: Path) -> History:
    """The history, made if it is not there; one clear error otherwise."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        opened = History(state_dir / FILE)
    except (HistoryError, OSError, sqlite3.Error) as error:
        raise click.ClickException(f"{state_dir / FILE}: {error}") from error
    if opened.set_aside:
        click.echo(f"{state_dir / FILE} was ruined; it is {opened.set_aside} now", err=True)
    return opened


def _from_sacct(text: str) -> list[Run]:
    return list(_runs(parse_sacct(text)))


def _runs(jobs: list[FinishedJob]) -> Iterator[Run]:
    """What Slurm knows of jobs that had GPUs: their times and sizes, not their programs."""
    for job in jobs:
        if not job.gpus and not job.slots:
            continue
        guest = not job.gpus
        request = Request(
            token="",
            job_class=JobClass.OPPORTUNISTIC if guest else JobClass.GUARANTEED,
            role=Role.GUEST if guest else Role.OWNER,
            gpus=Gpus(Per.JOB, job.gpus or job.slots),
            nodes_min=job.nodes,
            cpus_per_task=job.cpus,
            memory_mib_per_node=job.memory_mib // max(1, job.nodes),
            partition=job.partition,
            uid=job.uid,
            name=job.name,
        )
        clues = Clues(request=request, account=job.account, time_limit_s=job.time_limit_s)
        features = read(clues)
        yield Run(
            key=run_key(job.ref, job.submitted_at_s),
            ended_s=job.ended_at_s,
            family=features.family,
            numbers=features.numbers,
            categories=features.categories,
            alone=not guest,
            gpus=request.gpus.count,
            gpu_memory_mib=job.gpu_memory_mib,
            cpus=job.cpus,
            host_memory_mib=job.used_memory_mib,
            run_s=job.run_s,
        )
