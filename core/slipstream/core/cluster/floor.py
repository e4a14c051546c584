# SPDX-License-Identifier: Apache-2.0
"""Seats being taken and left, with the commands and accounts of it. It chooses nothing."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from slipstream.core.classes import JobClass, Role
from slipstream.core.cluster.commands import (
    Downgrade,
    Move,
    Park,
    Resize,
    Start,
    Unpark,
    Upgrade,
)
from slipstream.core.cluster.elastic import Elastic
from slipstream.core.cluster.ground import Ground
from slipstream.core.cluster.jobs import GUARANTEED, OVERDUE, Job, Standing
from slipstream.core.cluster.queues import Queues
from slipstream.core.cluster.rules import ClusterRules, Rule
from slipstream.core.cluster.tenants import Tenants
from slipstream.core.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipstream.core.cluster.asks import Ask
    from slipstream.core.cluster.commands import ClusterCommand
    from slipstream.core.cluster.events import NodeSeen, Sitter


class Floor:
    """All jobs, where they sit, who waits, and what has been commanded since the last event."""

    def __init__(self, rules: ClusterRules) -> None:
        self.rules = rules
        self.jobs: dict[str, Job] = {}
        self.ground = Ground(rules)
        self.queues = Queues()
        self.tenants = Tenants(dict(rules.shares), rules.half_life_s)
        self.now_s = 0.0
        self._elastic = Elastic(self)
        self._due: list[tuple[float, int, int]] = []
        self.overdue: dict[int, Job] = {}
        """Who waits before all others of its kind, the longest first."""
        self._by_number: dict[int, Job] = {}
        self._commands: list[ClusterCommand] = []
        self._touched: set[int] = set()
        self._parked: list[Job] = []
        self._came = 0
        self._owners_left = False
        """Whether, since the last event, guaranteed jobs may have what they could not before."""

    def settle(self, job: Job, gpus: tuple[int, ...], changed: Iterable[int] = ()) -> None:
        """A job without GPUs gets these: the command for it, and all that follows.

        `changed` are GPUs that were left for it and are to be counted with them.
        """
        if job.standing is Standing.PARKED and set(gpus) == set(job.left_gpus):
            gpus = job.left_gpus  # in the order it had them
        stays = [other for gpu in gpus for other in self.ground.on[gpu]]
        owners = {other.number: other for other in stays if other.role is Role.OWNER}
        opportunistic = job.ask.job_class is JobClass.OPPORTUNISTIC
        if job.is_guaranteed:
            for other in owners.values():
                self.tenants.stood(other, self.now_s)
                other.role = Role.GUEST
                self._commands.append(Downgrade(other.ref))
        job.role = Role.GUEST if opportunistic or (owners and not job.is_guaranteed) else Role.OWNER
        job.role = job.ask.role or job.role
        self._commands.append(self._started(job, gpus))
        job.standing, job.reason = Standing.SEATED, Reason.RUNNING
        job.gpus, job.since_s = gpus, self.now_s
        self.overdue.pop(job.number, None)
        job.guards = job.is_guaranteed
        for gpu in gpus:
            self.ground.on[gpu].append(job)
        self.tenants.sat(job, self.now_s)
        self._elastic.sat(job)
        self._set_timer(job)
        self._recount({*gpus, *changed} if changed else gpus)

    def _started(self, job: Job, gpus: tuple[int, ...]) -> ClusterCommand:
        places = tuple(self.ground.places[gpu] for gpu in gpus)
        if job.standing is Standing.WAITING:
            return Start(job.ref, places, job.role)
        if job.standing is Standing.PARKED and gpus == job.left_gpus:
            return Unpark(job.ref, job.role)
        job.moved_at_s = self.now_s
        return Move(job.ref, places, job.role)

    def see(self, event: NodeSeen) -> None:
        """Believe what was seen of a node, of all who are on it."""
        ground = self.ground
        node = ground.node_at[event.node]
        gpus = ground.gpus_of[node]
        sitters = {sitter.ask.ref: sitter for sitter in event.sitters}
        here = {job.ref: job for gpu in gpus for job in ground.on[gpu]}
        for ref, sitter in sitters.items():
            here.setdefault(ref, self.jobs.get(ref) or self._enter(sitter.ask))
        for ref, job in here.items():
            self._take_from(job, gpus)
            if ref in sitters:
                at = tuple(gpus[index] for index in sitters[ref].gpus)
                self._put_on(job, sitters[ref], at)
            elif not job.gpus:
                self._forget(job)
        ground.look(node, event)
        ground.count(node)
        self._touched.add(node)

    def _enter(self, ask: Ask) -> Job:
        """A job nobody knew."""
        self._came += 1
        job = self.imagined(ask, self._came)
        self.jobs[ask.ref] = self._by_number[job.number] = job
        return job

    def imagined(self, ask: Ask, number: int = 0) -> Job:
        """What such a job would be, if it came."""
        job = Job(
            ask=ask,
            number=number,
            is_guaranteed=ask.role is Role.OWNER
            if ask.role
            else ask.job_class is JobClass.GUARANTEED,
            use_pct=ask.use_pct,
            memory_mib=ask.memory_mib,
            since_s=self.now_s,
        )
        if job.is_guaranteed:
            job.level = GUARANTEED
        elif ask.job_class is JobClass.OPPORTUNISTIC:
            job.level = self.ground.bottom
        return job

    def _take_from(self, job: Job, gpus: tuple[int, ...]) -> None:
        """It is on none of these; where else it is, it stays."""
        if not job.gpus:
            return
        self.tenants.stood(job, self.now_s)
        for gpu in gpus:
            if job in self.ground.on[gpu]:
                self.ground.on[gpu].remove(job)
        job.gpus = tuple(gpu for gpu in job.gpus if gpu not in gpus)
        if job.gpus:
            self.tenants.sat(job, self.now_s)

    def _put_on(self, job: Job, sitter: Sitter, gpus: tuple[int, ...]) -> None:
        """It is on these, as it was seen."""
        if job.gpus:
            self.tenants.stood(job, self.now_s)
        job.since_s = sitter.since_s
        job.ask, job.role, job.seen = sitter.ask, sitter.role, True
        job.use_pct, job.memory_mib = sitter.ask.use_pct, sitter.ask.memory_mib
        job.standing, job.reason = Standing.SEATED, Reason.RUNNING
        job.guards = job.is_guaranteed = sitter.role is Role.OWNER
        job.gpus += gpus
        for gpu in gpus:
            self.ground.on[gpu].append(job)
        self.tenants.sat(job, self.now_s)

    def take_back(self) -> None:
        """Forget all who wait, and all who were told to start and were not seen to."""
        for job in [one for one in self.jobs.values() if not one.seen]:
            gpus = job.gpus
            if job.standing is Standing.SEATED:
                self._take_from(job, gpus)
            else:
                self.queues.remove(job)
            self.ground.release(job.number)
            self._forget(job)
            for node in self.ground.nodes_of(gpus):
                self.ground.count(node)

    def _forget(self, job: Job) -> None:
        del self.jobs[job.ref], self._by_number[job.number]
        self.overdue.pop(job.number, None)

    def park(self, job: Job) -> None:
        """End a job's turn."""
        self._recount(self._parked_from(job))

    def _parked_from(self, job: Job) -> tuple[int, ...]:
        """A job leaves its GPUs, which are to be counted, for its next turn."""
        self._commands.append(Park(job.ref))
        job.left_gpus = self._stand(job)
        job.standing, job.reason = Standing.PARKED, Reason.WAITS_FOR_TURN
        self._parked.append(job)
        self._wait(job)
        return job.left_gpus

    def relocate(self, job: Job, gpus: tuple[int, ...]) -> None:
        """Move a seated job to other GPUs."""
        self._recount(self._stand(job))
        job.standing, job.left_gpus = Standing.PARKED, ()
        self.settle(job, gpus)

    def resize(self, job: Job, gpus: tuple[int, ...]) -> None:
        """Let an elastic job go on with other GPUs, some of them its own."""
        before = job.gpus
        self._accrue(job)
        self.tenants.stood(job, self.now_s)
        for gpu in before:
            self.ground.on[gpu].remove(job)
        for gpu in gpus:
            self.ground.on[gpu].append(job)
        job.gpus = gpus
        self.tenants.sat(job, self.now_s)
        self._set_timer(job)
        self._commands.append(Resize(job.ref, tuple(self.ground.places[gpu] for gpu in gpus)))
        self._recount({*before, *gpus})

    def _stand(self, job: Job) -> tuple[int, ...]:
        """A job leaves its GPUs, which are to be counted; whoever stays may be the owner now."""
        self._accrue(job)
        gpus = job.gpus
        self.tenants.stood(job, self.now_s)
        self._elastic.stood(job)
        self._owners_left |= job.guards
        for gpu in gpus:
            self.ground.on[gpu].remove(job)
        job.gpus, job.standing, job.guards = (), Standing.WAITING, False
        job.version += 1
        self._upgrade(gpus)
        return gpus

    def _upgrade(self, gpus: Iterable[int]) -> None:
        if not self.rules.has(Rule.UPGRADES) or not self.rules.takes_seats:
            return  # where Slurm holds the seats it has to be asked first
        for gpu in gpus:
            for job in self.ground.on[gpu]:
                can = job.role is Role.GUEST and job.ask.job_class is not JobClass.OPPORTUNISTIC
                if can and not any(
                    other.role is Role.OWNER for at in job.gpus for other in self.ground.on[at]
                ):
                    job.role = Role.OWNER
                    self.tenants.sat(job, self.now_s)
                    self._commands.append(Upgrade(job.ref))

    def upgradable(self) -> list[Job]:
        """Guests where Slurm holds the seats that could own theirs, in the order they came."""
        if not self.rules.has(Rule.UPGRADES):
            return []
        return [
            job
            for job in self.jobs.values()
            if job.seen
            and job.role is Role.GUEST
            and job.ask.job_class is JobClass.AUTO
            and self.tenants.may_own(job)
            and not any(other.role is Role.OWNER for at in job.gpus for other in self.ground.on[at])
        ]

    def _wait(self, job: Job) -> None:
        job.since_s = self.now_s
        job.version += 1
        self.queues.add(job)
        if job.level == OVERDUE:
            self.overdue[job.number] = job
        if OVERDUE < job.level < self.ground.bottom and self.rules.has(Rule.AGEING):
            patience_s = self.rules.patience_s if job.level else self.rules.overdue_s
            heapq.heappush(self._due, (self.now_s + patience_s, job.number, job.version))

    # --- accounts -----------------------------------------------------------------------------

    def _accrue(self, job: Job) -> None:
        past_s = self.now_s - job.since_s
        job.seated_s += past_s
        job.served_gpu_s += past_s * len(job.gpus) / job.ask.weight
        job.since_s = self.now_s

    def _set_timer(self, job: Job) -> None:
        """When it goes down a level."""
        job.version += 1
        served = self.rules.levels_gpu_s
        if OVERDUE <= job.level < len(served) and self.rules.has(Rule.LEVELS):
            left = max(0.0, served[max(job.level, 0)] - job.served_gpu_s) * job.ask.weight
            due_s = self.now_s + left / len(job.gpus)
            heapq.heappush(self._due, (due_s, job.number, job.version))

    def _recount(self, gpus: Iterable[int]) -> None:
        """Who waits may sit there now."""
        self._touched.update(self._count(gpus))

    def _count(self, gpus: Iterable[int]) -> Iterable[int]:
        """Count the nodes of GPUs on which something has changed; which nodes."""
        changed: dict[int, list[int]] = {}
        for gpu in gpus:
            changed.setdefault(self.ground.node_of[gpu], []).append(gpu)
        for node, theirs in changed.items():
            self.ground.count(node, theirs)
        return changed
