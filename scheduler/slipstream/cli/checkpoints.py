# SPDX-License-Identifier: Apache-2.0
"""`slipstream checkpoints`: which jobs have a copy on the shared filesystem, and until when."""

from __future__ import annotations

import pwd
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from slipstream.cli.daemon_api import ask, json_option, run_dir_option, show_json
from slipstream.cli.jobs import banner_of
from slipstream.cli.table import show

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@run_dir_option
@json_option
@click.option("-j", "--jobs", "numbers", metavar="LIST", help="Only of these, as in 12,14_3.")
@click.option("-u", "--user", metavar="LIST", help="Only of these users.")
def checkpoints(run_dir: Path, *, as_json: bool, numbers: str | None, user: str | None) -> None:
    """Show the copies of trainings on the shared filesystem, and which would be removed when.

    A copy is kept while Slurm knows its job, and for a grace time after that (the scheduler's
    keep_checkpoints_s). In mode observe, and while switched off, none is removed.
    """
    answer = ask(run_dir, "/v1/checkpoints")
    jobs, users = (set(one.split(",")) if one else None for one in (numbers, user))
    answer["checkpoints"] = [
        copy
        for copy in answer["checkpoints"]
        if (not jobs or copy["job_id"] in jobs)
        and (not users or {_user(copy["uid"]), str(copy["uid"])} & users)
    ]
    if as_json:
        show_json(answer)
        return
    show(("job", "user", "MB", "saved", "from", "is kept"), map(_row, answer["checkpoints"]))
    if banner := banner_of(answer):
        click.secho(banner, fg="yellow")


def _row(copy: dict[str, Any]) -> list[str]:
    return [
        copy["job_id"],
        _user(copy["uid"]),
        f"{copy['bytes_carried'] / 1e6:.1f}",
        _date(copy["saved_at_s"]),
        "training" if copy.get("spilled") else "ramdisk",
        _until(copy),
    ]


def _until(copy: dict[str, Any]) -> str:
    if copy["goes_at_s"] is None:
        return "while Slurm knows the job"
    until = f"until {_date(copy['goes_at_s'])}"
    return f"{until}; not removed: {copy['problem']}" if copy["problem"] else until


def _date(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
