# SPDX-License-Identifier: Apache-2.0
"""What jobs send over which wires, and how much that slows them. Beyond Liquid. Pure.

Wires are full duplex: only what is sent counts. A rack has one uplink, a node one link.
"""

from __future__ import annotations

from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slipstream.core.network.fabric import Fabric
    from slipstream.core.network.gangs import Gang

_NOTHING: Final[Mapping[int, float]] = MappingProxyType({})
Rack = TypeVar("Rack", int, str)
BESIDE_SERVER: Final = 0.08
"""What a worker loses that shares its node with a parameter server, as part of its run alone.

The one constant that is fitted to Liquid's measured table; everything between 0.060 and 0.106 gives
its order (docs/placement.md).
"""


def uplinks(gang: Gang, seats: Sequence[int], fabric: Fabric) -> dict[int, float]:
    """What a job sends over each rack's uplink, in Mbit/s; nothing if nobody knows."""
    racks = [int(fabric.rack[at]) for at in seats]
    return between(racks, gang.mbps, gang.servers)


def between(racks: Sequence[Rack], mbps: float | None, servers_count: int) -> dict[Rack, float]:
    """The same by the rack of each container, servers first, whatever racks are known by."""
    if not mbps or len(set(racks)) == 1:
        return {}
    if not servers_count:  # each rack hands the ring on once
        return dict.fromkeys(sorted(set(racks)), mbps)
    sent: dict[Rack, float] = {}
    servers, workers = racks[:servers_count], racks[servers_count:]
    each = mbps / servers_count
    for worker in workers:
        for server in servers:
            if worker != server:
                sent[worker] = sent.get(worker, 0.0) + each
                sent[server] = sent.get(server, 0.0) + each
    return sent


def crowding(
    placed: Iterable[tuple[Gang, Sequence[int]]],
    fabric: Fabric,
    uplink_mbps: float,
    before: Mapping[int, float] = _NOTHING,
) -> float:
    """By how much more the racks' uplinks are asked for than they carry, summed over racks.

    Args:
        placed: jobs and the node of each of their containers, by number.
        fabric: the nodes.
        uplink_mbps: what each uplink carries.
        before: what others send over each rack's: what these have too much is not counted.
    """
    load = dict(before)
    for gang, seats in placed:
        for rack, mbps in uplinks(gang, seats, fabric).items():
            load[rack] = load.get(rack, 0.0) + mbps
    return sum(
        max(0.0, load[rack] / uplink_mbps - 1.0)
        - max(0.0, before.get(rack, 0.0) / uplink_mbps - 1.0)
        for rack in sorted(load)
    )


def slowdown(gang: Gang, seats: Sequence[int], link_mbps: float) -> float:
    """How much longer a job with servers takes than alone without a network, as a part of that.

    The slowest pair decides: an edge between nodes takes its share of a link, times the edges it
    has to share the link with at either end. Beside a server a worker loses a little.

    Args:
        gang: the job; `mbps` must be known.
        seats: the node of each container.
        link_mbps: what a node's link carries.
    """
    if not gang.servers or gang.mbps is None:
        return 0.0
    servers, workers = seats[: gang.servers], seats[gang.servers :]
    pairs = [(one, other) for one in servers for other in workers if one != other]
    at = Counter(node for pair in pairs for node in pair)
    busiest = max((at[one] + at[other] for one, other in pairs), default=0)
    beside = BESIDE_SERVER if set(servers) & set(workers) else 0.0
    return gang.mbps / gang.servers / link_mbps * busiest + beside
