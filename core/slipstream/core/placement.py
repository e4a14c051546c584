# SPDX-License-Identifier: Apache-2.0
"""What a job needs, and which nodes have room for it but for GPUs: the guard Slurm would be. Pure.

Who sits on which GPU is the brain's to decide (slipstream.core.cluster); partitions, CPUs, memory
and the numbers of GPUs and slots that Slurm counts are looked at here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import JobClass, Per, Role
from slipstream.core.network.bestfit import seated
from slipstream.core.network.fabric import Fabric
from slipstream.core.network.gangs import with_roles
from slipstream.core.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from slipstream.core.sights import JobSight, NodeSight, Request
    from slipstream.core.topology import Topology

MOST_NAMED: Final = 64
"""Nodes a guest is told to wait for: they must fit into one record of the advice board."""
_MEMORY_PART_MIB: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a job needs, in seats: GPUs for an owner, slots for a guest."""

    role: Role
    seats: int
    """On each node, or over all nodes if `spread`."""
    spread: bool
    nodes: int
    tasks: int = 1
    cpus_per_task: int = 1
    memory_mib_per_node: int = 0
    partitions: tuple[str, ...] = ()
    only_nodes: tuple[str, ...] = ()
    excluded_nodes: tuple[str, ...] = ()
    roles: tuple[tuple[str, int], ...] = ()
    """What its tasks are, and how many of each; servers first."""
    mbps: float | None = None
    """What each of its nodes sends, if that is known."""
    account: str = ""
    job_class: JobClass = JobClass.GUARANTEED
    gpu_memory_mib: int = 0
    gpu_use_pct: float = 0.0
    """On each GPU, as predicted; 0 if nobody knows."""
    family: str = ""
    """Of a guest whose like was measured beside others."""

    @property
    def seats_in_all(self) -> int:
        """Over all nodes."""
        return self.seats if self.spread else self.seats * self.nodes


@dataclass(frozen=True, slots=True)
class Placement:
    """Nodes that can hold a job now, and what it takes on each."""

    nodes: tuple[str, ...]
    seats_per_node: int
    tasks_per_node: int
    cpus_per_node: int
    hosts: tuple[str, ...] = ()
    """The node of each task, if its tasks have roles: a host file for an arbitrary distribution."""


@dataclass(frozen=True, slots=True)
class Room:
    """How a job is spread over nodes, and which of them have room for it."""

    shape: Placement
    """Its names are only places still to be filled."""
    seated: frozenset[str]
    """Nodes with so many GPUs or slots free, as Slurm counts."""
    whole: frozenset[str]
    """Those of them that have the CPUs and the memory, too."""


def need_of(request: Request, sight: JobSight | None = None) -> Need | None:
    """What a request needs; None for a way to ask that is left to Slurm."""
    if request.gpus.per is Per.SOCKET or request.gpus.count < 1:
        return None
    partition = (sight.partition if sight else "") or request.partition
    per_task = request.tasks if request.gpus.per is Per.TASK else 1
    nodes = max(1, request.nodes_min)
    # Jobs that need the same are looked for once: what does not count for a job is left out.
    known = request.estimate if request.estimate and request.estimate.is_known else None
    guest = request.role is Role.GUEST
    several = nodes > 1 or request.gpus.per is not Per.NODE
    return Need(
        role=request.role,
        seats=(request.size or request.gpus.count) * per_task,
        spread=request.gpus.per is not Per.NODE,
        nodes=nodes,
        tasks=max(1, request.tasks),
        cpus_per_task=max(1, request.cpus_per_task),
        memory_mib_per_node=request.memory_mib_per_node,
        partitions=tuple(partition.split(",")) if partition else (),
        only_nodes=sight.required_nodes if sight else (),
        excluded_nodes=sight.excluded_nodes if sight else (),
        roles=request.roles,
        account="" if guest else request.account,
        job_class=request.job_class,
        mbps=(several and request.estimate and request.estimate.network_mbps) or None,
        gpu_memory_mib=_in_parts(known.gpu_memory_mib or 0) if known and guest else 0,
        gpu_use_pct=known.gpu_use_pct // 10 * 10 if known and guest else 0.0,
    )


def _in_parts(memory_mib: int) -> int:
    return -(-memory_mib // _MEMORY_PART_MIB) * _MEMORY_PART_MIB


def room_for(need: Need, nodes: Mapping[str, NodeSight]) -> Room | Reason:
    """Where a job could be, or why nowhere."""
    allowed = [node for node in nodes.values() if _may_use(node, need)]
    shape = _shape(need, allowed)
    big_enough = [node for node in allowed if _could_hold(node, need, shape)]
    if len(big_enough) < len(shape.nodes):
        return Reason.NO_NODE_FITS
    free = [node for node in big_enough if _free_seats(node, need.role) >= shape.seats_per_node]
    if len(free) < len(shape.nodes):
        return Reason.NO_FREE_GPU if need.role is Role.OWNER else Reason.NO_FREE_SLOT
    whole = [node.name for node in free if _rest_is_free(node, need, shape)]
    return Room(shape, frozenset(node.name for node in free), frozenset(whole))


def able_to_hold(need: Need, nodes: Mapping[str, NodeSight]) -> frozenset[str]:
    """Nodes in service that could hold a job of one node if nobody else were there."""
    allowed = [node for node in nodes.values() if _may_use(node, need) and node.takes_jobs]
    shape = _shape(need, allowed)
    return frozenset(node.name for node in allowed if _could_hold(node, need, shape))


def keeps(need: Need, nodes: Mapping[str, NodeSight], before: Sequence[str]) -> Room | None:
    """The room on the nodes of before, if that is enough: most jobs of most rounds.

    How a job is spread may change with the cluster, so that one is placed anew.
    """
    there = {name: nodes[name] for name in before if name in nodes}
    if need.spread or len(there) != need.nodes:
        return None
    found = room_for(need, there)
    return found if isinstance(found, Room) and len(found.whole) == need.nodes else None


def given(
    need: Need, nodes: Mapping[str, NodeSight], chosen: tuple[str, ...]
) -> Placement | Reason:
    """These nodes, if they have room for it."""
    room = room_for(need, nodes)
    if isinstance(room, Reason):
        return room
    if len(chosen) != len(room.shape.nodes) or not room.whole.issuperset(chosen):
        return Reason.NO_FREE_CPU_OR_MEMORY
    return replace(room.shape, nodes=chosen)


def waits_at(room: Room, good: Collection[str]) -> Placement:
    """The nodes where only CPUs or memory are missing, if they are: Slurm counts those better."""
    enough = len(good) >= len(room.shape.nodes)
    return replace(room.shape, nodes=tuple(sorted(good)[:MOST_NAMED]) if enough else ())


def with_hosts(placed: Placement, need: Need, topology: Topology) -> Placement:
    """Tasks with roles get a node each: servers in the middle, the others around them."""
    if sum(count for _, count in need.roles) != need.tasks or need.tasks == 1:
        return placed
    gang = with_roles("", dict(need.roles), server_gpus=1)
    fabric = Fabric(dict.fromkeys(placed.nodes, placed.tasks_per_node), topology)
    each, left = [], need.tasks
    for at in range(len(fabric)):
        each.append((at, min(left, placed.tasks_per_node)))
        left -= each[-1][1]
    seats = seated(gang, [one for one in each if one[1]], fabric)
    return replace(placed, hosts=tuple(fabric.names[at] for at in seats))


def taken(nodes: Mapping[str, NodeSight], placed: Placement, role: Role) -> dict[str, NodeSight]:
    """The placed nodes as they will be once the job holds its seats there."""
    return {name: _after(nodes[name], placed, role) for name in placed.nodes if name in nodes}


def _after(node: NodeSight, placed: Placement, role: Role) -> NodeSight:
    seats = placed.seats_per_node
    return replace(
        node,
        gpus_used=node.gpus_used + (seats if role is Role.OWNER else 0),
        slots_used=node.slots_used + (seats if role is Role.GUEST else 0),
        cpus_used=node.cpus_used + placed.cpus_per_node,
    )


def _may_use(node: NodeSight, need: Need) -> bool:
    if need.partitions and not any(name in node.partitions for name in need.partitions):
        return False
    if need.only_nodes and node.name not in need.only_nodes:
        return False
    return node.name not in need.excluded_nodes


def _shape(need: Need, allowed: Sequence[NodeSight]) -> Placement:
    """How many nodes and how much on each; the names are only places still to be filled."""
    nodes, seats = need.nodes, need.seats
    if need.spread:
        largest = max((_seats(node, need.role) for node in allowed), default=0)
        nodes = max(nodes, _upwards(need.seats, largest)) if largest else nodes
        seats = _upwards(need.seats, nodes)
    tasks = _upwards(need.tasks, nodes)
    return Placement(("",) * nodes, seats, tasks, tasks * need.cpus_per_task)


def _could_hold(node: NodeSight, need: Need, shape: Placement) -> bool:
    """Empty, and in service or not."""
    return (
        _seats(node, need.role) >= shape.seats_per_node
        and node.cpus >= shape.cpus_per_node
        and node.memory_mib >= need.memory_mib_per_node
    )


def _rest_is_free(node: NodeSight, need: Need, shape: Placement) -> bool:
    return (
        node.cpus - node.cpus_used >= shape.cpus_per_node
        and node.memory_mib - node.memory_used_mib >= need.memory_mib_per_node
    )


def _seats(node: NodeSight, role: Role) -> int:
    return node.gpus if role is Role.OWNER else node.slots


def _free_seats(node: NodeSight, role: Role) -> int:
    if not node.takes_jobs:
        return 0
    used = node.gpus_used if role is Role.OWNER else node.slots_used
    return _seats(node, role) - used


def _upwards(amount: int, parts: int) -> int:
    return -(-amount // max(1, parts))
