# SPDX-License-Identifier: Apache-2.0
"""The switches of a topology as arrays, made once: nodes numbered along the tree.

Nodes of one rack are neighbours in the numbering, racks of one domain too, and so on outwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slipstream.core.topology import Group

Ints: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"
Floats: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
Bools: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.bool_]]"


class Tree:
    """All nodes that a topology names.

    Args:
        chains: the groups of each node, from its rack outwards.
        order: the groups as they were given; it is kept among groups of one group.

    Attributes:
        number: of each node, by name.
        groups: for each level from the racks outwards, the group of each node.
        sizes: how many nodes that group has.
        worst: the size of the largest.
    """

    def __init__(self, chains: Mapping[str, tuple[Group, ...]], order: Iterable[Group]) -> None:
        place = {group.name: at for at, group in enumerate(order)}
        inwards = {
            name: [place[group.name] for group in reversed(chain)] for name, chain in chains.items()
        }
        names = sorted(chains, key=lambda name: (inwards[name], name))
        self.number = {name: at for at, name in enumerate(names)}
        levels = max(map(len, chains.values()), default=1)
        full = [
            (*chains[name], *[chains[name][-1]] * (levels - len(chains[name]))) for name in names
        ]
        shape = (levels, len(names))
        self.groups: Ints = np.array(
            [[place[chain[level].name] for chain in full] for level in range(levels)],
            dtype=np.int64,
        ).reshape(shape)
        self.sizes: Ints = np.array(
            [[len(chain[level].nodes) for chain in full] for level in range(levels)], dtype=np.int64
        ).reshape(shape)
        self.worst = int(self.sizes.max(initial=1))
