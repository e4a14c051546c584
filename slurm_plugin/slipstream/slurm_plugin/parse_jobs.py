# SPDX-License-Identifier: Apache-2.0
"""`squeue --json` as records. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.slurm_plugin import hosts
from slipstream.slurm_plugin.errors import SlurmParseError
from slipstream.slurm_plugin.gres import parse_asked_gres, parse_gres
from slipstream.slurm_plugin.records import (
    Array,
    Asked,
    Exit,
    HetComponent,
    Job,
    NodeShare,
    Times,
)
from slipstream.slurm_plugin.states import JobFlag, JobState, read_job_state

if TYPE_CHECKING:
    from slipstream.slurm_plugin.values import Fields

_SECONDS_PER_MINUTE: Final = 60
_ON_NODES: Final = (JobState.RUNNING, JobState.SUSPENDED)


def parse_jobs(document: Fields) -> tuple[Job, ...]:
    """Every record of the queue, in Slurm's order."""
    return tuple(_job(record) for record in document.each("jobs"))


def _job(record: Fields) -> Job:
    state, flags = read_job_state(record.words("job_state"))
    on_nodes = state in _ON_NODES or JobFlag.COMPLETING in flags
    limit_min = record.number("time_limit")
    return Job(
        job_id=record.count("job_id"),
        array=_array(record),
        het=_het_component(record),
        name=record.text("name"),
        user=record.text("user_name"),
        uid=record.count("user_id"),
        account=record.text("account"),
        partition=record.text("partition"),
        qos=record.text("qos"),
        priority=record.count("priority"),
        state=state,
        flags=flags,
        reason=record.text("state_reason").replace("None", ""),
        reason_text=record.text("state_description"),
        dependency=record.text("dependency"),
        nodes=hosts.expand(record.text("nodes")),
        required_nodes=hosts.expand(record.text("required_nodes")),
        excluded_nodes=hosts.expand(record.text("excluded_nodes")),
        node_count=record.count("node_count"),
        task_count=record.count("tasks"),
        cpus=record.count("cpus"),
        memory_mib_per_cpu=record.number("memory_per_cpu"),
        memory_mib_per_node=record.number("memory_per_node"),
        asked=_asked(record),
        holds=_holds(record) if on_nodes else (),
        time_limit_s=None if limit_min is None else limit_min * _SECONDS_PER_MINUTE,
        times=_times(record),
        restarts=record.count("restart_cnt"),
        exit=_exit(record),
        batch=record.yes("batch_flag"),
        requeueable=record.yes("requeue"),
        comment=record.text("comment"),
        admin_comment=record.text("admin_comment"),
        work_dir=record.text("current_working_directory"),
        command=record.text("command"),
        stdout_path=record.text(_first_of(record, "stdout_expanded", "standard_output")),
    )


def _first_of(record: Fields, *names: str) -> str:
    return next((name for name in names if record.has(name)), names[-1])


def _array(record: Fields) -> Array | None:
    job_id = record.number("array_job_id")
    if not job_id:
        return None
    # The limit is written behind the tasks as well (2-5%2); it is a field of its own already.
    waiting = hosts.expand_indices(record.text("array_task_string").partition("%")[0])
    return Array(
        job_id=job_id,
        task_id=None if waiting else record.number("array_task_id"),
        waiting_task_ids=waiting,
        most_at_once=record.number("array_max_tasks") or None,
    )


def _het_component(record: Fields) -> HetComponent | None:
    job_id = record.number("het_job_id")
    return HetComponent(job_id, record.count("het_job_offset")) if job_id else None


def _asked(record: Fields) -> Asked:
    return Asked(
        per_job=parse_asked_gres(record.text("tres_per_job")),
        per_node=parse_asked_gres(record.text("tres_per_node")),
        per_socket=parse_asked_gres(record.text("tres_per_socket")),
        per_task=parse_asked_gres(record.text("tres_per_task")),
    )


def _holds(record: Fields) -> tuple[NodeShare, ...]:
    """What the job holds on each node; Slurm lists the GRES in the order of its own node list."""
    nodes = hosts.expand(_nodes_in_gres_order(record))
    details = record.words("gres_detail")
    if not details:
        return tuple(NodeShare(node) for node in nodes)
    if len(details) != len(nodes):
        raise SlurmParseError(
            f"{record.of}, gres_detail", list(details), f"one entry is expected for each of {nodes}"
        )
    return tuple(
        # 22.05 lists what a changed job no longer asks for with a count of 0.
        NodeShare(node, tuple(gres for gres in parse_gres(detail) if gres.count))
        for node, detail in zip(nodes, details, strict=True)
    )


def _nodes_in_gres_order(record: Fields) -> str:
    if not record.has("job_resources") or not record.values["job_resources"]:
        return record.text("nodes")
    resources = record.inner("job_resources")
    if isinstance(resources.values.get("nodes"), dict):
        return resources.inner("nodes").text("list")
    return resources.text("nodes")


def _times(record: Fields) -> Times:
    return Times(
        submitted_at_s=record.count("submit_time"),
        eligible_at_s=record.time_s("eligible_time"),
        started_at_s=record.time_s("start_time"),
        ended_at_s=record.time_s("end_time"),
        changed_at_s=record.time_s("suspend_time"),
        ran_before_s=record.count("pre_sus_time"),
    )


def _exit(record: Fields) -> Exit:
    """22.05 gives the status of wait(2), later versions take it apart."""
    if not isinstance(record.values.get("exit_code"), dict):
        status = record.count("exit_code")
        return Exit(code=status >> 8 & 0xFF, signal=status & 0x7F)
    exit_code = record.inner("exit_code")
    return Exit(code=exit_code.count("return_code"), signal=exit_code.inner("signal").count("id"))
