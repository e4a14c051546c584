# SPDX-License-Identifier: Apache-2.0
"""Which nodes a job should start on: best fit for owners, quiet seats for guests. Pure.

An owner goes where the fewest free GPUs remain, so that large holes stay for large jobs; on several
nodes that is weighed against their nearness, by Liquid's score (slipstream.core.network). A guest
goes where GPUs are least used, then where it meets the fewest owners, then where most seats are
free; nearness decides among equals. The name settles what is left.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import Per, Role
from slipstream.core.network.bestfit import best_fit, seated
from slipstream.core.network.fabric import Fabric
from slipstream.core.network.gangs import SERVERS, Gang, with_roles
from slipstream.core.network.nearness import nearest
from slipstream.core.network.room import Room
from slipstream.core.network.scoring import Weights
from slipstream.core.reasons import Reason
from slipstream.core.seats import free_seats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream.core.network.nearness import Score
    from slipstream.core.seats import Shut
    from slipstream.core.sights import GpuUse, JobSight, NodeSight, Request
    from slipstream.core.topology import Topology

_USE_BUCKET_PCT: Final = 10
"""Use within one bucket counts as equal: it is noise, and advice should not follow noise."""
_MOST_NAMED: Final = 64
"""Nodes a guest is told to wait for: they must fit into one record of the advice board."""
_LINK_MBPS: Final = 10_000.0
"""What a node's link is thought to carry, as the estimator does of a job nobody knows."""

_BUSY: Final = 100 // _USE_BUCKET_PCT


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
class Field:
    """Where a placement is chosen: nodes with what is used, their GPUs, their distances.

    `shut` has the nodes with GPUs that take no guests.
    """

    nodes: Mapping[str, NodeSight]
    uses: Mapping[str, tuple[GpuUse, ...]]
    topology: Topology
    shut: Mapping[str, Shut] = dataclasses.field(default_factory=dict)


def need_of(request: Request, sight: JobSight | None = None) -> Need | None:
    """What a request needs; None for a way to ask that is left to Slurm."""
    if request.gpus.per is Per.SOCKET or request.gpus.count < 1:
        return None
    partition = (sight.partition if sight else "") or request.partition
    per_task = request.tasks if request.gpus.per is Per.TASK else 1
    return Need(
        role=request.role,
        seats=request.gpus.count * per_task,
        spread=request.gpus.per is not Per.NODE,
        nodes=max(1, request.nodes_min),
        tasks=max(1, request.tasks),
        cpus_per_task=max(1, request.cpus_per_task),
        memory_mib_per_node=request.memory_mib_per_node,
        partitions=tuple(partition.split(",")) if partition else (),
        only_nodes=sight.required_nodes if sight else (),
        excluded_nodes=sight.excluded_nodes if sight else (),
        roles=request.roles,
        mbps=(request.estimate and request.estimate.network_mbps) or None,
    )


def place(need: Need, field: Field, keep: Sequence[str] = ()) -> Placement | Reason:
    """Nodes for a job, or why there are none. Nodes it was given before are kept while they do."""
    if kept := _kept(need, field, keep):
        return _with_hosts(kept, need, field)
    allowed = [node for node in field.nodes.values() if _may_use(node, need)]
    shape = _shape(need, allowed)
    big_enough = [node for node in allowed if _could_hold(node, need, shape)]
    if len(big_enough) < len(shape.nodes):
        return Reason.NO_NODE_FITS
    free = [node for node in big_enough if _free_seats(node, need.role) >= shape.seats_per_node]
    if len(free) < len(shape.nodes):
        return Reason.NO_FREE_GPU if need.role is Role.OWNER else Reason.NO_FREE_SLOT
    free = [node for node in free if _takes(node, need, shape, field)]
    if len(free) < len(shape.nodes):
        return Reason.NO_GUEST_SEAT
    fitting = {node.name: node for node in free if _rest_is_free(node, need, shape)}
    if len(fitting) < len(shape.nodes):
        return Reason.NO_FREE_CPU_OR_MEMORY
    return _with_hosts(_chosen(fitting, need, shape, field), need, field)


def _chosen(
    fitting: Mapping[str, NodeSight], need: Need, shape: Placement, field: Field
) -> Placement:
    """The best of enough nodes that hold it."""
    count = len(shape.nodes)
    if need.role is Role.GUEST or count == 1:
        scores = {name: _score(node, need, shape, field) for name, node in fitting.items()}
        return replace(shape, nodes=nearest(scores, count, field.topology))
    gang = Gang(
        key="",
        gpus=(shape.seats_per_node,) * count,
        servers=1 if any(name in SERVERS for name, _ in need.roles) else 0,
        mbps=need.mbps,
        apart=True,
    )
    fabric = Fabric({name: node.gpus for name, node in fitting.items()}, field.topology)
    free = {name: node.gpus - node.gpus_used for name, node in fitting.items()}
    plan = best_fit(gang, Room(fabric, free), Weights(link_mbps=_LINK_MBPS))
    if plan is None:
        raise AssertionError(f"{count} of {len(fitting)} nodes hold it, and none were found")
    return replace(shape, nodes=tuple(sorted(plan.nodes)))


def _with_hosts(placed: Placement, need: Need, field: Field) -> Placement:
    """Tasks with roles get a node each: servers in the middle, the others around them."""
    if sum(count for _, count in need.roles) != need.tasks or need.tasks == 1:
        return placed
    gang = with_roles("", dict(need.roles), server_gpus=1)
    fabric = Fabric(dict.fromkeys(placed.nodes, placed.tasks_per_node), field.topology)
    each, left = [], need.tasks
    for at in range(len(fabric)):
        each.append((at, min(left, placed.tasks_per_node)))
        left -= each[-1][1]
    seats = seated(gang, [one for one in each if one[1]], fabric)
    return replace(placed, hosts=tuple(fabric.names[at] for at in seats))


def with_seats(need: Need, field: Field) -> Placement:
    """The nodes where only CPUs or memory are missing, if they are: Slurm counts those better."""
    allowed = [node for node in field.nodes.values() if _may_use(node, need)]
    shape = _shape(need, allowed)
    good = [
        node.name
        for node in allowed
        if _could_hold(node, need, shape)
        and _free_seats(node, need.role) >= shape.seats_per_node
        and _takes(node, need, shape, field)
    ]
    enough = len(good) >= len(shape.nodes)
    return replace(shape, nodes=tuple(sorted(good)[:_MOST_NAMED]) if enough else ())


def _kept(need: Need, field: Field, keep: Sequence[str]) -> Placement | None:
    """The nodes of before if they still do: most jobs of most rounds, so nothing else is looked at.

    How a job is spread may change with the cluster, so that one is placed anew.
    """
    nodes = [field.nodes[name] for name in keep if name in field.nodes]
    if need.spread or len(nodes) != need.nodes:
        return None
    shape = _shape(need, ())
    for node in nodes:
        enough = _free_seats(node, need.role) >= shape.seats_per_node
        enough = enough and _takes(node, need, shape, field)
        if not (enough and _may_use(node, need) and _rest_is_free(node, need, shape)):
            return None
    return replace(shape, nodes=tuple(keep))


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


def felt(uses: Sequence[GpuUse]) -> tuple[tuple[int, bool, int], ...]:
    """What placements see of GPUs: two reports that are felt alike decide alike."""
    return tuple((_bucket(gpu), gpu.takes_guests, len(gpu.guest_jobs)) for gpu in uses)


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


def _takes(node: NodeSight, need: Need, shape: Placement, field: Field) -> bool:
    """Whether a guest finds its seats on GPUs that take guests; an owner has no such wish."""
    seats = shape.seats_per_node
    return need.role is Role.OWNER or free_seats(node, field.shut.get(node.name), seats) >= seats


def _seats(node: NodeSight, role: Role) -> int:
    return node.gpus if role is Role.OWNER else node.slots


def _free_seats(node: NodeSight, role: Role) -> int:
    if not node.takes_jobs:
        return 0
    used = node.gpus_used if role is Role.OWNER else node.slots_used
    return _seats(node, role) - used


def _score(node: NodeSight, need: Need, shape: Placement, field: Field) -> Score:
    """Less is better."""
    free = _free_seats(node, need.role)
    if need.role is Role.OWNER:
        return (free - shape.seats_per_node, 0, 0)
    use = _use_of_quietest(node, field.uses.get(node.name, ()), shape.seats_per_node)
    # An owner that has just started shows no use yet: a GPU nobody owns is the safer seat.
    owners_met = max(0, shape.seats_per_node - (node.gpus - node.gpus_used))
    return (use, owners_met, -free)


def _use_of_quietest(node: NodeSight, uses: Sequence[GpuUse], count: int) -> int:
    """The mean use of the least used GPUs; an owned GPU nobody measures counts as busy."""
    measured = tuple(map(_bucket, uses))
    if not measured:
        measured = (0,) * (node.gpus - node.gpus_used) + (_BUSY,) * node.gpus_used
    quietest = sorted(measured)[: max(1, count)]
    return sum(quietest) // len(quietest) if quietest else _BUSY


def _bucket(gpu: GpuUse) -> int:
    return int(gpu.use_pct // _USE_BUCKET_PCT)


def _upwards(amount: int, parts: int) -> int:
    return -(-amount // max(1, parts))
