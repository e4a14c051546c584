# SPDX-License-Identifier: Apache-2.0
"""What makes one plan better than another: Liquid's score, written plainly. Less is better.

    score = λ · Σ jobs' cost  +  (1 - λ) · Σ nodes' fitness  +  nodes used
    fitness = -(asked + used) / total

A job's cost is the mean of its edges' costs, so that the worst plan within a domain has 1; every
domain beyond the first adds ACROSS. Nodes are those of the plan. PUBLISHED counts a node once,
however many jobs of the plan are on it; OURS counts it for each of them, because otherwise small
jobs are gathered on empty nodes while the holes they fit stay open (decision 0014). For one job
alone both are the same. What is faster elsewhere (layout.py) gives the same numbers; tests compare.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from slipstream.core.network.traffic import crowding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slipstream.core.network.fabric import Fabric
    from slipstream.core.network.gangs import Gang, Plan
    from slipstream.core.network.room import Room

ACROSS: Final = 1_000.0
"""For each domain beyond the first: more than any number of nodes could save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What counts how much."""

    near: float = 0.5
    """λ: nearness against full nodes."""
    per_job: bool = True
    """Whether a node counts for each job on it, or once."""
    link_mbps: float | None = None
    """What a node's link carries; jobs' edges then weigh as much of it as they fill."""
    uplink_mbps: float | None = None
    """What a rack's uplink carries; what is sent beyond that counts."""

    def of(self, gang: Gang) -> float:
        """How much its edges weigh, in [0, 1]; 1 if nobody knows better."""
        if self.link_mbps is None or gang.mbps is None:
            return 1.0
        return min(1.0, gang.mbps / self.link_mbps)


OURS: Final = Weights()
PUBLISHED: Final = Weights(per_job=False)
"""Liquid's."""


def cost_of(gang: Gang, seats: Sequence[int], fabric: Fabric) -> float:
    """How far apart those are who talk: 0 on one node, 1 at the worst, and ACROSS per domain more.

    Args:
        gang: the job.
        seats: the node of each container, by number.
        fabric: the nodes.
    """
    used = sorted(set(seats))
    if len(used) == 1 or not gang.edges:
        return 0.0
    if gang.servers:
        servers, workers = seats[: gang.servers], seats[gang.servers :]
        far = sum(fabric.cost(one, other) for one in servers for other in workers)
    else:
        # In the order of their numbers: the cheapest ring there is.
        far = sum(fabric.cost(one, used[at - 1]) for at, one in enumerate(used))
    domains = len({int(fabric.domain[one]) for one in used})
    return far / gang.edges + ACROSS * (domains - 1)


def score(
    gangs: Iterable[Gang], plans: Iterable[Plan], room: Room, weights: Weights = OURS
) -> float:
    """The score of all plans together, in a room where none of them has been taken yet."""
    fabric, asked, jobs_on = room.fabric, dict[int, int](), Counter[int]()
    by_key = {gang.key: gang for gang in gangs}
    far, placed = 0.0, []
    for plan in plans:
        gang = by_key[plan.key]
        seats = [fabric.number[name] for name in plan.nodes]
        placed.append((gang, seats))
        far += weights.of(gang) * cost_of(gang, seats, fabric)
        jobs_on.update(set(seats))
        for at, gpus in zip(seats, gang.gpus, strict=True):
            asked[at] = asked.get(at, 0) + gpus
    nodes = 0.0
    for at, gpus in asked.items():
        used = int(fabric.total[at] - room.free[at])
        term = 1.0 - (1.0 - weights.near) * (gpus + used) / int(fabric.total[at])
        nodes += term * (jobs_on[at] if weights.per_job else 1)
    carries = weights.uplink_mbps
    crowded = crowding(placed, fabric, carries, room.sent) if carries else 0.0
    return weights.near * (far + crowded) + nodes
