# SPDX-License-Identifier: Apache-2.0
"""What the options of sbatch and the keys of `scontrol update` do to a job of the fake Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ClusterShell.NodeSet import NodeSet

from fakes.slurm_cluster import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fakes.slurm_cluster import FakeCluster
    from fakes.slurm_job import FakeJob

_HELD = {"priority": 0, "reason": "JobHeldUser"}


def gres(text: str) -> dict[str, int]:
    """`gpu:2,slot:1`; a type is not known here."""
    pairs = (one.partition(":") for one in text.split(",") if one)
    return {name: int(count or 1) for name, _, count in pairs}


def node_names(text: str) -> tuple[str, ...]:
    """`n[1-2]`."""
    return tuple(NodeSet(text))


def minutes(text: str) -> int | None:
    """A time limit as the adapter writes it: whole minutes."""
    return None if text == "unlimited" else int(text)


def seconds(text: str) -> float:
    """A time as the adapter writes it: seconds since 1970."""
    if not text.startswith("uts"):
        raise Refused(f"Invalid time specification (pos=0): {text}")
    return float(text.removeprefix("uts"))


SBATCH: Mapping[str, Callable[[FakeJob, str], None]] = {
    "--job-name": lambda job, value: _set(job, name=value),
    "--partition": lambda job, value: _set(job, partition=value),
    "--nodes": lambda job, value: _set(job, node_count=int(value)),
    "--ntasks": lambda job, value: _set(job, task_count=int(value), cpus=int(value)),
    "--gres": lambda job, value: _set(job, gres_per_node=gres(value), gres_given=gres(value)),
    "--gpus": lambda job, value: _set(job, gpus_per_job=int(value)),
    "--nodelist": lambda job, value: _set(job, required=node_names(value)),
    "--exclude": lambda job, value: _set(job, excluded=node_names(value)),
    "--time": lambda job, value: _set(job, time_limit_min=minutes(value)),
    "--begin": lambda job, value: _set(job, eligible_at_s=seconds(value), reason="BeginTime"),
    "--mem": lambda _job, _value: None,
    "--priority": lambda job, value: _set(job, priority=int(value), rank=int(value)),
    "--comment": lambda job, value: _set(job, comment=value),
    "--chdir": lambda job, value: _set(job, work_dir=value),
    "--output": lambda job, value: _set(job, stdout_path=value),
    "--hold": lambda job, _: _set(job, **_HELD),
    "--requeue": lambda job, _: _set(job, requeueable=True),
    "--no-requeue": lambda job, _: _set(job, requeueable=False),
}

UPDATE_ALWAYS: Mapping[str, Callable[[FakeJob, str], None]] = {
    "TimeLimit": lambda job, value: _set(job, time_limit_min=minutes(value)),
    "Comment": lambda job, value: _set(job, comment=value),
    "AdminComment": lambda job, value: _set(job, admin_comment=value),
}


def start_time(cluster: FakeCluster, job: FakeJob, value: str) -> None:
    """`now` or seconds since 1970."""
    job.eligible_at_s = cluster.now_s if value == "now" else seconds(value)


def priority(_: FakeCluster, job: FakeJob, value: str) -> None:
    """Refused for a held job: it must be released."""
    if job.held:
        raise Refused("Job is in held state, pending scheduler release")
    job.priority = job.rank = int(value)


UPDATE_WHILE_PENDING: Mapping[str, Callable[[FakeCluster, FakeJob, str], None]] = {
    "StartTime": start_time,
    "ReqNodeList": lambda _, job, value: _set(job, required=node_names(value)),
    "ExcNodeList": lambda _, job, value: _set(job, excluded=node_names(value)),
    "Gres": lambda _, job, value: _set(
        job, gres_per_node=gres(value), gres_given={**job.gres_given, **gres(value)}
    ),
    "TresPerNode": lambda _, job, value: _emptied(job, value, gres_per_node={}, gres_given={}),
    "TresPerJob": lambda _, job, value: _emptied(job, value, gpus_per_job=0),
    "TresPerTask": lambda _, job, value: _emptied(job, value),
    "TresPerSocket": lambda _, job, value: _emptied(job, value),
    "NumNodes": lambda _, job, value: _set(job, node_count=int(value.partition("-")[0])),
    "NumTasks": lambda _, job, value: _set(job, task_count=int(value)),
    "NumCPUs": lambda _, job, value: _set(job, cpus=int(value)),
    "Priority": priority,
}


def _set(job: FakeJob, **values: object) -> None:
    for name, value in values.items():
        setattr(job, name, value)


def _emptied(job: FakeJob, value: str, **values: object) -> None:
    if value:
        raise NotImplementedError(f"only emptying is known here, not {value!r}")
    _set(job, **values)
