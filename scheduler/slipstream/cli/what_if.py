# SPDX-License-Identifier: Apache-2.0
"""`slipstream what-if --policy X`: what a policy would do now with the jobs that are there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from slipstream.cli.daemon_api import ask, json_option, run_dir_option, show_json
from slipstream.cli.table import show
from slipstream.core.classes import JobClass
from slipstream.core.cluster import commands, events
from slipstream.core.cluster.asks import Ask
from slipstream.simulator.names import NAMES, ORACLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from slipstream.core.cluster.commands import ClusterCommand
    from slipstream.simulator.engine import Policy

_HERE: Final = ("running", "suspended", "completing")
_WAITS: Final = ("waiting", "submitted")


@click.command("what-if")
@run_dir_option
@json_option
@click.option("--policy", type=click.Choice(NAMES), required=True, help="Which one.")
def what_if(run_dir: Path, policy: str, *, as_json: bool) -> None:
    """Show what a policy would do now with the cluster's jobs; nothing is done.

    The policy is told of all nodes, then of the jobs that run in the order they began, which it
    seats as it likes, then of those that wait and carry our marker. It is the code that 'slipstream
    simulate' compares; CPUs, partitions and Slurm's limits are not looked at.

    \b
    Examples:
      slipstream what-if --policy antman
      slipstream what-if --policy slipstream --json
    """
    answer = ask(run_dir, "/v1/jobs")
    found = asked_of(policy, answer["jobs"], ask(run_dir, "/v1/gpus"))
    if as_json:
        show_json({"v": 1, "policy": policy, "mode": answer["mode"], **found.document()})
    else:
        _show(policy, found)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a policy does with each job that waits, and with those that run."""

    waiting: tuple[Mapping[str, Any], ...]
    starts: Mapping[str, commands.Start]
    parks: tuple[str, ...]
    moves: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """For programs."""
        return {
            "starts": [
                {"job": job, "nodes": _nodes(start), "role": start.role}
                for job, start in self.starts.items()
            ],
            "waits": [job["job"] for job in self.waiting if job["job"] not in self.starts],
            "parks": list(self.parks),
            "moves": list(self.moves),
        }


def asked_of(policy: str, jobs: Iterable[Mapping[str, Any]], gpus: Mapping[str, Any]) -> Answer:
    """Ask a policy; both arguments as the API answers them."""
    running = [_named(job) for job in jobs if job["phase"] in _HERE and _gpus(job)]
    running.sort(key=lambda job: (job["since_s"], job["job"]))
    waiting = [_named(job) for job in jobs if job["phase"] in _WAITS and job["class"]]
    waiting.sort(key=lambda job: (-job["priority"], job["submitted_at_s"], job["job"]))
    asks = {job["job"]: _ask(job) for job in (*running, *waiting)}
    chosen = _made(policy, asks, [*running, *waiting], gpus["shares"])
    said: list[ClusterCommand] = []
    now_s = max((job["since_s"] for job in (*running, *waiting)), default=0.0)
    for node in gpus["nodes"]:
        if node["gpus"] and node["takes_jobs"]:
            chosen.handle(_node(node))
    for job in running:
        chosen.handle(events.JobCame(job["since_s"], asks[job["job"]]))
    for job in waiting:
        said += chosen.handle(events.JobCame(now_s, asks[job["job"]]))
    ours = {job["job"] for job in waiting}
    starts = {one.ref: one for one in said if isinstance(one, commands.Start) and one.ref in ours}
    return Answer(
        tuple(waiting),
        starts,
        tuple(dict.fromkeys(one.ref for one in said if isinstance(one, commands.Park))),
        tuple(dict.fromkeys(one.ref for one in said if isinstance(one, commands.Move))),
    )


def _made(
    policy: str,
    asks: Mapping[str, Ask],
    jobs: Iterable[Mapping[str, Any]],
    shares: Mapping[str, float],
) -> Policy:
    # Only here: other commands would wait for numpy.
    from slipstream.simulator import policies  # noqa: PLC0415
    from slipstream.simulator.policies.preemptive import SrtfOracle  # noqa: PLC0415

    if policy == ORACLE:  # the estimate stands for what it would know
        lasts = {job["job"]: (job["estimate"] or {}).get("run_s") or float("inf") for job in jobs}
        return SrtfOracle(lasts)
    even = dict.fromkeys(sorted({one.tenant for one in asks.values()}), 1.0)
    return policies.made(policy, (), shares or even)


def _ask(job: Mapping[str, Any]) -> Ask:
    estimate = job["estimate"] or {}
    return Ask(
        ref=job["job"],
        tenant=job["account"],
        gpus=_gpus(job),
        submitted_at_s=job["submitted_at_s"],
        job_class=JobClass(job["class"] or JobClass.GUARANTEED),
        priority=job["priority"],
        use_pct=estimate.get("gpu_use_pct", 100.0),
        memory_mib=estimate.get("gpu_memory_mib") or 0,
        family=job["name"],
        elastic_max=(job["elastic"] or (0, 0))[1],
        restorable=bool((job["training"] or {}).get("restorable")),
    )


def _node(node: Mapping[str, Any]) -> events.NodeCame:
    memory_mib = max((gpu["memory_mib"] for gpu in node["devices"]), default=0)
    return events.NodeCame(at_s=0.0, node=node["node"], gpus=node["gpus"], memory_mib=memory_mib)


def _named(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """An announced job has no number yet."""
    return {**job, "job": job["job"] or job["token"]}


def _gpus(job: Mapping[str, Any]) -> int:
    return int(job["gpus"] or job["slots"] or job["gpus_in_all"] or 0)


def _nodes(start: commands.Start) -> list[str]:
    return list(dict.fromkeys(node for node, _ in start.places))


def _show(policy: str, found: Answer) -> None:
    rows = []
    for job in found.waiting:
        start = found.starts.get(job["job"])
        then = f"starts on {', '.join(_nodes(start))} as {start.role}" if start else "waits"
        rows.append([job["job"], job["class"], str(_gpus(job)), job["reason"], then])
    show(("job", "class", "GPUs", "now", f"with {policy}"), rows)
    for what, refs in (("parked", found.parks), ("moved", found.moves)):
        if refs:
            click.echo(f"{what}: {', '.join(refs)}")
