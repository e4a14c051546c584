# SPDX-License-Identifier: Apache-2.0
"""Clusters, jobs and events in a line each, for the tests of the core and of the daemon."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slipstream.core.classes import JobClass, Mode, Per, Role
from slipstream.core.events import ClusterSeen, JobSubmitted, NodeReported
from slipstream.core.machine import Machine
from slipstream.core.mirror import Mirror, live
from slipstream.core.rules import Rules
from slipstream.core.sights import Gpus, GpuUse, JobSight, NodeSight, Request, Standing
from slipstream.core.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream.core.placement import Need, Placement
    from slipstream.core.reasons import Reason
    from slipstream.core.records import JobRecord
    from slipstream.core.topology import Topology

RULES = Rules(mode=Mode.ADVISE)


def token(number: int) -> str:
    """16 hex digits."""
    return f"{number:016x}"


def node(name: str, *, used: int = 0, slots_used: int = 0, gpus: int = 4) -> NodeSight:
    """A node of four GPUs with three slots each, 32 CPUs and 64 GiB."""
    return NodeSight(
        name=name,
        state="MIXED",
        partitions=("batch",),
        gpus=gpus,
        gpus_used=used,
        slots=3 * gpus,
        slots_used=slots_used,
        cpus=32,
        cpus_used=used + slots_used,
        memory_mib=65_536,
    )


def request(number: int = 1, *, role: Role = Role.OWNER, gpus: int = 1, nodes: int = 1) -> Request:
    """So many GPUs on each of so many nodes."""
    return Request(
        token=token(number),
        job_class=JobClass.SHARED if role is Role.OWNER else JobClass.OPPORTUNISTIC,
        role=role,
        gpus=Gpus(Per.NODE, gpus),
        nodes_min=nodes,
        tasks=nodes,
        partition="batch",
    )


def sight(
    ref: str,
    asked: Request | None = None,
    standing: Standing = Standing.WAITING,
    *,
    reason: str = "",
    priority: int = 100,
) -> JobSight:
    """A job in Slurm's queue."""
    return JobSight(
        ref=ref,
        standing=standing,
        name=f"job{ref}",
        partition="batch",
        priority=priority,
        submitted_at_s=int(ref.partition("_")[0]),
        nodes=("n1",) if standing is Standing.RUNNING else (),
        slurm_reason=reason,
        request=asked,
    )


def holds(ref: str, asked: Request | None, *indices: int, name: str = "n1") -> JobSight:
    """A running job that holds these GPUs of a node."""
    places = tuple((name, index) for index in indices)
    running = sight(ref, asked, Standing.RUNNING)
    return replace(running, nodes=(name,), gpus=len(places), gpu_places=places)


def machine(*nodes: NodeSight, rules: Rules = RULES) -> Machine:
    """A machine that has seen these nodes and no job."""
    one = Machine(rules)
    one.handle(ClusterSeen(at_s=1.0, nodes=nodes, complete=True))
    return one


def submitted(asked: Request, at_s: float = 10.0) -> JobSubmitted:
    """The announcement of job_submit."""
    return JobSubmitted(at_s, asked)


def looked(
    at_s: float, *jobs: JobSight, gone: tuple[str, ...] = (), nodes: tuple[NodeSight, ...] = ()
) -> ClusterSeen:
    """A poll that saw these jobs and nodes change."""
    return ClusterSeen(at_s=at_s, jobs=jobs, jobs_gone=gone, nodes=nodes)


@dataclass(frozen=True)
class Field:
    """A cluster in which one job is placed."""

    nodes: Mapping[str, NodeSight]
    uses: Mapping[str, tuple[GpuUse, ...]]
    topology: Topology
    jobs: tuple[JobRecord, ...] = ()

    def mirrored(self) -> Mirror:
        """The brain, told of it."""
        state = State(nodes=dict(self.nodes), groups=self.topology.groups)
        state.reports.update(
            (name, NodeReported(at_s=1.0, node=name, gpus=gpus)) for name, gpus in self.uses.items()
        )
        for record in self.jobs:
            state.put(record)
            if record.sight and record.sight.request:
                state.requests[record.token] = record.sight.request
        mirror = Mirror(live(RULES, moves=False))
        mirror.look(state, 1.0)
        return mirror


def place(need: Need, field: Field, keep: Sequence[str] = ()) -> Placement | Reason:
    """Where the brain seats a job that needs this."""
    return field.mirrored().place("job", need, field.nodes, 1.0, keep)


def full(one: NodeSight) -> NodeSight:
    """The same node with everything taken."""
    return replace(one, gpus_used=one.gpus, slots_used=one.slots)
