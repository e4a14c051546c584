# SPDX-License-Identifier: Apache-2.0
"""Clusters with racks in a line each, for the tests of network-aware placement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.core.network.fabric import Fabric
from slipstream.core.network.room import Room
from slipstream.core.topology import Group, Topology

if TYPE_CHECKING:
    from collections.abc import Sequence


def racks(*sizes: int, racks_per_domain: int = 100) -> Topology:
    """Racks r0, r1… of so many nodes each, n00, n01… in a row; domains d0, d1… above them."""
    names = [f"n{number:02}" for number in range(sum(sizes))]
    groups, first = [], 0
    for at, size in enumerate(sizes):
        groups.append(Group(f"r{at}", 0, tuple(names[first : first + size])))
        first += size
    for at in range(0, len(sizes), racks_per_domain):
        inside = [name for group in groups[at : at + racks_per_domain] for name in group.nodes]
        groups.append(Group(f"d{at // racks_per_domain}", 1, tuple(inside)))
    return Topology(tuple(groups))


def room(topology: Topology, free: Sequence[int], gpus: int = 8) -> Room:
    """Nodes of so many GPUs, of which so many are free."""
    names = sorted({name for group in topology.groups for name in group.nodes})
    fabric = Fabric(dict.fromkeys(names, gpus), topology)
    return Room(fabric, dict(zip(names, free, strict=True)))
