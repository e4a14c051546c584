# SPDX-License-Identifier: Apache-2.0
"""`slipstream report`: what a job got and what to change; what a cluster did and could do."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click

from slipstream.cli.cluster_report import cluster_lines, summed
from slipstream.cli.daemon_api import ask, json_option, run_dir_option, show_json
from slipstream.cli.jobs import NO_MINIBATCH, again, shows_no_minibatch, started, state_of
from slipstream.cli.table import printable

if TYPE_CHECKING:
    from pathlib import Path

_LITTLE_PCT: Final = 40
_MUCH: Final = 0.2
_MIB_IN_GIB: Final = 1024
_HOUR_S: Final = 3600.0


@click.command()
@run_dir_option
@json_option
@click.option("--cluster", is_flag=True, help="The whole cluster, hour by hour.")
@click.argument("job", required=False)
def report(run_dir: Path, job: str | None, *, as_json: bool, cluster: bool) -> None:
    """Say what JOB got of its GPUs, what it waited for, and what could be changed.

    Figures are of all its starts together, and stay when it has ended, as long as Slurm shows it.

    With --cluster: how GPUs were used in the last week, how long jobs with a Slipstream flag waited
    although there was a place for them, what would be gained if every job in line for GPUs were a
    guest, and how sure that is. In mode observe that is what Slipstream would have done.

    \b
    Examples:
      slipstream report 12
      slipstream report --cluster --json
    """
    if cluster == bool(job):
        raise click.UsageError("give a job, or --cluster")
    if cluster:
        answer = ask(run_dir, "/v1/hours")
        answer["report"] = summed(answer["hours"])
        lines = cluster_lines(answer["report"], answer["mode"])
    else:
        path = quote(job or "", safe="")
        answer = ask(run_dir, f"/v1/why/{path}")
        named = quote(answer["why"]["job"] or job or "", safe="")
        answer["curve"] = ask(run_dir, f"/v1/curve/{named}")["points"]
        answer["notes"] = notes(answer["why"])
        gpus = _gpus(run_dir)
        answer["gpu_use_now_pct"] = _use_now(answer["why"], gpus)
        answer["cost"] = cost(answer["why"], _owners(run_dir, answer["why"], gpus), time.time())
        lines = job_lines(answer)
    if as_json:
        show_json(answer)
        return
    for line in lines:
        click.echo(printable(line))


def _gpus(run_dir: Path) -> list[dict[str, Any]]:
    """All that are reported; none for those who may not see others' jobs."""
    with contextlib.suppress(click.ClickException):
        return [gpu for node in ask(run_dir, "/v1/gpus")["nodes"] for gpu in node["devices"]]
    return []


def _use_now(why: dict[str, Any], gpus: list[dict[str, Any]]) -> float | None:
    """Of the GPUs that it owns; also of a job without hooks."""
    own = [gpu["use_pct"] for gpu in gpus if why["job"] and gpu["owner_job"] == why["job"]]
    return sum(own) / len(own) if own else None


def _owners(run_dir: Path, why: dict[str, Any], gpus: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Who owns the GPUs that a guest sits on, each as `why` tells of it."""
    found = {
        gpu["owner_job"]: None
        for gpu in gpus
        if gpu["owner_job"] and why["job"] in gpu["guest_jobs"]
    }
    return [_told_of(run_dir, job) for job in found]


def _told_of(run_dir: Path, job: str) -> dict[str, Any]:
    """A job as `why` tells of it; its number alone, if that is all that may be known."""
    with contextlib.suppress(click.ClickException):
        told: dict[str, Any] = ask(run_dir, f"/v1/why/{quote(job, safe='')}")["why"]
        return told
    return {"job": job, "training": None}


def cost(why: dict[str, Any], owners: list[dict[str, Any]], now_s: float) -> dict[str, Any]:
    """What it costs others: GPUs that it holds and leaves idle, owners that it sits beside."""
    held_h = None
    if why["phase"] in ("running", "suspended", "completing"):
        held_h = (why["gpus"] or 0) * max(0.0, now_s - why["since_s"]) / _HOUR_S
    use_pct = (why["training"] or {}).get("gpu_use_pct")
    idle_h = held_h * (1 - min(100.0, use_pct) / 100) if held_h and use_pct is not None else None
    beside = [
        {
            "job": owner["job"],
            "slowdown_pct": (owner["training"] or {}).get("slowdown_pct"),
            "slowdown_error_pct": (owner["training"] or {}).get("slowdown_error_pct"),
        }
        for owner in owners
    ]
    return {"held_gpu_hours": held_h, "idle_gpu_hours": idle_h, "owners": beside}


def _cost_lines(told: dict[str, Any]) -> list[str]:
    lines = []
    if told["held_gpu_hours"]:
        idle = told["idle_gpu_hours"]
        unused = "" if idle is None else f", {idle:.2f} of them idle"
        lines.append(f"{told['held_gpu_hours']:.2f} GPU hours held{unused}")
    for owner in told["owners"]:
        slower, error = owner["slowdown_pct"], owner["slowdown_error_pct"] or 0.0
        felt = "not measured" if slower is None else f"{slower:.1f} % (± {error:.1f}) slower"
        lines.append(f"job {owner['job']}, which owns its GPU: {felt} with its guests")
    return lines


def job_lines(answer: dict[str, Any]) -> list[str]:
    """For people."""
    why, told = answer["why"], answer["notes"]
    training = why["training"] or {}
    seats = (
        _count(why["gpus"], "GPU") + " of its own"
        if why["gpus"]
        else _count(why["slots"], "guest seat")
    )
    rows = [
        ("class", f"{why['class'] or 'no flag'} {why['role'] or ''}".strip()),
        ("where", f"{', '.join(why['nodes'])}: {seats}" if why["nodes"] else "nowhere yet"),
        ("mini-batches", _pace(training) if why["training"] or not why["nodes"] else "not seen"),
        ("GPU use", _pct(training.get("gpu_use_pct"))),
        ("GPU use now", _pct(answer["gpu_use_now_pct"])),
        ("GPU memory", _memory(training)),
        ("share", _share(training)),
        ("times", _times(training)),
        ("waited", _waited(training) if why["nodes"] else ""),
        ("starts", started(training) if training.get("starts", 0) > 1 else ""),
        ("not attached", training.get("unattached_sentence") or ""),
        ("in the queue", _queued(why, time.time())),
        *(("costs others", line) for line in _cost_lines(answer["cost"])),
        ("estimate", why["estimate"]["text"] if why["estimate"] else "none"),
    ]
    head = f"job {why['job'] or 'not numbered yet'} ({why['name'] or 'no name'}): {state_of(why)}"
    lines = [head, *(f"  {name:<13} {value}" for name, value in rows if value)]
    return lines + (["  notes:", *(f"    - {note}" for note in told)] if told else [])


def notes(why: dict[str, Any]) -> list[str]:
    """What its user could change, as far as it can be told by now."""
    training = why["training"]
    if shows_no_minibatch(why, time.time()):
        return [NO_MINIBATCH]
    if not training or not training["minibatch"]:
        return []
    found = []
    use, owns = training["gpu_use_pct"], bool(why["gpus"])
    if owns and use is not None and use < _LITTLE_PCT:
        found.append(
            f"it uses its GPUs {use:.0f} % of the time: with --slip-class=shared or opportunistic "
            "it would wait less, and leave them to others meanwhile"
        )
    waited, trained = training["waited_s"], training["train_s"] or 0.0
    if waited > _MUCH * (waited + trained) and waited > 1:
        found.append(
            f"it waited {100 * waited / (waited + trained):.0f} % of its time for others: as an "
            "owner (--slip-class=guaranteed) it would not"
        )
    if not training["restorable"]:
        found.append("it cannot be saved and moved: see docs/hooks.md for the two lines it needs")
    estimate = (why["estimate"] or {}).get("gpu_memory_mib")
    if estimate and training["gpu_memory_mib"] and training["gpu_memory_mib"] > estimate:
        found.append("it took more GPU memory than was estimated: the next estimate will know")
    slower, error = training["slowdown_pct"], training["slowdown_error_pct"] or 0.0
    if slower is not None and slower - error > 0:
        found.append(f"guests made it {slower:.1f} % slower (± {error:.1f}); --no-slip-share")
    return found


def _count(number: int, of: str) -> str:
    return f"{number} {of}" + "s" * (number != 1)


def _queued(why: dict[str, Any], now_s: float) -> str:
    if why["phase"] not in ("waiting", "submitted") or not why["submitted_at_s"]:
        return ""
    return f"for {max(0.0, now_s - why['submitted_at_s']) / 60:.0f} min"


def _pace(training: dict[str, Any]) -> str:
    if not training.get("minibatch"):
        return "none yet"
    pace = f", {training['minibatch_ms']:.0f} ms each" if training["minibatch_ms"] else ""
    alone = f" ({training['alone_ms']:.0f} ms alone)" if training["alone_ms"] else ""
    return f"{training['minibatch']}{pace}{alone}{again(training)}"


def _times(training: dict[str, Any]) -> str:
    if training.get("launch_s") is None:
        return ""
    return (
        f"{training['launch_s']:.1f} s to launch, {training['train_s'] or 0:.1f} s training, "
        f"{training['save_s'] or 0:.1f} s saving"
    )


def _waited(training: dict[str, Any]) -> str:
    parked = training.get("parked_s") or 0
    of_it = f", parked for {parked:.0f} s of it" if parked >= 1 else ""
    return f"{training.get('waited_s') or 0:.0f} s for others{of_it}"


def _pct(value: float | None) -> str:
    return "" if value is None else f"{value:.0f} %"


def _memory(training: dict[str, Any]) -> str:
    peak, cap = training.get("gpu_memory_mib"), training.get("cap_mib")
    if peak is None:
        return ""
    capped = f", capped at {cap / _MIB_IN_GIB:.1f} GiB" if cap else ""
    return f"{peak / _MIB_IN_GIB:.1f} GiB at its highest{capped}"


def _share(training: dict[str, Any]) -> str:
    mean = training.get("share_mean_pct")
    whole = "" if mean is None else f"{mean:.0f} % in the mean while it trained"
    if training.get("share_pct") is None:
        return whole
    now = f"{training['share_pct']:.0f} %: {training['node_sentence'] or training['node_reason']}"
    return f"{now} {whole[:1].upper()}{whole[1:]}." if whole else now
