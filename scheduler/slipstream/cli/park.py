# SPDX-License-Identifier: Apache-2.0
"""`slipstream park`: have a job off its GPU until it is released, by an operator."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from slipstream.cli.daemon_api import json_option, run_dir_option, show_json, tell

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@run_dir_option
@json_option
@click.argument("job")
@click.option(
    *("--minutes", "minutes"),
    type=click.IntRange(min=1, max=1_000_000),
    help="Release it by itself after so long; else it stays parked until 'slipstream release'.",
)
@click.option("--why", default="", help="For its story: 'slipstream why JOB' shows it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def park(
    run_dir: Path, job: str, minutes: int | None, why: str, *, as_json: bool, yes: bool
) -> None:
    """Have a guest or shared JOB give up its GPU; for root and Slurm's user.

    It stops at its next mini-batch, its memory goes to the host's, and it stays so until it is
    released, through restarts of our daemons. It keeps its place in Slurm, and its time limit runs
    on; in mode enforce the time is given back. Owners that are not of class shared are parked for
    nobody. Where nothing of ours lives for a minute it goes on by itself.

    \b
    Examples:
      slipstream park 12
      slipstream park 12 --minutes 90 --why "a course needs the GPU"
      slipstream jobs -t parked         who is
      slipstream release 12
    """
    if not (yes or as_json):
        click.confirm(f"Have job {job} give up its GPU until it is released?", abort=True)
    asked = {"job": job, "minutes": str(minutes or ""), "why": why}
    answer = tell(run_dir, "/v1/park", asked)
    if as_json:
        show_json(answer)
        return
    until, job = answer["until_s"], answer["job"]
    clock = f" until {time.strftime('%H:%M', time.localtime(until))}" if until else ""
    click.echo(
        f"job {job} on {','.join(answer['nodes'])} gives up its GPU at its next mini-batch and "
        f"stays parked{clock}; see: slipstream why {job}\nback again: slipstream release {job}"
    )
