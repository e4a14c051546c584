# SPDX-License-Identifier: Apache-2.0
"""Which nodes a job should start on: best fit for owners, quiet seats for guests. Pure.

An owner goes where the fewest free GPUs remain, so that large holes stay for large jobs; a guest
where GPUs are least used, then where it meets the fewest owners, then where most seats are free.
Nearness in the topology decides among nodes that are equally good, and the name among those equally
near.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import Per, Role
from slipstream.core.reasons import Reason
from slipstream.core.seats import free_seats

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream.core.seats import Shut
    from slipstream.core.sights import GpuUse, JobSight, NodeSight, Request
    from slipstream.core.topology import Topology

_USE_BUCKET_PCT: Final = 10
"""Use within one bucket counts as equal: it is noise, and advice should not follow noise."""
_MOST_NAMED: Final = 64
"""Nodes a guest is told to wait for: they must fit into one record of the advice board."""
_MOST_COMPARISONS: Final = 2_000
"""Beyond that fewer starting points are tried: an answer in time beats the last bit of nearness."""

_BUSY: Final = 100 // _USE_BUCKET_PCT

Score = tuple[int, int, int]


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
    )


def place(need: Need, field: Field, keep: Sequence[str] = ()) -> Placement | Reason:
    """Nodes for a job, or why there are none. Nodes it was given before are kept while they do."""
    if kept := _kept(need, field, keep):
        return kept
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
    scores = {name: _score(node, need, shape, field) for name, node in fitting.items()}
    return replace(shape, nodes=_best(scores, len(shape.nodes), field.topology))


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


def _best(scores: Mapping[str, Score], count: int, topology: Topology) -> tuple[str, ...]:
    """The `count` best scores; where too many are equal, those nearest to the others."""
    ranked = sorted(scores, key=lambda name: (scores[name], name))
    last = scores[ranked[count - 1]]
    sure = [name for name in ranked if scores[name] < last]
    equal = [name for name in ranked if scores[name] == last]
    missing = count - len(sure)
    if missing == len(equal) or count == 1:
        return tuple(sorted(ranked[:count]))  # the name settles ties, so replay is exact
    racks = _by_rack(equal, topology)
    starts = [sure] if sure else [[names[0]] for names in racks]
    tries = max(1, _MOST_COMPARISONS // (missing * len(racks)))
    found = (_grown(start, racks, count, topology) for start in starts[:tries])
    return min(found, key=lambda one: (one[0], one[1]))[1]


def _grown(
    start: Sequence[str], racks: Sequence[Sequence[str]], count: int, topology: Topology
) -> tuple[int, tuple[str, ...]]:
    """Nodes added nearest first, and the cost between all of them.

    Nodes of one rack are equally far from everything: only the first free one of each is compared.
    """
    chosen = list(start)
    total = sum(topology.cost(a, b) for i, a in enumerate(chosen) for b in chosen[:i])
    free = [[name for name in names if name not in chosen] for names in racks]
    free = [names for names in free if names]
    far = [sum(topology.cost(names[0], other) for other in chosen) for names in free]
    while len(chosen) < count:
        at = min(
            (one for one in range(len(free)) if free[one]), key=lambda one: (far[one], free[one][0])
        )
        nearest = free[at].pop(0)
        total += far[at]
        chosen.append(nearest)
        for one, names in enumerate(free):
            if names:
                far[one] += topology.cost(names[0], nearest)
    return total, tuple(sorted(chosen))


def _by_rack(names: Sequence[str], topology: Topology) -> list[list[str]]:
    """The nodes of each rack, in the order given; a node without one is a rack of its own."""
    racks: dict[str, list[str]] = {}
    for name in names:
        rack = topology.rack_of(name)
        racks.setdefault(rack.name if rack else f"node {name}", []).append(name)
    return list(racks.values())


def _upwards(amount: int, parts: int) -> int:
    return -(-amount // max(1, parts))
