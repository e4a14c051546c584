# SPDX-License-Identifier: Apache-2.0
"""Rivals that start a job once and let it run: `fifo`, `backfill` and `fair-sharing`."""

from __future__ import annotations

from bisect import insort
from collections import deque
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import Role
from slipstream.core.cluster.commands import Start
from slipstream.core.cluster.events import JobCame, JobLeft, NodeCame
from slipstream.simulator.policies.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.core.cluster.asks import Ask
    from slipstream.core.cluster.commands import ClusterCommand
    from slipstream.core.cluster.events import ClusterEvent

_BACKFILL_EVERY_S: Final = 30.0
"""Slurm's bf_interval."""
_MOST_TESTED: Final = 500
"""Slurm's bf_max_job_test."""


class Fifo:
    """Strictly in order of submission: who does not fit holds up all behind."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.held: dict[str, tuple[int, ...]] = {}
        self.now_s = 0.0
        self.queue: deque[Ask] = deque()

    def handle(self, event: ClusterEvent) -> list[ClusterCommand]:
        """Take in what happened and start who can start."""
        self.now_s = event.at_s
        match event:
            case NodeCame():
                self.pool.add(event)
            case JobCame():
                self.came(event.ask)
            case JobLeft():
                self.left(event.ref)
        return self.starts()

    def wakes_at_s(self) -> float | None:
        """Never."""
        return None

    def came(self, ask: Ask) -> None:
        """A job waits."""
        self.queue.append(ask)

    def left(self, ref: str) -> None:
        """A job is gone."""
        self.pool.give(self.held.pop(ref))

    def starts(self) -> list[ClusterCommand]:
        """The first of the queue, while they fit."""
        found: list[ClusterCommand] = []
        while self.queue and (gpus := self.pool.find(self.queue[0].gpus)):
            found.append(self.start(self.queue.popleft(), gpus))
        return found

    def start(self, ask: Ask, gpus: tuple[int, ...]) -> Start:
        """Give these GPUs to a job."""
        self.pool.take(gpus)
        self.held[ask.ref] = gpus
        return Start(ask.ref, self.pool.places(gpus), Role.OWNER)


class Backfill(Fifo):
    """Stock Slurm: in order, and every 30 s whoever fits without delaying the first that waits.

    Jobs end when their time limit says, for all it knows. The first in the queue is promised the
    nodes that are free for it first; others start beside them, or on them if they end in time.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ends: dict[int, list[tuple[float, int]]] = {}
        self._limit_s: dict[str, float] = {}
        self._next_s = 0.0
        self._changed = False

    def wakes_at_s(self) -> float | None:
        return self._next_s if self._changed and self.queue else None

    def came(self, ask: Ask) -> None:
        super().came(ask)
        self._changed = True

    def left(self, ref: str) -> None:
        for gpu in self.held[ref]:
            ends = self._ends[self.pool.node_of(gpu)]
            ends.remove((self._limit_s[ref], gpu))
        del self._limit_s[ref]
        super().left(ref)
        self._changed = True

    def start(self, ask: Ask, gpus: tuple[int, ...]) -> Start:
        end_s = self.now_s + (ask.limit_s or float("inf"))
        self._limit_s[ask.ref] = end_s
        for gpu in gpus:
            insort(self._ends.setdefault(self.pool.node_of(gpu), []), (end_s, gpu))
        return super().start(ask, gpus)

    def starts(self) -> list[ClusterCommand]:
        """In order first; behind the first that does not fit only now and then."""
        found = super().starts()
        if not self.queue or not self._changed or self.now_s < self._next_s:
            return found
        self._next_s, self._changed = self.now_s + _BACKFILL_EVERY_S, False
        nodes, promised_s = self._promise(self.queue[0].gpus)
        started: set[str] = set()
        refused: set[tuple[int, bool]] = set()
        for ask in list(self.queue)[1:_MOST_TESTED]:
            in_time = self.now_s + (ask.limit_s or float("inf")) <= promised_s
            if (ask.gpus, in_time) in refused:
                continue
            gpus = self.pool.find(ask.gpus, () if in_time else nodes)
            if gpus is None:
                refused.add((ask.gpus, in_time))
                continue
            found.append(self.start(ask, gpus))
            started.add(ask.ref)
        if started:
            self.queue = deque(ask for ask in self.queue if ask.ref not in started)
        return found

    def _promise(self, count: int) -> tuple[frozenset[int], float]:
        """The nodes that are free for so many GPUs first, and when."""
        per_node = max(
            len(free) + len(self._ends.get(at, ())) for at, free in enumerate(self.pool.free)
        )
        each = min(count, per_node)
        when = sorted((self._free_at_s(at, each), at) for at in range(len(self.pool.free)))[
            : -(-count // per_node)
        ]
        return frozenset(at for _, at in when), when[-1][0]

    def _free_at_s(self, node: int, count: int) -> float:
        missing = count - len(self.pool.free[node])
        ends = self._ends.get(node, [])
        if missing <= 0:
            return self.now_s
        return ends[missing - 1][0] if missing <= len(ends) else float("inf")


class FairSharing(Fifo):
    """The tenant that holds least of its share comes next; one that does not fit is passed over."""

    def __init__(self, shares: Mapping[str, float]) -> None:
        super().__init__()
        self._shares = shares
        self._least = min(shares.values(), default=1.0)
        self._queues: dict[str, deque[Ask]] = {}
        self._holds: dict[str, int] = {}
        self._asks: dict[str, Ask] = {}

    def came(self, ask: Ask) -> None:
        self._asks[ask.ref] = ask
        self._queues.setdefault(ask.tenant, deque()).append(ask)

    def left(self, ref: str) -> None:
        ask = self._asks.pop(ref)
        self._holds[ask.tenant] -= ask.gpus
        super().left(ref)

    def starts(self) -> list[ClusterCommand]:
        found: list[ClusterCommand] = []
        passed: set[str] = set()
        while waiting := [
            name for name, jobs in self._queues.items() if jobs and name not in passed
        ]:
            name = min(waiting, key=lambda one: (self._holding(one), one))
            gpus = self.pool.find(self._queues[name][0].gpus)
            if gpus is None:
                passed.add(name)
                continue
            ask = self._queues[name].popleft()
            self._holds[name] = self._holds.get(name, 0) + ask.gpus
            found.append(self.start(ask, gpus))
        return found

    def _holding(self, tenant: str) -> float:
        return self._holds.get(tenant, 0) / self._shares.get(tenant, self._least)
