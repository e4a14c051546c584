# SPDX-License-Identifier: Apache-2.0
"""`slipstream jobs`: who is owner, who is guest, who waits and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.table import Table

from slipstream.cli.daemon_api import ask, json_option, run_dir_option, show_json

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@run_dir_option
@json_option
@click.option("--all", "every", is_flag=True, help="Also those that have ended.")
def jobs(run_dir: Path, *, as_json: bool, every: bool) -> None:
    """Show the jobs: class, role, where they run, or why they wait.

    \b
    Examples:
      slipstream jobs
      slipstream jobs --json | jq '.jobs[] | select(.role == "guest")'
    """
    answer = ask(run_dir, "/v1/jobs", ended="1" if every else "0")
    if as_json:
        show_json(answer)
        return
    table = Table("job", "name", "user", "class", "role", "GPUs", "phase", "nodes", "reason")
    for job in answer["jobs"]:
        table.add_row(*_row(job))
    console = Console()
    console.print(table)
    if banner := banner_of(answer):
        console.print(banner, style="yellow")


def banner_of(answer: dict[str, Any]) -> str:
    """What everybody should know before reading on."""
    if answer["slurm_away"]:
        return "Slurm's controller does not answer: this is what was last seen."
    if answer["switched_off"]:
        return "Slipstream is switched off: Slurm decides alone."
    return ""


def _row(job: dict[str, Any]) -> list[str]:
    advised = job["advised_nodes"]
    where = ",".join(job["nodes"]) or (f"→ {','.join(advised)}" if advised else "")
    reason = job["reason"]
    if job["phase"] == "waiting" and job["slurm_reason"]:
        reason += f" (Slurm: {job['slurm_reason']})"
    return [
        job["job"] or "not yet",
        job["name"],
        job["user"] or str(job["uid"] or ""),
        job["class"] or "",
        job["role"] or "",
        _seats(job),
        job["phase"],
        where,
        reason,
    ]


def _seats(job: dict[str, Any]) -> str:
    held = [
        f"{job['gpus']} GPU" if job["gpus"] else "",
        f"{job['slots']} slot" * bool(job["slots"]),
    ]
    return " + ".join(filter(None, held)) or (job["gpus_asked"] or "").replace("node:", "")
