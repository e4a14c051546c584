# SPDX-License-Identifier: Apache-2.0
"""What Slurm knows about jobs and nodes, as frozen data. Units are in the names.

A record says what Slurm said, in one shape for every version and backend. Nothing is guessed here
beyond what `states` tells about 22.05; nothing is decided here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slipstream.slurm_plugin.identity import TaskId
from slipstream.slurm_plugin.states import JobFlag, JobState, NodeFlag, NodeState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipstream.slurm_plugin.gres import Gres
    from slipstream.slurm_plugin.identity import JobRef


@dataclass(frozen=True, slots=True)
class Array:
    """A job's place in its array: one task, or the record of all that still wait."""

    job_id: int
    task_id: int | None
    waiting_task_ids: tuple[int, ...] = ()
    most_at_once: int | None = None


@dataclass(frozen=True, slots=True)
class HetComponent:
    """A job's place in a heterogeneous job: its leader's number and which part it is."""

    job_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Asked:
    """The GRES a job asks for, by what they are counted."""

    per_job: tuple[Gres, ...] = ()
    per_node: tuple[Gres, ...] = ()
    per_socket: tuple[Gres, ...] = ()
    per_task: tuple[Gres, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeShare:
    """What a job holds on one node."""

    node: str
    gres: tuple[Gres, ...] = ()


@dataclass(frozen=True, slots=True)
class Times:
    """When things happened to a job, in seconds since 1970; None for what has not.

    A requeue counts as a new submission to Slurm. Of a pending job `started_at_s` is Slurm's
    estimate or the time before which it must not start, and of one that has not ended `ended_at_s`
    is when its limit runs out. `changed_at_s` is the last suspend or resume, `ran_before_s` what
    it had run by then: together they give the time on the job's own clock.
    """

    submitted_at_s: int
    eligible_at_s: int | None = None
    started_at_s: int | None = None
    ended_at_s: int | None = None
    changed_at_s: int | None = None
    ran_before_s: int = 0


@dataclass(frozen=True, slots=True)
class Exit:
    """How a job ended: its exit code, and the signal that killed it or 0."""

    code: int = 0
    signal: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One record of Slurm's queue; a waiting array is one, see `each_task`."""

    job_id: int
    array: Array | None = None
    het: HetComponent | None = None
    name: str = ""
    user: str = ""
    uid: int
    account: str = ""
    partition: str
    qos: str = ""
    priority: int
    state: JobState
    flags: JobFlag = JobFlag.NONE
    reason: str = ""
    """Why it waits or how it ended, as Slurm's word; "" for none."""
    reason_text: str = ""
    """More about it, where Slurm has more to say."""
    dependency: str = ""
    nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    node_count: int = 0
    task_count: int = 0
    cpus: int = 0
    memory_mib_per_cpu: int | None = None
    memory_mib_per_node: int | None = None
    asked: Asked
    holds: tuple[NodeShare, ...] = ()
    time_limit_s: int | None = None
    """None: no limit, or not yet known because the partition's default will apply."""
    times: Times
    restarts: int = 0
    exit: Exit = Exit()
    batch: bool = True
    requeueable: bool = True
    comment: str = ""
    admin_comment: str = ""
    work_dir: str = ""
    command: str = ""
    stdout_path: str = ""
    """The file from 23.02 on; 22.05 gives what the user wrote, which may hold %j and the like."""

    @property
    def ref(self) -> JobRef:
        """How to name this job to Slurm."""
        if self.array is not None and self.array.task_id is not None:
            return TaskId(self.array.job_id, self.array.task_id)
        return self.job_id

    @property
    def held(self) -> bool:
        """It waits and will not be considered until it is released."""
        return self.priority == 0 and self.state in (JobState.PENDING, JobState.UNTOLD)

    @property
    def completing(self) -> bool:
        """Its processes or its epilog are not done on every node: the nodes are not free yet."""
        return JobFlag.COMPLETING in self.flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One node."""

    name: str
    hostname: str = ""
    address: str = ""
    state: NodeState
    flags: NodeFlag = NodeFlag.NONE
    reason: str = ""
    gres: tuple[Gres, ...] = ()
    gres_used: tuple[Gres, ...] = ()
    cpus: int
    cpus_used: int = 0
    memory_mib: int
    memory_used_mib: int = 0
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    slurmd_version: str = ""

    @property
    def takes_jobs(self) -> bool:
        """Slurm may start jobs here."""
        return self.state in _WORKING and not self.flags & _CLOSED

    @property
    def drained(self) -> bool:
        """Somebody wants it empty, and it still answers: jobs on it can leave."""
        answers = self.state in _WORKING and NodeFlag.NOT_RESPONDING not in self.flags
        return answers and bool(self.flags & _TO_BE_EMPTY)


_WORKING = (NodeState.IDLE, NodeState.ALLOCATED, NodeState.MIXED)
_TO_BE_EMPTY = NodeFlag.DRAIN | NodeFlag.FAIL
_CLOSED = (
    NodeFlag.DRAIN
    | NodeFlag.FAIL
    | NodeFlag.NOT_RESPONDING
    | NodeFlag.INVALID_REG
    | NodeFlag.MAINTENANCE
    | NodeFlag.REBOOT_ISSUED
    | NodeFlag.POWERING_DOWN
    | NodeFlag.EXTERNAL
)


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a job on a node; `task` is its rank on the node, None for what is no task."""

    pid: int
    step: str
    task: int | None = None


def each_task(jobs: Iterable[Job]) -> tuple[Job, ...]:
    """Jobs with every waiting array taken apart: one job per task, each with its own `ref`.

    Slurm gives a task a number of its own only when it must: until then these share the array's.
    """
    apart: list[Job] = []
    for job in jobs:
        if job.array is None or not job.array.waiting_task_ids:
            apart.append(job)
            continue
        apart += [
            replace(job, array=replace(job.array, task_id=task_id, waiting_task_ids=()))
            for task_id in job.array.waiting_task_ids
        ]
    return tuple(apart)
