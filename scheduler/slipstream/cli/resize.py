# SPDX-License-Identifier: Apache-2.0
"""`slipstream resize`: another number of GPUs for a running job, by an operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from slipstream.cli.daemon_api import json_option, run_dir_option, show_json, tell

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@run_dir_option
@json_option
@click.argument("job")
@click.argument("gpus", type=click.IntRange(min=1))
@click.option("--why", default="", help="For its story: 'slipstream why JOB' shows it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def resize(run_dir: Path, job: str, gpus: int, why: str, *, as_json: bool, yes: bool) -> None:
    """Let a running JOB go on with another number of GPUS; for root and Slurm's user.

    It is saved, requeued, and started with so many: on another node at once, on its own as soon as
    Slurm lets a requeued job start there. Only jobs that said --slip-elastic with a range that has
    GPUS in it, and whose training can be restored. Up to the requeue a failure leaves it running.

    \b
    Examples:
      slipstream resize 12 2
      slipstream resize 12 1 --why "a course begins at ten"
      slipstream why 12                 how far it is
    """
    if not (yes or as_json):
        click.confirm(f"Save job {job}, requeue it and let it go on with {gpus} GPUs?", abort=True)
    answer = tell(run_dir, "/v1/resize", {"job": job, "gpus": str(gpus), "why": why})
    if as_json:
        show_json(answer)
        return
    where = ",".join(answer["nodes"])
    click.echo(
        f"job {answer['job']} goes on with {gpus} GPUs instead of {answer['had']}, on {where}; "
        f"see: slipstream why {job}\n"
        f"back again, after a minute: slipstream resize {job} {answer['had']}"
    )
