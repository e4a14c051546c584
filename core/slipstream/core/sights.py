# SPDX-License-Identifier: Apache-2.0
"""What was asked for and what was seen, as the core knows it. Frozen data, units in the names.

Nothing here knows how Slurm writes it: who watches Slurm translates.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

# At run time too: the journal reads these classes back by their annotations.
from slipstream.core.classes import JobClass, Per, Role  # noqa: TC001 (read back by annotations)
from slipstream.core.estimate import Estimate  # noqa: TC001 (read back by annotations)


@dataclass(frozen=True, slots=True)
class Gpus:
    """So many GPUs per node, job, task or socket."""

    per: Per
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a user asked for with our flags, from the submission or from the job's marker."""

    token: str
    job_class: JobClass
    role: Role
    gpus: Gpus
    weight: int = 1
    moves: bool = True
    """Whether it may be moved: not with --no-slip-move."""
    shares: bool = True
    """False: its user wants no guest on its GPUs."""
    may_be_guest: bool = False
    """Whether its GPUs can be swapped for seats while it waits; only its marker tells."""
    elastic: tuple[int, int] | None = None
    """With how many GPUs it can train, least and most."""
    size: int = 0
    """GPUs of each node that it was resized to, as its marker tells; 0: as many as it asked for."""
    nodes_min: int = 1
    tasks: int = 1
    cpus_per_task: int = 1
    memory_mib_per_node: int = 0
    partition: str = ""
    uid: int = 0
    account: str = ""
    """Whose quota its GPUs count against: Slurm's account."""
    name: str = ""
    roles: tuple[tuple[str, int], ...] = ()
    """What its tasks are and how many of each, as in ps:1,worker:4; a marker does not tell."""
    estimate: Estimate | None = None
    """What it is thought to need; a marker does not tell."""


class Standing(StrEnum):
    """Where Slurm has a job."""

    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETING = "completing"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSight:
    """A job as Slurm has it; `request` for one that carries our marker."""

    ref: str
    """12, or 12_3 for the task of an array."""
    standing: Standing
    number: int = 0
    """Slurm's own number of it, which the nodes know it by, also for a task of an array."""
    name: str = ""
    user: str = ""
    uid: int = 0
    account: str = ""
    partition: str = ""
    priority: int = 0
    submitted_at_s: int = 0
    nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    required_nodes: tuple[str, ...] = ()
    gpus: int = 0
    """GPUs it holds."""
    gpu_places: tuple[tuple[str, int], ...] = ()
    """Which they are: node and index."""
    slots: int = 0
    """Guest slots it holds."""
    wants_gpus: int = 0
    """GPUs of each node that it asks for."""
    wants_nodes: int = 1
    time_limit_s: int | None = None
    ends_at_s: int | None = None
    """When its limit ends it, if it runs and has one."""
    slurm_reason: str = ""
    slurm_text: str = ""
    holds_for: str = ""
    """Of a placeholder of ours: the number of the guest that its GPUs are for."""
    request: Request | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSight:
    """A node as Slurm has it."""

    name: str
    takes_jobs: bool = True
    drained: bool = False
    """Somebody wants it empty. One that does not answer takes no jobs either, and is waited for."""
    state: str = ""
    partitions: tuple[str, ...] = ()
    gpus: int = 0
    gpus_used: int = 0
    slots: int = 0
    slots_used: int = 0
    cpus: int = 0
    cpus_used: int = 0
    memory_mib: int = 0
    memory_used_mib: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuUse:
    """One GPU as the coordinator of its node measured it."""

    index: int
    uuid: str = ""
    use_pct: float = 0.0
    memory_used_mib: int = 0
    memory_mib: int = 0
    owner_job: str | None = None
    guest_jobs: tuple[str, ...] = ()
    takes_guests: bool = True


@dataclass(frozen=True, slots=True)
class PackSeen:
    """Guests together on a GPU that nobody owns: the speed of each, 1 being its speed alone."""

    refs: tuple[str, ...]
    rates: tuple[float, ...]
    apart: bool = False
    """Whether they take turns for it by now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a job has taken on one node so far. `None` where nobody could measure."""

    alone: bool = True
    """No other job has had one of its GPUs."""
    finished: bool = False
    """All its processes that trained came to their own end."""
    gpus: int = 0
    ranks: int = 0
    """Its processes that trained."""
    gpu_memory_mib: float | None = None
    gpu_use_pct: float | None = None
    gpu_use_spread_pct: float | None = None
    busy_s: float = 0.0
    """How long GPUs worked for it, all of them together."""
    network_mbps: float | None = None
    sent_mib: float | None = None
    cpu_s: float = 0.0
    host_memory_mib: int | None = None
    lived_s: float = 0.0
    launch_s: float | None = None
    train_s: float | None = None
    save_s: float | None = None
    minibatches: int | None = None
    minibatch_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a job's hook told of it."""

    ref: str
    phase: str = ""
    minibatch: int | None = None
    minibatch_ms: float | None = None
    import_s: float | None = None
    """How long the import of torch took."""
    launch_s: float | None = None
    """From the start of its process to the end of its first mini-batch."""
    train_s: float | None = None
    """From then to its latest, less what it waited and saved."""
    save_s: float | None = None
    restorable: bool = False
    """Whether all its processes on the node can be saved, and go on elsewhere."""
    waited_s: float = 0.0
    """How long it stood still or was held back for others, in this start."""
    parked_s: float = 0.0
    """How much of that it was parked."""
    share_s: float = 0.0
    """Seconds of training times the share of the GPU that was allowed in them (1 is all of it)."""
    shared_s: float = 0.0
    """Of how many seconds of training the share is known."""
    restart: int | None = None
    """How often Slurm had requeued the job before this start; None: its node does not know."""
    began: int = 0
    """When its first task on the node began, in clock ticks: tells two parts of a start apart."""
    resumed_at: int = 0
    """The mini-batch of an earlier start that this one went on from; 0: it does not say."""
    unattached: str = ""
    """Why a process of it trains or uses the GPU without our hooks; empty: none does."""
    share_pct: float | None = None
    """What it may use of its GPUs' time, or would be allowed to; None: its node does not say."""
    cap_mib: int | None = None
    """How much memory it may hold on each GPU; 0: as much as it likes."""
    node_reason: str = ""
    """Why it has that share: a word of the node's own list."""
    turn_holder: int | None = None
    """While it waits for its turn: the number of the job that has it,"""
    turn_since_s: float | None = None
    """and since when, by its node's clock."""
    alone_ms: float | None = None
    """Of an owner with guests: its mini-batch time without them."""
    slowdown_pct: float | None = None
    slowdown_error_pct: float | None = None
    measured: Measured | None = None
