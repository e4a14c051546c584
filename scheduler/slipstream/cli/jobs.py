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
    "waits_for_turn": "magenta",
    "paused": "magenta",
    "parked": "magenta",
    "waiting": "yellow",
    "suspended": "magenta",
    "completing": "cyan",
    "lost": "red",
}
STANDS_STILL: Final = ("waits_for_turn", "paused", "parked")
"""What a job may do that runs for Slurm: it has its place, and stands still for others."""
NOT_ATTACHED: Final = "not_attached"
NO_MINIBATCH: Final = (
    "attached, but no mini-batch was seen: no optimizer of torch's has stepped. A loop that "
    "updates its parameters itself calls boundary() after each (docs/hooks.md, Boundaries)"
)
_LONG_S: Final = 60.0
"""Within that a training has its first mini-batch, or is still loading its data."""
_FILTERS: Final = ("user", "state", "partition", "account", "name")


@click.command()
@run_dir_option
@json_option
@click.option("--all", "every", is_flag=True, help="Also those that have ended.")
@click.option("-j", "--jobs", "numbers", metavar="LIST", help="Only these, as in 12,14_3.")
@click.option("-u", "--user", metavar="LIST", help="Only of these users.")
@click.option("-t", "--state", metavar="LIST", help="Only in these states, or of these reasons.")
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

    A job that runs for Slurm is shown as running, or as what it does instead: waits_for_turn (other
    jobs have its GPU for now), paused (it stands still, its memory stays on the GPU) or parked (its
    memory is in the host's). A job marked 'not attached' trains or uses the GPU without our hooks:
    'slipstream why JOB' says why and what to do.

    Filters are squeue's: lists with commas; a job must fit all that are given.

    \b
    Examples:
      slipstream jobs
      slipstream jobs -u ada -t waiting
      slipstream jobs -t parked,paused,waits_for_turn
      slipstream jobs -t not_attached
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
    head = ("job", "name", "user", "class", "role", "GPUs", "state", "nodes", "reason")
    show(head, map(_row, answer["jobs"]), colours=COLOURS)
    if banner := banner_of(answer):
        click.secho(banner, fg="yellow")


def _check_states(listed: str) -> None:
    """A word that no job can ever have is a typo, and an empty list would hide it."""
    from slipstream.core.reasons import Reason  # noqa: PLC0415 (most do not ask for it)
    from slipstream.core.records import Phase  # noqa: PLC0415 (the same)

    states = (*map(str, Phase), *STANDS_STILL, NOT_ATTACHED)
    known = {*states, *map(str, Reason)}
    for word in listed.split(","):
        if word.strip().lower() not in known:
            raise click.UsageError(
                f"-t {word.strip()}: no state and no reason; states: {', '.join(states)}; reasons "
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
        has = _states(job) if name == "state" else {str(job[key]).lower() for key in _keys(name)}
        if not has & {word.strip().lower() for word in listed.split(",")}:
            return False
    return True


def _keys(name: str) -> tuple[str, ...]:
    return ("user", "uid") if name == "user" else (name,)


def _states(job: dict[str, Any]) -> set[str]:
    """What `-t` finds a job by: running is only what really runs."""
    mark = {NOT_ATTACHED} if _is_unattached(job) else set()
    return {state_of(job), str(job["reason"])} | mark


def state_of(job: dict[str, Any]) -> str:
    """As the scheduler tells it; an older one knows phases only."""
    return str(job.get("state") or job["phase"])


def _is_unattached(job: dict[str, Any]) -> bool:
    over = job["phase"] in ("ended", "lost")
    return bool((job["training"] or {}).get("unattached")) and not over


def shows_no_minibatch(job: dict[str, Any], now_s: float) -> bool:
    """Whether it has imported torch long ago, or has ended, and no mini-batch of it was seen."""
    training = job["training"] or {}
    if training.get("minibatch") or training.get("import_s") is None or training.get("unattached"):
        return False
    if job["phase"] == "ended":
        return True
    return bool(job["phase"] == "running" and now_s - job["since_s"] > _LONG_S)


def started(training: dict[str, Any]) -> str:
    """How often, and how often elsewhere."""
    moves = training["moves"]
    moved = f", moved {moves} time{'s' * (moves != 1)}" if moves else ""
    return f"started {training['starts']} times{moved}"


def again(training: dict[str, Any]) -> str:
    """Mini-batches that were not in the checkpoint a start went on from."""
    count = training.get("minibatches_again")
    return f" ({count} of them again after a restart)" if count else ""


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
    if state_of(job) in STANDS_STILL and job["reason"] == "running":
        reason = training.get("node_reason") or reason
    if _is_unattached(job):
        reason = "not attached"
    if job["phase"] == "waiting" and job["slurm_reason"]:
        reason += f" (Slurm: {job['slurm_reason']})"
    return [
        job["job"] or "not yet",
        job["name"],
        job["user"] or str(job["uid"] or ""),
        job["class"] or "",
        job["role"] or "",
        _seats(job),
        state_of(job),
        where,
        reason,
    ]


def _seats(job: dict[str, Any]) -> str:
    held = [
        f"{job['gpus']} GPU" if job["gpus"] else "",
        f"{job['slots']} slot" * bool(job["slots"]),
    ]
    return " + ".join(filter(None, held)) or (job["gpus_asked"] or "").replace("node:", "")
