# SPDX-License-Identifier: Apache-2.0
"""The cluster's wires as arrays: nodes numbered along the tree of switches, costs between racks.

Nodes of one rack are neighbours in the numbering, racks of one domain too: whoever visits nodes in
the order of their numbers makes the cheapest ring (docs/placement.md), and equal choices are
settled by the lowest number. Never changes; what is free is in room.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.core.topology import Group, Topology

Ints: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"
Floats: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
Bools: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]"


class Fabric:
    """Nodes, racks, domains.

    Args:
        gpus: how many each node has, by name. Nodes without GPUs are left out.
        topology: who is near whom. A node it does not know is a rack and a domain of its own.

    Attributes:
        names: of the nodes, by number; `number` is the way back.
        total: GPUs of each node.
        groups: for each level from the racks outwards, the group of each node. The first row is the
            rack, the last one the domain; numbers rise with the nodes'.
    """

    def __init__(self, gpus: Mapping[str, int], topology: Topology) -> None:
        chains = {name: topology.groups_of(name) for name, count in gpus.items() if count > 0}
        place = {group.name: at for at, group in enumerate(topology.groups)}

        def along_the_tree(name: str) -> tuple[object, ...]:
            chain = chains[name]
            return (not chain, [place[group.name] for group in reversed(chain)], name)

        self.names: tuple[str, ...] = tuple(sorted(chains, key=along_the_tree))
        self.number = {name: at for at, name in enumerate(self.names)}
        self.total: Ints = np.array([gpus[name] for name in self.names], dtype=np.int64)
        deepest = max((len(chain) for chain in chains.values()), default=1) or 1
        self.groups: Ints = np.array(
            [
                _numbered([_at(chains[name], level, name) for name in self.names])
                for level in range(deepest)
            ],
            dtype=np.int64,
        ).reshape(deepest, len(self.names))
        self.rack: Ints = self.groups[0]
        self.domain: Ints = self.groups[-1]
        self.racks = int(self.rack[-1]) + 1 if self.names else 0
        sizes = [
            [
                len(chains[name][min(level, len(chains[name]) - 1)].nodes) if chains[name] else 1
                for name in self.names
            ]
            for level in range(deepest)
        ]
        self._first: Ints = np.searchsorted(self.rack, np.arange(self.racks))
        """The first node of each rack."""
        worst = max((max(row) for row in sizes), default=1)
        self._cost: Floats = np.array(sizes, dtype=np.float64).reshape(self.groups.shape) / worst
        self._rows: dict[int, list[float]] = {}

    def __len__(self) -> int:
        return len(self.names)

    def near(self, rack: int) -> list[float]:
        """The cost from a rack to each rack, 1 being the worst within a domain.

        To the rack itself: between two nodes of it. Across domains it is 1 as well; that a job lies
        in several is a matter of its own (scoring.py).
        """
        row = self._rows.get(rack)
        if row is None:
            own, others = self._first[rack], self._first
            found = np.ones(self.racks)
            for level in reversed(range(len(self.groups))):
                same = self.groups[level][others] == self.groups[level][own]
                found[same] = self._cost[level][own]
            self._rows[rack] = row = found.tolist()
        return row

    def cost(self, one: int, other: int) -> float:
        """Liquid's cost between two nodes, in [0, 1]; 0 on the same node."""
        if one == other:
            return 0.0
        return self.near(int(self.rack[one]))[int(self.rack[other])]


def _at(chain: tuple[Group, ...], level: int, name: str) -> str:
    return chain[min(level, len(chain) - 1)].name if chain else f"node {name}"


def _numbered(names: list[str]) -> list[int]:
    """Each name's number, in the order of their first appearance."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]
