# SPDX-License-Identifier: Apache-2.0
"""Rivals that let jobs share a GPU, as their papers say: `antman` and `liquid`. Nobody is parked.

Both start jobs once. What AntMan's nodes do for an owner is in the world: see World.guarded.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import JobClass, Role
from slipstream.core.cluster.commands import Start, Upgrade
from slipstream.core.cluster.events import JobCame, JobLeft, JobProfiled, NodeCame
from slipstream.simulator.policies.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from slipstream.core.cluster.asks import Ask
    from slipstream.core.cluster.commands import ClusterCommand
    from slipstream.core.cluster.events import ClusterEvent

_GUEST_BELOW_PCT: Final = 80.0
_GUEST_AFTER_S: Final = 300.0
_ALL_PCT: Final = 100.0
_MOST_TRIED: Final = 100


@dataclass(slots=True, eq=False)
class Job:
    """A job and its seats."""

    ask: Ask
    use_pct: float
    memory_mib: int
    gpus: tuple[int, ...] = ()
    role: Role = Role.OWNER


class Sharing(ABC):
    """One owner and at most one other job on a GPU."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.jobs: dict[str, Job] = {}
        self.on: list[list[Job]] = []
        self.nodes: list[list[int]] = []
        self.memory_mib = 0
        self.now_s = 0.0
        self.refused: set[int] = set()
        """Numbers of GPUs that were not found; until somebody leaves they will not be."""
        self.freed: tuple[int, ...] = ()

    def handle(self, event: ClusterEvent) -> list[ClusterCommand]:
        """Take in what happened and start who can start."""
        self.now_s = event.at_s
        match event:
            case NodeCame():
                self.pool.add(event)
                self.nodes.append(list(range(len(self.on), len(self.on) + event.gpus)))
                self.on += [[] for _ in range(event.gpus)]
                self.memory_mib = event.memory_mib
                return []
            case JobCame():
                ask = event.ask
                job = self.jobs[ask.ref] = Job(ask, ask.use_pct, ask.memory_mib)
                self.came(job)
            case JobLeft():
                job = self.jobs.pop(event.ref)
                self.left(job)
                self.refused.clear()
                self.freed = job.gpus
                for gpu in job.gpus:
                    self.on[gpu].remove(job)
                    if not self.on[gpu]:
                        self.pool.give((gpu,))
            case JobProfiled():
                job = self.jobs[event.ref]
                job.use_pct, job.memory_mib = event.use_pct, event.memory_mib
                return []
        return list(self.starts())

    def wakes_at_s(self) -> float | None:
        """Never, unless a policy says so."""
        return None

    @abstractmethod
    def came(self, job: Job) -> None:
        """A job waits."""

    def left(self, job: Job) -> None:  # noqa: B027 (not every policy wants to know)
        """A job is gone."""

    @abstractmethod
    def starts(self) -> Iterator[ClusterCommand]:
        """Who starts now."""

    def sit(self, job: Job, gpus: tuple[int, ...], role: Role) -> Start:
        """Start a job on these."""
        self.pool.take(gpu for gpu in gpus if not self.on[gpu])
        job.gpus, job.role = gpus, role
        for gpu in gpus:
            self.on[gpu].append(job)
        return Start(job.ask.ref, self.pool.places(gpus), role)

    def beside(self, job: Job, most_pct: float, *, adds: bool) -> tuple[int, ...] | None:
        """The least used GPUs with room for it, on as few nodes as it can be on."""
        per_node = len(self.nodes[0])
        found: list[int] = []
        left = job.ask.gpus
        good = []
        for node in self.nodes:
            fit = sorted(
                (self._use(gpu), gpu) for gpu in node if self._fits(job, gpu, most_pct, adds=adds)
            )
            need = min(left, per_node)
            if len(fit) >= need:
                good.append((sum(use for use, _ in fit[:need]), fit[:need]))
        for _, fit in sorted(good):
            take = min(left, len(fit))
            found += [gpu for _, gpu in fit[:take]]
            left -= take
            if left <= 0:
                return tuple(found)
        return None

    def _use(self, gpu: int) -> float:
        return sum(job.use_pct for job in self.on[gpu])

    def _fits(self, job: Job, gpu: int, most_pct: float, *, adds: bool) -> bool:
        ours = self.on[gpu]
        if not ours:
            return True
        use = self._use(gpu) + (job.use_pct if adds else 0.0)
        memory = ours[0].memory_mib + job.memory_mib
        return len(ours) == 1 and use < most_pct and memory <= self.memory_mib


class Liquid(Sharing):
    """Best fit in order of submission, two to a GPU where predicted use and memory allow it.

    Its estimates are ours. Its pre-scheduling hides loading times, which no trace tells.
    """

    def __init__(self) -> None:
        super().__init__()
        self._queue: deque[Job] = deque()

    def came(self, job: Job) -> None:
        self._queue.append(job)

    def starts(self) -> Iterator[ClusterCommand]:
        started: set[str] = set()
        for job in islice(self._queue, _MOST_TRIED):
            if job.ask.gpus in self.refused:
                continue
            gpus = self.pool.find(job.ask.gpus) or self.beside(job, _ALL_PCT, adds=True)
            if gpus is None:
                self.refused.add(job.ask.gpus)
                continue
            started.add(job.ask.ref)
            yield self.sit(job, gpus, Role.OWNER)
        if started:
            self._queue = deque(job for job in self._queue if job.ask.ref not in started)


class AntMan(Sharing):
    """A queue per tenant: owners within their quota, others as guests on GPUs used below 80 %.

    Jobs that are not guaranteed own GPUs if quota and GPUs are free, and are guests after five
    minutes of waiting; where nobody else sits, a guest has the GPU to itself.
    """

    def __init__(self, shares: Mapping[str, float]) -> None:
        super().__init__()
        self._shares = shares
        self._all = sum(shares.values())
        self._owners: dict[str, deque[Job]] = {}
        self._charged: dict[str, int] = {}
        self._patient: list[tuple[float, int, Job]] = []
        self._guests: deque[Job] = deque()
        self._number = 0

    def wakes_at_s(self) -> float | None:
        """When somebody has waited five minutes."""
        while self._patient and self._patient[0][2].gpus:
            heapq.heappop(self._patient)
        return self._patient[0][0] if self._patient else None

    def came(self, job: Job) -> None:
        self._owners.setdefault(job.ask.tenant, deque()).append(job)
        if job.ask.job_class is not JobClass.GUARANTEED:
            self._number += 1
            heapq.heappush(self._patient, (self.now_s + _GUEST_AFTER_S, self._number, job))

    def left(self, job: Job) -> None:
        if job.role is Role.OWNER:
            self._charged[job.ask.tenant] -= job.ask.gpus

    def starts(self) -> Iterator[ClusterCommand]:
        while self._patient and self._patient[0][0] <= self.now_s:
            self._guests.append(heapq.heappop(self._patient)[2])
        yield from self._upgrades()
        for tenant, queue in sorted(self._owners.items()):
            yield from self._own(tenant, queue)
        yield from self._ride()

    def _own(self, tenant: str, queue: deque[Job]) -> Iterator[ClusterCommand]:
        while queue:
            job = queue[0]
            if not job.gpus:
                gpus = self._unowned(job) if self._may_own(tenant, job.ask.gpus) else None
                if gpus is None:
                    return
                self._charged[tenant] = self._charged.get(tenant, 0) + job.ask.gpus
                yield self.sit(job, gpus, Role.OWNER)
            queue.popleft()

    def _ride(self) -> Iterator[ClusterCommand]:
        waiting: deque[Job] = deque()
        for tried, job in enumerate(self._guests):
            if job.gpus:
                continue
            fits = tried < _MOST_TRIED and job.ask.gpus not in self.refused
            gpus = self.beside(job, _GUEST_BELOW_PCT, adds=False) if fits else None
            if gpus is None:
                self.refused.add(job.ask.gpus)
                waiting.append(job)
            else:
                yield self.sit(job, gpus, Role.GUEST)
        self._guests = waiting

    def _upgrades(self) -> Iterator[ClusterCommand]:
        left = {id(job): job for gpu in self.freed for job in self.on[gpu]}
        self.freed = ()
        for job in left.values():
            if job.role is Role.OWNER:
                continue
            alone = all(
                other is job or other.role is Role.GUEST
                for gpu in job.gpus
                for other in self.on[gpu]
            )
            if alone and self._may_own(job.ask.tenant, job.ask.gpus):
                tenant = job.ask.tenant
                self._charged[tenant] = self._charged.get(tenant, 0) + job.ask.gpus
                job.role = Role.OWNER
                yield Upgrade(job.ask.ref)

    def _unowned(self, job: Job) -> tuple[int, ...] | None:
        """GPUs without an owner; guests may be there."""
        free = self.pool.find(job.ask.gpus)
        if free is not None or job.ask.gpus > len(self.nodes[0]):
            return free
        for node in self.nodes:
            found = [
                gpu
                for gpu in node
                if len(self.on[gpu]) < 2  # noqa: PLR2004 (a pair)
                and all(
                    other.role is Role.GUEST
                    and other.memory_mib + job.memory_mib <= self.memory_mib
                    for other in self.on[gpu]
                )
            ]
            if len(found) >= job.ask.gpus:
                return tuple(found[: job.ask.gpus])
        return None

    def _may_own(self, tenant: str, gpus: int) -> bool:
        charged = self._charged.get(tenant, 0)
        quota = self.pool.total * self._shares.get(tenant, 0.0) / self._all
        return charged == 0 or charged + gpus <= quota
