# SPDX-License-Identifier: Apache-2.0
"""`slipstream release`: a job that an operator parked may go on."""

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
@click.option("--why", default="", help="For its story: 'slipstream why JOB' shows it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def release(run_dir: Path, job: str, why: str, *, as_json: bool, yes: bool) -> None:
    """Let a JOB go on that was parked with 'slipstream park'; for root and Slurm's user.

    From then on its node decides about it again, as about every other: it may have to wait for its
    turn, or for its share.

    \b
    Examples:
      slipstream release 12
      slipstream release 12 --why "the course is over" --yes
    """
    if not (yes or as_json):
        click.confirm(f"Let job {job} go on?", abort=True)
    answer = tell(run_dir, "/v1/release", {"job": job, "why": why})
    if as_json:
        show_json(answer)
        return
    click.echo(
        f"job {answer['job']} on {','.join(answer['nodes'])} goes on; see: slipstream why {job}\n"
        f"parked again: slipstream park {job}"
    )
