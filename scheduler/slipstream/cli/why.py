# SPDX-License-Identifier: Apache-2.0
"""`slipstream why JOBID`: why a job is where it is, ours and Slurm's reason side by side."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from slipstream.cli.daemon_api import ask, json_option, run_dir_option, show_json
from slipstream.cli.jobs import (
    NO_MINIBATCH,
    STANDS_STILL,
    again,
    banner_of,
    shows_no_minibatch,
    started,
    state_of,
)
from slipstream.cli.table import printable

if TYPE_CHECKING:
    from pathlib import Path


@click.command()
@run_dir_option
@json_option
@click.argument("job")
def why(run_dir: Path, job: str, *, as_json: bool) -> None:
    """Say why JOB is where it is. JOB is a number, or ARRAY_TASK such as 12_3."""
    answer = ask(run_dir, f"/v1/why/{quote(job, safe='')}")
    if as_json:
        show_json(answer)
        return
    for line in _lines(answer["why"]):
        click.echo(printable(line))
    if banner := banner_of(answer):
        click.echo(banner)


def _lines(why: dict[str, Any]) -> list[str]:
    name = f" ({why['name']})" if why["name"] else ""
    what = f", {why['class']} {why['role']}" if why["class"] else ""
    lines = [
        f"job {why['job'] or 'not numbered yet'}{name}: {state_of(why)}{what}",
        f"  {_sentence(why)} [{why['reason']}]",
    ]
    training = why["training"] or {}
    if state_of(why) in STANDS_STILL:
        because = training.get("node_sentence") or "it waits for others."
        lines.append(f"  but stands still now ({training['phase']}): {because}")
    if training.get("turn_holder"):
        since = time.strftime("%H:%M:%S", time.localtime(training.get("turn_since_s") or 0))
        lines.append(
            f"  waits for its turn: job {training['turn_holder']} has had it since {since}"
        )
    if why["stands_for"]:
        lines.append(f"  waits for {why['stands_for']}")
    if why["slurm_says"]:
        lines.append(f"  Slurm says: {why['slurm_says']}")
    if why["slurm_text"]:
        lines.append(f"  Slurm adds: {why['slurm_text']}")
    if why["estimate"]:
        lines.append(f"  estimate: {why['estimate']['text']}")
    if why["nodes"]:
        lines.append(f"  nodes: {', '.join(why['nodes'])}")
    lines += _training(why)
    if why["advice"]:
        where = ", ".join(why["advice"]["nodes"]) or "nowhere for now"
        lines.append(f"  advised: {where}, {why['advice']['strength']}")
    if why["story"]:
        lines.append("  what happened:")
        lines += [f"    {_clock(line['at_s'])}  {line['text']}" for line in why["story"]]
    return lines


def _training(why: dict[str, Any]) -> list[str]:
    """What it has done in all its starts; also of a job that has ended."""
    told = why["training"] or {}
    lines = [f"  {NO_MINIBATCH}"] if shows_no_minibatch(why, time.time()) else []
    if told.get("unattached"):
        lines.append(f"  not attached: {told['unattached_sentence']} [{told['unattached']}]")
    if told.get("minibatch"):
        pace = f", {told['minibatch_ms']:.0f} ms each" if told["minibatch_ms"] else ""
        lines.append(
            f"  {told['phase'] or 'ended'}: mini-batch {told['minibatch']}{pace}{again(told)}"
        )
    if told.get("launch_s") is not None:
        lines.append(
            f"  launched in {told['launch_s']:.1f} s, trained for {told['train_s'] or 0:.1f} s, "
            f"saved for {told['save_s'] or 0:.1f} s"
        )
    if told.get("waited_s", 0) >= 1:
        parked = f", parked for {told['parked_s']:.0f} s of it" if told["parked_s"] >= 1 else ""
        lines.append(f"  waited {told['waited_s']:.0f} s for others{parked}")
    if told.get("starts", 0) > 1:
        lines.append(f"  {started(told)}: these are the figures of all starts together")
    return lines


def _sentence(why: dict[str, Any]) -> str:
    if not why["because"]:
        return str(why["sentence"])
    return f"{why['sentence'].rstrip('.')} ({'; '.join(why['because'])})."


def _clock(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
