# SPDX-License-Identifier: Apache-2.0
"""`slipstream jobs`: who is owner, who is guest, who waits and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from slipstream.cli.daemon_api import ask, json_option, run_dir_option, show_json
from slipstream.cli.table import show

if TYPE_CHECKING:
    from pathlib import Path

COLOURS: Final = {
    "running": "green",
    "waiting": "yellow",
    "suspended": "magenta",
    "completing": "cyan",
    "lost": "red",
}
STANDS_STILL: Final = ("paused", "parked")
"""What a node says of a process that has its place in Slurm, and waits for others."""
_FILTERS: Final = ("user", "state", "partition", "account", "name")


@click.command()
@run_dir_option
@json_option
@click.option("--all", "every", is_flag=True, help="Also those that have ended.")
@click.option("-j", "--jobs", "numbers", metavar="LIST", help="Only these, as in 12,14_3.")
@click.option("-u", "--user", metavar="LIST", help="Only of these users.")
@click.option("-t", "--state", metavar="LIST", help="Only in these phases, or of these reasons.")
@click.option("-p", "--partition", metavar="LIST", help="Only in these partitions.")
@click.option("-A", "--account", metavar="LIST", help="Only of these accounts.")
@click.option("-n", "--name", metavar="LIST", help="Only of these names.")
def jobs(
    run_dir: Path,
    *,
    as_json: bool,
    every: bool,
    numbers: str | None,
    **wanted: str | None,
) -> None:
    """Show the jobs: class, role, where they run, or why they wait.

    Filters are squeue's: lists with commas; a job must fit all that are given.

    \b
    Examples:
      slipstream jobs
      slipstream jobs -u ada -t waiting
      slipstream jobs --json | jq '.jobs[] | select(.role == "guest")'
    """
    if wanted["state"]:
        _check_states(wanted["state"])
    ended = every or bool(wanted["state"])
    answer = ask(run_dir, "/v1/jobs", ended="1" if ended else "0")
    if numbers or any(wanted.values()):
        answer["jobs"] = [one for one in answer["jobs"] if _fits(one, numbers, wanted)]
    if as_json:
        show_json(answer)
        return
    head = ("job", "name", "user", "class", "role", "GPUs", "phase", "nodes", "reason")
    show(head, map(_row, answer["jobs"]), colours=COLOURS)
    if banner := banner_of(answer):
        click.secho(banner, fg="yellow")


def _check_states(listed: str) -> None:
    """A word that no job can ever have is a typo, and an empty list would hide it."""
    from slipstream.core.reasons import Reason  # noqa: PLC0415 (most do not ask for it)
    from slipstream.core.records import Phase  # noqa: PLC0415 (the same)

    known = {*map(str, Phase), *map(str, Reason)}
    for word in listed.split(","):
        if word.strip().lower() not in known:
            raise click.UsageError(
                f"-t {word.strip()}: no phase and no reason; phases: {', '.join(Phase)}; reasons "
                "are in docs/operations.md"
            )


def _fits(job: dict[str, Any], numbers: str | None, wanted: dict[str, str | None]) -> bool:
    """Whether a job is among those that were asked for; an array's number stands for its tasks."""
    ref = job["job"] or ""
    if numbers and not {ref, ref.partition("_")[0]} & set(numbers.split(",")):
        return False
    for name in _FILTERS:
        listed = wanted[name]
        if listed is None:
            continue
        has = {str(job[key]).lower() for key in _KEYS.get(name, (name,))}
        if not has & {word.strip().lower() for word in listed.split(",")}:
            return False
    return True


_KEYS: Final = {"state": ("phase", "reason"), "user": ("user", "uid")}


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
    training = job["training"] or {}
    if job["phase"] == "running" and training.get("phase") in STANDS_STILL:
        reason = ": ".join(filter(None, (training["phase"], training["node_reason"])))
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
