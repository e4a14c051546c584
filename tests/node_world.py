# SPDX-License-Identifier: Apache-2.0
"""A node in virtual time for the tests of the node machine: jobs, and what guests cost an owner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.core.classes import JobClass, Role
from slipstream.core.node.commands import Hold, Park, Return, SetCap, SetShare, Unpark
from slipstream.core.node.events import (
    GpuFound,
    JobArrived,
    JobLeft,
    JobReported,
    NodeJob,
    Standing,
    TimerFired,
)
from slipstream.core.node.machine import NodeMachine

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.core.node.commands import NodeCommand
    from slipstream.core.node.events import NodeEvent
    from slipstream.core.node.rules import NodeRules

GIB = 1024
DEVICE_MIB = 16 * GIB


def owner(job_id: int = 1, *gpus: str, job_class: JobClass = JobClass.GUARANTEED) -> NodeJob:
    """A job that holds the GPU."""
    return NodeJob(job_id=job_id, job_class=job_class, role=Role.OWNER, gpus=gpus or ("a",))


def guest(job_id: int, *gpus: str, memory_mib: int = 0) -> NodeJob:
    """A job that rides along."""
    return NodeJob(
        job_id=job_id,
        job_class=JobClass.OPPORTUNISTIC,
        role=Role.GUEST,
        gpus=gpus or ("a",),
        memory_mib=memory_mib,
    )


def shared(job_id: int, *gpus: str, weight: int = 1, priority: int = 0) -> NodeJob:
    """A job that takes turns."""
    return NodeJob(
        job_id=job_id,
        job_class=JobClass.SHARED,
        role=Role.GUEST,
        gpus=gpus or ("a",),
        weight=weight,
        priority=priority,
    )


def jain(values: list[float]) -> float:
    """How just it is: 1 if all are equal."""
    return sum(values) ** 2 / (len(values) * sum(one * one for one in values))


@dataclass
class Body:
    """A job as it really is."""

    job: NodeJob
    alone_s: float = 0.03
    memory_mib: int = GIB
    spilled_mib: int = 0
    park_s: float = 0.05
    """How long it takes to its last boundary, once asked to park,"""
    copy_s: float = 0.0
    """and then off the GPU, or back onto it."""
    imports_s: float = 0.0
    """Of its loading: before it looks at what it is asked."""
    loading_s: float = 0.0
    share_pct: int = 100
    cap_mib: int = 0
    done: float = 0.0
    boundary_s: float = 0.0
    away_s: float = 0.0
    asked_to_park_s: float | None = None
    parked: bool = False
    asked_to_return_s: float | None = None
    ran_s: float = 0.0
    can_hold: bool = False
    """Whether it can be stopped at its next device operation."""
    rests: bool = False
    """It neither uses its GPUs nor reaches a boundary,"""
    validates: bool = False
    """or uses them and reaches none."""
    heeds_holds: bool = True
    """False: it says that it can be held, and goes on all the same."""
    quiet_since_s: float | None = None
    held: bool = False

    @property
    def uses_gpu(self) -> bool:
        """Whether it computes there now."""
        return not (self.parked or self.held or self.rests)


def no_cost(_share_pct: float) -> float:
    """Guests that an owner never feels."""
    return 0.0


@dataclass
class World:
    """A machine and the jobs it decides about, in ticks of 100 ms."""

    rules: NodeRules | None = None
    cost: Callable[[float], float] = no_cost
    """By how much of itself an owner's mini-batch gets longer when guests have so much."""
    crowded: float = 0.0
    """By how much of itself a guest's mini-batch gets longer for each other guest at work there."""
    now_s: float = 0.0
    tick_s: float = 0.1
    bodies: dict[int, Body] = field(default_factory=dict)
    commands: list[tuple[float, NodeCommand]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.machine = NodeMachine(self.rules)

    def gpus(self, *names: str, memory_mib: int = DEVICE_MIB) -> World:
        """So many GPUs."""
        for name in names:
            self.tell(GpuFound(self.now_s, name, memory_mib))
        return self

    def arrive(self, job: NodeJob, **how: float) -> Body:
        """A job takes its seat."""
        body = self.bodies[job.job_id] = Body(job, boundary_s=self.now_s, **how)  # type: ignore[arg-type]  # numbers of either kind
        body.loading_s += self.now_s
        body.imports_s += self.now_s
        self.tell(JobArrived(self.now_s, job))
        return body

    def leave(self, job_id: int) -> None:
        """It ends."""
        del self.bodies[job_id]
        self.tell(JobLeft(self.now_s, job_id))

    def tell(self, event: NodeEvent) -> list[NodeCommand]:
        """One event, and what follows from it."""
        said = self.machine.handle(event)
        for command in said:
            self.commands.append((self.now_s, command))
            self._obey(command)
        return said

    def run(self, seconds: float) -> World:
        """Let time pass."""
        for _ in range(round(seconds / self.tick_s)):
            self.now_s = round(self.now_s + self.tick_s, 6)
            for body in self.bodies.values():
                self._train(body)
            for body in list(self.bodies.values()):
                self.tell(self._report(body))
            due = self.machine.wakes_at_s()
            if due is not None and due <= self.now_s:
                self.tell(TimerFired(self.now_s))
        return self

    def share(self, job_id: int) -> int:
        """What a job was last told."""
        return self.bodies[job_id].share_pct

    def guests_pct(self, gpu: str) -> float:
        """What all guests of a GPU have together."""
        riders = self.machine.gpus[gpu].riders
        return sum(self.bodies[one].share_pct for one in riders)

    def _obey(self, command: NodeCommand) -> None:
        body = self.bodies[command.job_id]
        match command:
            case SetShare():
                body.share_pct = command.share_pct
            case SetCap():
                body.cap_mib = command.cap_mib
            case Park():
                body.asked_to_park_s, body.asked_to_return_s = self.now_s, None
            case Hold():
                body.asked_to_park_s, body.asked_to_return_s = self.now_s, None
                body.held = body.can_hold and body.heeds_holds
            case Return():
                body.asked_to_return_s = self.now_s
            case Unpark():
                back_s = body.asked_to_return_s
                waits = 0.0 if back_s is not None and self.is_back(body) else body.copy_s
                body.loading_s = max(body.loading_s, self.now_s + waits if body.parked else 0.0)
                body.asked_to_park_s = body.asked_to_return_s = None
                body.parked = body.held = False

    def is_back(self, body: Body) -> bool:
        """Whether it has come back to wait for its turn on the GPU."""
        asked_s = body.asked_to_return_s
        return asked_s is not None and self.now_s - asked_s >= body.copy_s

    def on_gpu(self, gpu: str) -> list[int]:
        """Whose memory is there."""
        return [
            job
            for job, body in self.bodies.items()
            if gpu in body.job.gpus
            and (body.asked_to_return_s is not None or not (body.parked and self._is_emptied(body)))
        ]

    def _is_emptied(self, body: Body) -> bool:
        asked_s = body.asked_to_park_s
        return asked_s is not None and self.now_s - asked_s >= body.park_s + body.copy_s

    def _train(self, body: Body) -> None:
        asked = body.asked_to_park_s
        loads = self.now_s < body.loading_s
        if body.uses_gpu and not loads:
            body.quiet_since_s = None
        elif body.quiet_since_s is None:
            body.quiet_since_s = self.now_s
        if body.rests or body.validates or body.held:
            if body.uses_gpu and not loads:
                body.ran_s += self.tick_s
            return
        if asked is not None and not body.parked and self.now_s - asked >= body.park_s:
            body.parked = True
        if body.parked:
            body.away_s += self.tick_s
            return
        if self.now_s < body.loading_s:
            return
        body.ran_s += self.tick_s
        gpus = [self.machine.gpus[name] for name in body.job.gpus]
        protected = all(gpu.protected == body.job.job_id for gpu in gpus)
        if protected:
            load_pct = max(self.guests_pct(gpu.uuid) for gpu in gpus)
            pace = 1 + self.cost(load_pct)
        else:
            pace = 100 / body.share_pct if body.share_pct else float("inf")
            pace *= 1 + self.crowded * sum(self._works_beside(body, gpu.riders) for gpu in gpus)
        before = int(body.done)
        body.done += self.tick_s / (body.alone_s * pace)
        if int(body.done) > before:
            body.boundary_s = self.now_s - (body.done % 1) * body.alone_s * pace

    def _works_beside(self, body: Body, riders: tuple[int, ...]) -> int:
        others = [one for one in self.bodies.values() if one is not body]
        return sum(
            one.job.job_id in riders
            and one.share_pct > 0
            and not one.parked
            and self.now_s >= one.loading_s
            for one in others
        )

    def _report(self, body: Body) -> JobReported:
        standing = Standing.TRAINING
        if body.parked:
            still = body.asked_to_return_s is not None or not self._is_emptied(body)
            standing = Standing.STILL if still else Standing.PARKED
        if self.now_s < body.loading_s:
            held = body.asked_to_park_s is not None and self.now_s >= body.loading_s
            standing = Standing.PARKED if held else Standing.LOADING
        if body.held:
            standing = Standing.HELD
        return JobReported(
            at_s=self.now_s,
            job_id=body.job.job_id,
            standing=standing,
            minibatches=int(body.done),
            boundary_at_s=body.boundary_s,
            away_s=body.away_s,
            memory_mib=body.memory_mib,
            spilled_mib=body.spilled_mib,
            is_starting=self.now_s < body.imports_s,
            resident_mib=0 if standing is Standing.PARKED else body.memory_mib,
            quiet_since_s=body.quiet_since_s if body.can_hold else None,
            can_hold=body.can_hold,
            wants_gpu=not (body.held and body.rests),
        )
