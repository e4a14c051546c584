# SPDX-License-Identifier: Apache-2.0
"""Nodes, their GPUs and who sits on them, with what a search would have to count kept counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.core.cluster.buckets import Buckets

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipstream.core.cluster.asks import Place
    from slipstream.core.cluster.events import NodeCame
    from slipstream.core.cluster.jobs import Job
    from slipstream.core.cluster.rules import ClusterRules

_LOAD_STEP_PCT: Final = 10.0
NOBODY: Final = -1
"""The worst level on a GPU where only guaranteed jobs sit: nobody can be asked to leave."""


class Ground:
    """GPUs are numbered in the order their nodes came: the number settles every tie."""

    def __init__(self, rules: ClusterRules) -> None:
        self._rules = rules
        self.bottom = len(rules.levels_gpu_s) + 1
        """The level of opportunistic jobs, below all others."""
        self.empty = self.bottom + 1
        """What counts as the worst level on a free GPU."""
        self.names: list[str] = []
        self.node_at: dict[str, int] = {}
        self.gpus_of: list[tuple[int, ...]] = []
        self.node_of: list[int] = []
        self.places: list[Place] = []
        self.memory_mib: list[float] = []
        self.on: list[list[Job]] = []
        self.largest = 0
        """GPUs of the largest node."""
        self.closed: set[int] = set()
        """Nodes that are drained."""
        self.reserved: dict[int, int] = {}
        """Nodes kept for a guaranteed gang, by the number of that job."""
        self.free = Buckets(8)
        """Nodes by free GPUs."""
        self.roomy = Buckets(8)
        """Nodes by GPUs that may take one more, free ones among them."""
        self.unowned = Buckets(8)
        """Nodes by GPUs without a guaranteed owner; reserved nodes are not in it."""
        self.quiet = Buckets(20)
        """GPUs in use that may take one more, by tenths of predicted use."""
        self.full = Buckets(20)
        """GPUs with several jobs, by tenths of predicted use."""
        self.takeable = [Buckets(8) for _ in range(self.empty)]
        """For each level: nodes by GPUs on which somebody is below that level, or nobody at all."""
        self.worst: list[int] = []
        """On each GPU, the level of the one who leaves first."""

    @property
    def gpus(self) -> int:
        """In service or not."""
        return len(self.on)

    def add(self, node: NodeCame) -> int:
        """One more node; its number."""
        at = len(self.names)
        gpus = tuple(range(len(self.on), len(self.on) + node.gpus))
        self.names.append(node.node)
        self.node_at[node.node] = at
        self.gpus_of.append(gpus)
        self.largest = max(self.largest, node.gpus)
        for index in range(node.gpus):
            self.node_of.append(at)
            self.places.append((node.node, index))
            self.memory_mib.append(node.memory_mib or float("inf"))
            self.on.append([])
            self.worst.append(self.empty)
        self.count(at)
        return at

    def close(self, node: int) -> None:
        """A node takes no more jobs."""
        self.closed.add(node)
        self.count(node)

    def nodes_of(self, gpus: Iterable[int]) -> set[int]:
        """Where they are."""
        return {self.node_of[gpu] for gpu in gpus}

    def reserve(self, nodes: Iterable[int], number: int) -> None:
        """Keep nodes from other guaranteed jobs."""
        for node in nodes:
            self.reserved[node] = number
            self.count(node)

    def release(self, number: int) -> None:
        """A reservation is over."""
        for node in [node for node, of in self.reserved.items() if of == number]:
            del self.reserved[node]
            self.count(node)

    def count(self, node: int) -> None:
        """Count a node anew: somebody came, left, or is another than he was thought to be."""
        if node in self.closed:
            for buckets in (self.free, self.roomy, self.unowned, *self.takeable):
                buckets.drop(node)
            for gpu in self.gpus_of[node]:
                self.quiet.drop(gpu)
                self.full.drop(gpu)
            return
        free = roomy = unowned = 0
        at_worst = [0] * (self.empty + 1)
        most = self._rules.most_on_gpu
        for gpu in self.gpus_of[node]:
            ours = self.on[gpu]
            if not ours:
                free += 1
                worst = self.empty
                unowned += 1
                self.quiet.drop(gpu)
                self.full.drop(gpu)
            else:
                worst = NOBODY
                owned = False
                load = 0.0
                for job in ours:
                    load += job.use_pct
                    if job.guards:
                        owned = True
                    elif job.level > worst:
                        worst = job.level
                unowned += not owned
                if len(ours) > 1:
                    self.full.put(gpu, int(load / _LOAD_STEP_PCT))
                else:
                    self.full.drop(gpu)
                if len(ours) < most:
                    roomy += 1
                    self.quiet.put(gpu, int(load / _LOAD_STEP_PCT))
                else:
                    self.quiet.drop(gpu)
            self.worst[gpu] = worst
            at_worst[worst] += worst >= 0
        self.free.put(node, free)
        self.roomy.put(node, roomy + free)
        if node in self.reserved:
            self.unowned.drop(node)
        else:
            self.unowned.put(node, unowned)
        below = at_worst[self.empty]
        for level in range(self.empty - 1, -1, -1):
            self.takeable[level].put(node, below)
            below += at_worst[level]
