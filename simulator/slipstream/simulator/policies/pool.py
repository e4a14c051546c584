# SPDX-License-Identifier: Apache-2.0
"""Free GPUs of equal nodes, for rivals that give a GPU to one job at a time."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from slipstream.core.cluster.asks import Place
    from slipstream.core.cluster.events import NodeCame


class Pool:
    """Best fit: the node with the fewest GPUs left over, then the first one.

    A job that is larger than a node gets whole nodes and its rest by best fit.
    """

    def __init__(self) -> None:
        self.free: list[list[int]] = []
        self.total = 0
        self._places: list[Place] = []
        self._node_of: list[int] = []
        self._most = 0

    def add(self, node: NodeCame) -> None:
        """One more node."""
        gpus = list(range(self.total, self.total + node.gpus))
        self._places += [(node.node, index) for index in range(node.gpus)]
        self._node_of += [len(self.free)] * node.gpus
        self.free.append(gpus)
        self.total += node.gpus
        self._most = max(self._most, node.gpus)

    def places(self, gpus: Iterable[int]) -> tuple[Place, ...]:
        """Their names."""
        return tuple(self._places[gpu] for gpu in gpus)

    def node_of(self, gpu: int) -> int:
        """Where it is."""
        return self._node_of[gpu]

    def find(self, count: int, shut: Collection[int] = ()) -> tuple[int, ...] | None:
        """GPUs for a job, not taken yet; None if they are not there on few enough nodes."""
        whole, rest = divmod(count, self._most)
        nodes = [
            at
            for at, free in enumerate(self.free)
            if whole and len(free) == self._most and at not in shut
        ][:whole]
        if len(nodes) < whole:
            return None
        found = [gpu for at in nodes for gpu in self.free[at]]
        if rest:
            best, left = -1, self._most + 1
            for at, free in enumerate(self.free):
                if rest <= len(free) < left + rest and at not in nodes and at not in shut:
                    best, left = at, len(free) - rest
            if best < 0:
                return None
            found += self.free[best][:rest]
        return tuple(found)

    def take(self, gpus: Iterable[int]) -> None:
        """They are somebody's now."""
        for gpu in gpus:
            self.free[self._node_of[gpu]].remove(gpu)

    def give(self, gpus: Iterable[int]) -> None:
        """They are free again."""
        for gpu in gpus:
            insort(self.free[self._node_of[gpu]], gpu)
