# SPDX-License-Identifier: Apache-2.0
"""Rivals that stop jobs for better ones: `tiresias` and `srtf-oracle`. One job per GPU.

The best jobs that fit run. Small jobs are moved aside where a large one does not find its nodes.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import Role
from slipstream.core.cluster.commands import Move, Park, Start
from slipstream.core.cluster.events import JobCame, JobLeft, NodeCame
from slipstream.simulator.policies.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from slipstream.core.cluster.asks import Ask
    from slipstream.core.cluster.commands import ClusterCommand
    from slipstream.core.cluster.events import ClusterEvent

DEMOTED_AT_GPU_S: Final = 3_200.0
"""Tiresias: the service after which a job goes to the second queue."""
_DUST_S: Final = 1e-3


@dataclass(slots=True, eq=False)
class Job:
    """What a preemptive policy remembers of a job."""

    ask: Ask
    served_s: float = 0.0
    since_s: float = 0.0
    gpus: tuple[int, ...] = ()
    started: bool = False

    def served_by(self, now_s: float) -> float:
        """Seconds on GPUs so far."""
        return self.served_s + (now_s - self.since_s if self.gpus else 0.0)


class Preemptive(ABC):
    """Chooses anew at each event; what stays chosen stays where it is."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.jobs: dict[str, Job] = {}
        self.running: dict[str, Job] = {}
        self.now_s = 0.0

    def handle(self, event: ClusterEvent) -> list[ClusterCommand]:
        """Take in what happened and run the best."""
        self.now_s = event.at_s
        match event:
            case NodeCame():
                self.pool.add(event)
                return []
            case JobCame():
                job = self.jobs[event.ask.ref] = Job(event.ask)
                self.came(job)
            case JobLeft():
                job = self.jobs.pop(event.ref)
                self._stop(job)
                self.left(job)
            case _:
                self.woken()
        return self._chosen()

    def wakes_at_s(self) -> float | None:
        """Never, unless a policy says so."""
        return None

    @abstractmethod
    def came(self, job: Job) -> None:
        """A job waits."""

    @abstractmethod
    def left(self, job: Job) -> None:
        """A job is gone."""

    @abstractmethod
    def ranked(self) -> Iterator[Job]:
        """All jobs, best first."""

    def woken(self) -> None:  # noqa: B027 (not every policy wants to know)
        """The time asked for has come."""

    def placed(self, job: Job) -> None:  # noqa: B027 (not every policy wants to know)
        """A job has got GPUs."""

    def stopped(self, job: Job) -> None:  # noqa: B027 (not every policy wants to know)
        """A job has lost its GPUs."""

    def _chosen(self) -> list[ClusterCommand]:
        left, best = self.pool.total, []
        for job in self.ranked():
            if job.ask.gpus <= left:
                left -= job.ask.gpus
                best.append(job)
            if left == 0:
                break
        wanted = {job.ask.ref for job in best}
        commands: list[ClusterCommand] = []
        for ref in [ref for ref in self.running if ref not in wanted]:
            job = self.running[ref]
            self._stop(job)
            self.stopped(job)
            commands.append(Park(ref))
        fresh = [job for job in best if not job.gpus]
        for job in sorted(fresh, key=lambda one: (-one.ask.gpus, one.ask.ref)):
            commands += self._place(job)
        return commands

    def _place(self, job: Job) -> list[ClusterCommand]:
        gpus, moved = self.pool.find(job.ask.gpus), []
        if gpus is None:
            moved = list(self._make_room(job.ask.gpus))
            gpus = self.pool.find(job.ask.gpus)
        if gpus is None:
            return moved
        self._sit(job, gpus)
        self.placed(job)
        order = Move if job.started else Start
        job.started = True
        return [*moved, order(job.ask.ref, self.pool.places(gpus), Role.OWNER)]

    def _make_room(self, count: int) -> Iterator[ClusterCommand]:
        """Empty the nodes that are nearly empty, into the holes of others."""
        per_node = self.pool.total // len(self.pool.free)
        needed = min(count, per_node)
        nodes = sorted(range(len(self.pool.free)), key=lambda at: (-len(self.pool.free[at]), at))
        wanted = -(-count // per_node)
        here = [at for at in nodes if len(self.pool.free[at]) < needed][:wanted]
        ready = [at for at in nodes if len(self.pool.free[at]) >= needed][:wanted]
        for at in here[: wanted - len(ready)]:
            yield from self._empty(at, needed, {*here, *ready})

    def _empty(self, node: int, needed: int, shut: set[int]) -> Iterator[ClusterCommand]:
        there = {
            id(job): job for job in self.running.values() if self.pool.node_of(job.gpus[0]) == node
        }
        for job in sorted(there.values(), key=lambda one: (one.ask.gpus, one.ask.ref)):
            if len(self.pool.free[node]) >= needed:
                return
            elsewhere = self.pool.find(job.ask.gpus, shut)
            if elsewhere is None:
                continue
            self._stop(job)
            self._sit(job, elsewhere)
            yield Move(job.ask.ref, self.pool.places(elsewhere), Role.OWNER)

    def _sit(self, job: Job, gpus: tuple[int, ...]) -> None:
        self.pool.take(gpus)
        job.gpus, job.since_s = gpus, self.now_s
        self.running[job.ask.ref] = job

    def _stop(self, job: Job) -> None:
        if job.gpus:
            job.served_s = job.served_by(self.now_s)
            self.pool.give(job.gpus)
            job.gpus = ()
            del self.running[job.ask.ref]


class SrtfOracle(Preemptive):
    """Shortest remaining time first, and it knows the times: no policy could."""

    def __init__(self, run_s: Mapping[str, float]) -> None:
        super().__init__()
        self._run_s = run_s
        self._waiting: list[tuple[float, str]] = []

    def came(self, job: Job) -> None:
        insort(self._waiting, (self._left_s(job), job.ask.ref))

    def left(self, job: Job) -> None:
        pass

    def placed(self, job: Job) -> None:
        del self._waiting[bisect_left(self._waiting, (self._left_s(job), job.ask.ref))]

    def stopped(self, job: Job) -> None:
        insort(self._waiting, (self._left_s(job), job.ask.ref))

    def ranked(self) -> Iterator[Job]:
        running = sorted((self._left_s(job), ref) for ref, job in self.running.items())
        merged: Iterable[tuple[float, str]] = heapq.merge(running, self._waiting)
        return (self.jobs[ref] for _, ref in merged)

    def _left_s(self, job: Job) -> float:
        return self._run_s[job.ask.ref] - job.served_by(self.now_s)


class Tiresias(Preemptive):
    """Two queues by attained service (GPUs times seconds), first come first served in each."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: tuple[list[tuple[float, str]], ...] = ([], [])
        self._level: dict[str, int] = {}
        self._due: list[tuple[float, str]] = []

    def wakes_at_s(self) -> float | None:
        """When the next running job has had its first service."""
        return self._due[0][0] if self._due else None

    def woken(self) -> None:
        while self._due and self._due[0][0] <= self.now_s:
            _, ref = heapq.heappop(self._due)
            job = self.jobs.get(ref)
            if job is None or self._level[ref] == 1:
                continue
            if job.gpus and self._left_s(job) > _DUST_S:
                heapq.heappush(self._due, (self.now_s + self._left_s(job), ref))
            elif job.gpus:
                self._remove(job)
                self._level[ref] = 1
                insort(self._queues[1], _key(job))

    def came(self, job: Job) -> None:
        self._level[job.ask.ref] = 0
        insort(self._queues[0], _key(job))

    def left(self, job: Job) -> None:
        self._remove(job)
        del self._level[job.ask.ref]

    def placed(self, job: Job) -> None:
        if self._level[job.ask.ref] == 0:
            heapq.heappush(self._due, (self.now_s + max(1.0, self._left_s(job)), job.ask.ref))

    def ranked(self) -> Iterator[Job]:
        for queue in self._queues:
            for _, ref in queue:
                yield self.jobs[ref]

    def _remove(self, job: Job) -> None:
        queue = self._queues[self._level[job.ask.ref]]
        del queue[bisect_left(queue, _key(job))]

    def _left_s(self, job: Job) -> float:
        return DEMOTED_AT_GPU_S / job.ask.gpus - job.served_by(self.now_s)


def _key(job: Job) -> tuple[float, str]:
    return (job.ask.submitted_at_s, job.ask.ref)
