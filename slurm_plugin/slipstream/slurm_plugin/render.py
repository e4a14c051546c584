# SPDX-License-Identifier: Apache-2.0
"""The argv of every command the adapter runs. Pure: no command is run, no version asked for here.

Text of users (names, comments) travels as one argument and is never quoted: there is no shell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.slurm_plugin import hosts
from slipstream.slurm_plugin.gres import render_gres
from slipstream.slurm_plugin.requests import SignalTo

if TYPE_CHECKING:
    from signal import Signals

    from slipstream.slurm_plugin.identity import JobRef
    from slipstream.slurm_plugin.requests import JobUpdate, Submission
    from slipstream.slurm_plugin.version import Version

Argv = tuple[str, ...]

_SECONDS_PER_MINUTE: Final = 60
_FIRST_WITH_SCONTROL_JSON: Final = (23, 2)
_FIRST_THAT_REPLACES_GRES: Final = (23, 2)
_NO_GRES_ELSEWHERE: Final[Argv] = ("TresPerJob=", "TresPerTask=", "TresPerSocket=")
_SIGNAL_OPTION: Final = {
    SignalTo.STEPS: (),
    SignalTo.BATCH: ("--batch",),
    SignalTo.ALL: ("--full",),
}

VERSION: Final[Argv] = ("scontrol", "--version")
CONFIG: Final[Argv] = ("scontrol", "show", "config")
PING: Final[Argv] = ("scontrol", "ping")
TOPOLOGIES: Final[Argv] = ("scontrol", "show", "topoconf")
# Jobs of every state and partition, those of hidden partitions too.
JOBS: Final[Argv] = ("squeue", "--json", "--all", "--states=all")


def nodes(version: Version) -> Argv:
    """All nodes in JSON: before 23.02 scontrol has none, from 23.02 sinfo's is another shape."""
    if version.release < _FIRST_WITH_SCONTROL_JSON:
        return ("sinfo", "--json", "--all")
    return ("scontrol", "--all", "show", "nodes", "--json")


def partition(name: str) -> Argv:
    """One partition, on one line."""
    return ("scontrol", "-o", "show", "partition", name)


def topology(name: str = "") -> Argv:
    """The topology; one of several, from 25.05 on, by its name."""
    return ("scontrol", "show", "topology", *((name,) if name else ()))


def on_job(verb: str, job: JobRef) -> Argv:
    """suspend, resume, requeue, requeuehold, hold and release."""
    return ("scontrol", verb, str(job))


def cancel(job: JobRef) -> Argv:
    """Verbose, because without it an unknown job is cancelled without a word."""
    return ("scancel", "--verbose", str(job))


def signal(job: JobRef, number: Signals, to: SignalTo) -> Argv:
    """A signal by its name, so that it means the same on every machine."""
    name = number.name.removeprefix("SIG")
    return ("scancel", f"--signal={name}", *_SIGNAL_OPTION[to], str(job))


def list_pids(job_id: int, node: str) -> Argv:
    """To be run on the node itself: scontrol reads slurmd's spool folder there."""
    return ("scontrol", "listpids", str(job_id), node)


def update(job: JobRef, change: JobUpdate, version: Version) -> tuple[Argv, ...]:
    """The requests that change a job: one, or two for new GRES before 23.02."""
    pairs = {
        "ReqNodeList": _folded(change.required_nodes),
        "ExcNodeList": _folded(change.excluded_nodes),
        "StartTime": _time(change.start_at_s),
        "TimeLimit": _limit(change.time_limit_s),
        # Both ends, or the old maximum stays.
        "NumNodes": None
        if change.node_count is None
        else f"{change.node_count}-{change.node_count}",
        "NumTasks": _number(change.task_count),
        "NumCPUs": _number(change.cpus),
        "Priority": _number(change.priority),
        "Comment": change.comment,
        "AdminComment": change.admin_comment,
        # What was asked per node of a GRES of that name is replaced, in every release.
        "Gres": None if change.gres_counts is None else render_gres(change.gres_counts),
    }
    head = ("scontrol", "update", f"JobId={job}")
    changes = [f"{key}={value}" for key, value in pairs.items() if value is not None]
    if change.gres_per_node is None:
        return ((*head, *changes),)
    gres = f"Gres={render_gres(change.gres_per_node)}"
    if version.release >= _FIRST_THAT_REPLACES_GRES:
        return ((*head, *_NO_GRES_ELSEWHERE, *changes, gres),)
    # 22.05 adds to what was asked per node before; emptied by a request of its own, it is gone.
    return ((*head, "TresPerNode=", *_NO_GRES_ELSEWHERE), (*head, *changes, gres))


def submit(job: Submission) -> Argv:
    """Submit a batch job; the script goes to standard input."""
    given = {
        "job-name": job.name,
        "partition": job.partition,
        "account": job.account,
        "qos": job.qos,
        "nodes": _number(job.nodes),
        "ntasks": _number(job.tasks),
        "cpus-per-task": _number(job.cpus_per_task),
        "mem": None if job.memory_mib_per_node is None else f"{job.memory_mib_per_node}M",
        "gres": render_gres(job.gres_per_node) or None,
        "gpus": None if job.gpus is None else str(job.gpus).removeprefix("gpu:"),
        "nodelist": _folded(job.required_nodes) or None,
        "exclude": _folded(job.excluded_nodes) or None,
        "time": _limit(job.time_limit_s),
        "array": _array(job),
        "begin": _time(job.start_at_s),
        "comment": job.comment,
        "chdir": job.work_dir,
        "output": job.stdout_path,
    }
    options = [f"--{option}={value}" for option, value in given.items() if value is not None]
    options += ["--hold"] if job.held else []
    if job.requeueable is not None:
        options.append("--requeue" if job.requeueable else "--no-requeue")
    # With arguments sbatch wants to know where the script is: on its standard input.
    script = ["/dev/stdin", *job.arguments] if job.arguments else []
    return ("sbatch", "--parsable", *options, *job.options, *script)


def _folded(nodes: tuple[str, ...] | None) -> str | None:
    return None if nodes is None else hosts.fold(nodes)


def _number(value: int | None) -> str | None:
    return None if value is None else str(value)


def _time(at_s: int | str | None) -> str | None:
    """Seconds since 1970 as such: a date would be read in the controller's time zone."""
    return f"uts{at_s}" if isinstance(at_s, int) else at_s


def _limit(limit_s: int | str | None) -> str | None:
    """Slurm counts limits in minutes: a part of one is a whole one."""
    return str(-(-limit_s // _SECONDS_PER_MINUTE)) if isinstance(limit_s, int) else limit_s


def _array(job: Submission) -> str | None:
    if not job.array:
        return None
    limit = "" if job.array_most_at_once is None else f"%{job.array_most_at_once}"
    return hosts.fold_indices(job.array) + limit
