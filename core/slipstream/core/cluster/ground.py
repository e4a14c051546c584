# SPDX-License-Identifier: Apache-2.0
"""Nodes, their GPUs and who sits on them, with what a search would have to count kept counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from slipstream.core.classes import Role
from slipstream.core.cluster.buckets import Buckets
from slipstream.core.cluster.events import GpuSeen
from slipstream.core.cluster.jobs import GUARANTEED, OVERDUE
from slipstream.core.topology import Topology

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipstream.core.cluster.asks import Place
    from slipstream.core.cluster.events import NodeCame, NodeSeen
    from slipstream.core.cluster.jobs import Job
    from slipstream.core.cluster.rules import ClusterRules

_LOAD_STEP_PCT: Final = 10.0
_UNSEEN: Final = GpuSeen()


class _Counted(NamedTuple):
    """What one GPU adds to its node's counts."""

    free: bool
    roomy: bool
    unowned: bool


_FREE: Final = _Counted(free=True, roomy=True, unowned=True)
_SHUT: Final = _Counted(free=True, roomy=False, unowned=True)
_IN_USE: Final = {
    (roomy, unowned): _Counted(free=False, roomy=roomy, unowned=unowned)
    for roomy in (True, False)
    for unowned in (True, False)
}
NOBODY: Final = GUARANTEED
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
        self.seats: list[int] = []
        """Guests each GPU has seats for, if that is not the rules' to say."""
        self.seen: list[GpuSeen] = []
        """Each GPU as it was measured."""
        self.on: list[list[Job]] = []
        self.largest = 0
        """GPUs of the largest node."""
        self.topology = Topology(())
        self.uplink_mbps = rules.uplink_mbps
        self.sent_mbps: dict[str, float] = {}
        """What jobs that run send over the uplinks of racks."""
        self.closed: set[int] = set()
        """Nodes that take no jobs."""
        self.drained: set[int] = set()
        """Those of them that somebody wants empty, as far as it was seen."""
        self.reserved: dict[int, int] = {}
        """Nodes kept for a guaranteed gang, by the number of that job."""
        self.promised: dict[int, int] = {}
        """Nodes on which no other overdue job sits than this one, by its number."""
        self._kept: dict[int, tuple[int, ...]] = {}
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
        self.takeable = {level: Buckets(8) for level in range(OVERDUE, self.empty)}
        """For each level: nodes by GPUs on which somebody is below that level, or nobody at all."""
        self.worst: list[int] = []
        """On each GPU, the level of the one who leaves first."""
        self._counted: list[_Counted] = []

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
            self.seats.append(0)
            self.seen.append(_UNSEEN)
            self.on.append([])
            self.worst.append(self.empty)
            self._counted.append(_FREE)
        self.count(at)
        return at

    def close(self, node: int) -> None:
        """A node takes no more jobs."""
        self.closed.add(node)
        self.count(node)

    def look(self, node: int, event: NodeSeen) -> None:
        """Take in what was seen of a node but for who is on it; it has to be counted after that."""
        for gpu, seen in zip(self.gpus_of[node], event.gpus, strict=True):
            self.seen[gpu] = seen
            self.seats[gpu] = event.seats
            self.memory_mib[gpu] = event.memory_mib or float("inf")
        if event.takes_jobs:
            self.closed.discard(node)
        else:
            self.closed.add(node)
        if event.drained:
            self.drained.add(node)
        else:
            self.drained.discard(node)

    def has_seat(self, gpu: int) -> bool:
        """Whether one more could be on a GPU, as far as seats go."""
        ours, seats = self.on[gpu], self.seats[gpu]
        if not seats:
            return len(ours) < self._rules.most_on_gpu
        guests = sum(job.role is Role.GUEST for job in ours)
        return guests < seats and self.seen[gpu].takes_guests

    def load_pct(self, gpu: int) -> float:
        """What is used of a GPU: as measured, else as predicted of those who are on it."""
        measured = self.seen[gpu].use_pct
        if measured is not None:
            return measured
        load = 0.0
        for job in self.on[gpu]:
            load += job.use_pct
        return load

    def nodes_of(self, gpus: Iterable[int]) -> set[int]:
        """Where they are."""
        return {self.node_of[gpu] for gpu in gpus}

    def reserve(self, nodes: Iterable[int], number: int) -> None:
        """Keep nodes from other guaranteed jobs."""
        self._kept[number] = tuple(nodes)
        for node in self._kept[number]:
            self.reserved[node] = number
            self.count(node)

    def promise(self, nodes: Iterable[int], number: int) -> None:
        """Keep nodes from other overdue jobs."""
        self._kept[number] = tuple(nodes)
        self.promised.update(dict.fromkeys(self._kept[number], number))

    def kept_for(self, number: int) -> tuple[int, ...]:
        """The nodes reserved for a job or promised to it."""
        return self._kept.get(number, ())

    def release(self, number: int) -> tuple[int, ...]:
        """A reservation or a promise is over; the nodes it was for."""
        nodes = self._kept.pop(number, ())
        for node in nodes:
            if self.promised.get(node) == number:
                del self.promised[node]
            else:
                del self.reserved[node]
                self.count(node)
        return nodes

    def at_most(self, level: int, node: int) -> int:
        """No more GPUs of a node than these can be a job's of this level: all others are full."""
        if level == GUARANTEED:
            unowned = self.unowned.at.get(node)  # nodes that are reserved are not in it
            return len(self.gpus_of[node]) if unowned is None else unowned
        taken = self.takeable[level].at.get(node, 0)
        return self.roomy.at.get(node, 0) + taken - self.free.at.get(node, 0)

    def count(self, node: int, changed: Iterable[int] | None = None) -> None:
        """Count a node anew: somebody came, left, or is another than he was thought to be.

        On which GPUs, if that is known: then only those are counted, and only what differs.
        """
        if node in self.closed:
            self._uncount(node)
        elif changed is None or node not in self.free.at:
            self._count_all(node)
        else:
            for gpu in changed:
                self._count_one(node, gpu)

    def _count_all(self, node: int) -> None:
        free = roomy = unowned = 0
        at_worst = [0] * (self.empty + 3)  # the last two are for OVERDUE and NOBODY
        for gpu in self.gpus_of[node]:
            now = self._counted[gpu] = self._weigh(gpu, self.on[gpu])
            free += now.free
            roomy += now.roomy
            unowned += now.unowned
            at_worst[self.worst[gpu]] += 1
        self.free.put(node, free)
        self.roomy.put(node, roomy)
        if node in self.reserved:
            self.unowned.drop(node)
        else:
            self.unowned.put(node, unowned)
        below = at_worst[self.empty]
        for level in range(self.empty - 1, OVERDUE - 1, -1):
            self.takeable[level].put(node, below)
            below += at_worst[level]

    def _count_one(self, node: int, gpu: int) -> None:
        worst = self.worst[gpu]
        was, now = self._counted[gpu], self._weigh(gpu, self.on[gpu])
        if was is not now:
            self._counted[gpu] = now
            self.free.shift(node, now.free - was.free)
            self.roomy.shift(node, now.roomy - was.roomy)
            self.unowned.shift(node, now.unowned - was.unowned)
        worse = self.worst[gpu]
        for level in range(max(OVERDUE, worst), worse):
            self.takeable[level].shift(node, 1)
        for level in range(max(OVERDUE, worse), worst):
            self.takeable[level].shift(node, -1)

    def _weigh(self, gpu: int, ours: list[Job]) -> _Counted:
        """Keep what is used of one GPU, and the level of whoever leaves it first."""
        if not ours:
            self.quiet.drop(gpu)
            self.full.drop(gpu)
            self.worst[gpu] = self.empty
            return _FREE if not self.seats[gpu] or self.has_seat(gpu) else _SHUT
        tenths = int(self.load_pct(gpu) / _LOAD_STEP_PCT)
        roomy = self.has_seat(gpu)
        if len(ours) == 1:
            self.full.drop(gpu)
            self.quiet.put(gpu, tenths)
        else:
            self.full.put(gpu, tenths)
            if roomy:
                self.quiet.put(gpu, tenths)
            else:
                self.quiet.drop(gpu)
        worst, unowned = NOBODY, True
        for job in ours:
            if job.guards:
                unowned = False
            elif job.level > worst:
                worst = job.level
        self.worst[gpu] = worst
        return _IN_USE[roomy, unowned]

    def _uncount(self, node: int) -> None:
        for buckets in (self.free, self.roomy, self.unowned, *self.takeable.values()):
            buckets.drop(node)
        for gpu in self.gpus_of[node]:
            self.quiet.drop(gpu)
            self.full.drop(gpu)
