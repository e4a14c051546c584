# SPDX-License-Identifier: Apache-2.0
"""Which nodes are near each other: racks, domains, and Liquid's cost between two nodes.

Pure data and arithmetic. Who read it from where (topology.conf, a trace, a table in a test) is not
known here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slipstream.core.network.tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ACROSS_DOMAINS: Final = 1_000_000_000
"""Cost between nodes no switch connects. Finite, so that plans that need it can still be ranked."""


class TopologyError(ValueError):
    """Groups of nodes that cannot be one topology."""


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes below one switch, or in one block; `level` 0 is nearest to the nodes."""

    name: str
    level: int
    nodes: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.nodes:
            raise TopologyError(f"{self.name} holds no node")
        if len(set(self.nodes)) != len(self.nodes):
            raise TopologyError(f"{self.name} names a node twice: {list(self.nodes)}")


@dataclass(frozen=True, slots=True)
class Topology:
    """Groups of nodes, one inside the other or apart, never overlapping.

    A rack is a group that contains no other, a domain one that is in no other. Two levels give
    Liquid's racks and domains; a site with more levels keeps them, and the cost between two nodes
    is the size of the smallest group that holds both.
    """

    groups: tuple[Group, ...]
    _groups_of: Mapping[str, tuple[Group, ...]] = field(init=False, repr=False, compare=False)
    _tree: Tree | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        times = Counter(group.name for group in self.groups)
        if twice := sorted(name for name in times if times[name] > 1):
            raise TopologyError(f"these names are given to more than one group: {twice}")
        object.__setattr__(self, "_groups_of", _smallest_first(self.groups))
        object.__setattr__(self, "_tree", None)

    @property
    def racks(self) -> tuple[Group, ...]:
        """The innermost groups, in the order they were given."""
        outer = {group.name for chain in self._groups_of.values() for group in chain[1:]}
        return tuple(group for group in self.groups if group.name not in outer)

    @property
    def domains(self) -> tuple[Group, ...]:
        """The outermost groups, in the order they were given."""
        inner = {group.name for chain in self._groups_of.values() for group in chain[:-1]}
        return tuple(group for group in self.groups if group.name not in inner)

    @property
    def tree(self) -> Tree:
        """The same as arrays, made when first asked for."""
        if self._tree is None:
            object.__setattr__(self, "_tree", Tree(self._groups_of, self.groups))
        assert self._tree is not None  # noqa: S101 (for mypy: it was set above)
        return self._tree

    def groups_of(self, node: str) -> tuple[Group, ...]:
        """All groups that hold a node, from its rack outwards; none for a node nobody named."""
        return self._groups_of.get(node, ())

    def rack_of(self, node: str) -> Group | None:
        """The innermost group of a node; None for a node that no switch was given for."""
        chain = self._groups_of.get(node)
        return chain[0] if chain else None

    def domain_of(self, node: str) -> Group | None:
        """The outermost group of a node; None for a node that no switch was given for."""
        chain = self._groups_of.get(node)
        return chain[-1] if chain else None

    def cost(self, one: str, other: str) -> int:
        """Liquid's cost of traffic between two nodes.

        0 on the same node, the number of nodes in the rack within a rack, the number of nodes in
        the domain across racks, ACROSS_DOMAINS where no group holds both.
        """
        if one == other:
            return 0
        around_other = self._groups_of.get(other, ())
        for group in self._groups_of.get(one, ()):
            if any(group is candidate for candidate in around_other):
                return len(group.nodes)
        return ACROSS_DOMAINS


def flat(nodes: Iterable[str], name: str = "cluster") -> Topology:
    """What a cluster without a topology is: one rack that is the whole domain."""
    return Topology((Group(name, 0, tuple(nodes)),))


def _smallest_first(groups: tuple[Group, ...]) -> dict[str, tuple[Group, ...]]:
    """Each node's groups from the rack outwards; groups that overlap are refused."""
    chains: dict[str, list[Group]] = {}
    # Equal sizes happen (a switch over one switch): the level says which one is inside.
    for group in sorted(groups, key=lambda g: (-len(g.nodes), -g.level, g.name)):
        parents = {chains[node][0].name if node in chains else "" for node in group.nodes}
        if len(parents) > 1:
            raise TopologyError(
                f"{group.name} lies across {' and '.join(sorted(parents - {''}))}: "
                "groups are one inside the other or apart"
            )
        for node in group.nodes:
            chains.setdefault(node, []).insert(0, group)
    return {node: tuple(chain) for node, chain in chains.items()}
