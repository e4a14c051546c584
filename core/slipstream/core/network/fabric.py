# SPDX-License-Identifier: Apache-2.0
"""Nodes that jobs may be placed on, numbered along the tree of switches, and the costs between.

Whoever visits nodes in the order of their numbers makes the cheapest ring (docs/placement.md), and
equal choices are settled by the lowest number. Never changes; what is free is in room.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.core.network.tree import Floats, Ints
    from slipstream.core.topology import Topology


class Fabric:
    """Nodes, racks, domains.

    Args:
        gpus: how many each node has, by name. Nodes without GPUs are left out.
        topology: who is near whom. A node it does not know is a rack and a domain of its own.

    Attributes:
        names: of the nodes, by number; `number` is the way back.
        total: GPUs of each node.
        groups: for each level from the racks outwards, the group of each node. The first row is the
            rack, the last one the domain; they are numbered from 0, along the nodes.
    """

    def __init__(self, gpus: Mapping[str, int], topology: Topology) -> None:
        tree = topology.tree
        with_gpus = [name for name, count in gpus.items() if count > 0]
        known = sorted((tree.number[name], name) for name in with_gpus if name in tree.number)
        unknown = sorted(name for name in with_gpus if name not in tree.number)
        self.names: tuple[str, ...] = (*(name for _, name in known), *unknown)
        self.number = {name: at for at, name in enumerate(self.names)}
        self.total: Ints = np.array([gpus[name] for name in self.names], dtype=np.int64)
        at = np.array([number for number, _ in known], dtype=np.int64)
        alone = np.arange(len(unknown)) + int(tree.groups.max(initial=-1)) + 1
        levels = len(tree.groups)
        groups = np.hstack([tree.groups[:, at], np.tile(alone, (levels, 1))])
        sizes = np.hstack([tree.sizes[:, at], np.ones((levels, len(unknown)), dtype=np.int64)])
        self.groups: Ints = np.array([_from_zero(row) for row in groups])
        self.rack: Ints = self.groups[0]
        self.domain: Ints = self.groups[-1]
        self.racks = int(self.rack[-1]) + 1 if self.names else 0
        self._first: Ints = np.searchsorted(self.rack, np.arange(self.racks))
        """The first node of each rack."""
        self._topology = topology
        self._cost: Floats = sizes / tree.worst
        self._rows: dict[int, Floats] = {}

    def __len__(self) -> int:
        return len(self.names)

    @property
    def rack_names(self) -> tuple[str, ...]:
        """By number; a node that the topology does not know is a rack of its own name."""
        firsts = [self.names[at] for at in self._first]
        racks = [self._topology.rack_of(name) for name in firsts]
        return tuple(rack.name if rack else name for rack, name in zip(racks, firsts, strict=True))

    def near(self, rack: int) -> Floats:
        """The cost from a rack to each rack, 1 being the worst within a domain.

        To the rack itself: between two nodes of it. Across domains it is 1 as well; that a job lies
        in several is a matter of its own (scoring.py).
        """
        row = self._rows.get(rack)
        if row is None:
            own = self._first[rack]
            row = np.ones(self.racks)
            for level in reversed(range(len(self.groups))):
                same = self.groups[level][self._first] == self.groups[level][own]
                row[same] = self._cost[level][own]
            self._rows[rack] = row
        return row

    def cost(self, one: int, other: int) -> float:
        """Liquid's cost between two nodes, in [0, 1]; 0 on the same node."""
        if one == other:
            return 0.0
        return float(self.near(int(self.rack[one]))[int(self.rack[other])])


def _from_zero(groups: Ints) -> Ints:
    """The same groups, numbered along the nodes; nodes of one group are neighbours."""
    if not groups.size:
        return groups
    begins = np.ones(groups.size, dtype=np.int64)
    np.not_equal(groups[1:], groups[:-1], out=begins[1:], casting="unsafe")
    numbers: Ints = np.cumsum(begins) - 1
    return numbers
