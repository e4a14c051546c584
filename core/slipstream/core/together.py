# SPDX-License-Identifier: Apache-2.0
"""Owners of several nodes that could all start now are placed together, by the group GA. Pure.

One after the other the first takes the nodes that the second would have been near each other on.
What is found here is only proposed, as nodes that a job was given before are: brain and guards
look at each of them in its turn. So many generations are a deadline without a clock: the same jobs
and nodes give the same plans.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.core.classes import Role
from slipstream.core.network.batch import place_batch
from slipstream.core.network.fabric import Fabric
from slipstream.core.network.gangs import SERVERS, Gang
from slipstream.core.network.room import Room
from slipstream.core.network.scoring import Weights
from slipstream.core.placement import room_for
from slipstream.core.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slipstream.core.placement import Need
    from slipstream.core.sights import NodeSight
    from slipstream.core.topology import Topology
    from slipstream.core.wires import Wires

MOST_TOGETHER: Final = 16
"""Jobs of one batch, those with the best right to a place first."""
GENERATIONS: Final = 12
MOST_NODES: Final = 512
"""Where there are more to choose from, one after the other does well, and in time."""
LINK_MBPS: Final = 10_000.0
_FEWEST: Final = 2


def proposed(
    needs: Mapping[str, Need],
    nodes: Mapping[str, NodeSight],
    unowned: Callable[[str], int],
    topology: Topology,
    wires: Wires,
) -> dict[str, tuple[str, ...]]:
    """Nodes for jobs of several nodes, by their keys; nothing for fewer than two of them.

    Args:
        needs: of those who wait, in Slurm's order.
        nodes: as Slurm counts them.
        unowned: how many GPUs of a node have no owner, for all we know.
        topology: who is near whom.
        wires: what the racks' uplinks carry, and what is sent over them.
    """
    gangs: list[Gang] = []
    there: set[str] = set()
    for key, need in needs.items():
        room = room_for(need, nodes) if _is_gang(need) else Reason.SHAPE_NOT_HANDLED
        if isinstance(room, Reason) or len(room.whole) < need.nodes:
            continue
        there |= room.whole
        gangs.append(_gang(key, need))
        if len(gangs) == MOST_TOGETHER:
            break
    if len(gangs) < _FEWEST or len(there) > MOST_NODES:
        return {}
    free = {
        name: min(unowned(name), nodes[name].gpus - nodes[name].gpus_used) for name in sorted(there)
    }
    fabric = Fabric({name: nodes[name].gpus for name in sorted(there)}, topology)
    weights = Weights(link_mbps=LINK_MBPS, uplink_mbps=wires.uplink_mbps or None)
    cluster = Room(fabric, free, dict(wires.sent))
    found = place_batch(gangs, cluster, weights, generations=GENERATIONS)
    return {plan.key: tuple(sorted(plan.nodes)) for plan in found.plans if plan}


def _is_gang(need: Need) -> bool:
    return need.role is Role.OWNER and need.nodes > 1 and not need.spread and not need.only_nodes


def _gang(key: str, need: Need) -> Gang:
    servers = any(name in SERVERS for name, _ in need.roles)
    return Gang(
        key=key,
        gpus=(need.seats,) * need.nodes,
        servers=int(servers),
        mbps=need.mbps,
        apart=True,
    )
