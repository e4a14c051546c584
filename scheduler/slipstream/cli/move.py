# SPDX-License-Identifier: Apache-2.0
"""`slipstream move`: have a running job go on elsewhere, from where it is."""

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
@click.option("--to", "nodes", default="", metavar="NODE", help="Where; else where it fits best.")
@click.option("--why", default="", help="For its story: 'slipstream why JOB' shows it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def move(run_dir: Path, job: str, nodes: str, why: str, *, as_json: bool, yes: bool) -> None:
    """Move a running JOB to another node; for root and Slurm's user.

    It is saved, requeued, started there, and goes on from the same mini-batch. Only jobs whose
    training says that it can be restored are moved. Up to the requeue a failure leaves it running.

    \b
    Examples:
      slipstream move 12
      slipstream move 12 --to n3 --why "n1 is to be repaired"
      slipstream why 12                 how far it is
    """
    if not (yes or as_json):
        click.confirm(f"Save job {job}, requeue it and let it go on elsewhere?", abort=True)
    answer = tell(run_dir, "/v1/move", {"job": job, "nodes": nodes, "why": why})
    if as_json:
        show_json(answer)
        return
    click.echo(
        f"job {answer['job']} moves to {','.join(answer['nodes'])}; see: slipstream why {job}\n"
        f"back again, after a minute: slipstream move {job} --to {','.join(answer['had'])}"
    )
