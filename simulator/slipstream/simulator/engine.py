# SPDX-License-Identifier: Apache-2.0
"""Virtual time: events go to a policy, its commands to the world; the rest is skipped."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, Protocol

from slipstream.core.cluster.events import (
    JobCame,
    JobLeft,
    JobProfiled,
    PairMeasured,
    TimerFired,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipstream.core.cluster.commands import ClusterCommand
    from slipstream.core.cluster.events import ClusterEvent
    from slipstream.simulator.workload import Workload
    from slipstream.simulator.world import Run, World

PROFILE_S: Final = 60.0
"""How long a job or a pair is watched before its measurement is told."""
_DUST_S: Final = 1e-6


class Policy(Protocol):
    """The only door: the same as of the brain in core."""

    def handle(self, event: ClusterEvent) -> list[ClusterCommand]:
        """Take in what happened and say what to do."""
        ...

    def wakes_at_s(self) -> float | None:
        """When it wants a TimerFired."""
        ...


class Engine:
    """Runs one policy over one workload.

    Args:
        world: empty.
        policy: knows no job and no node yet.
        measures: whether it is told profiles and pairs; rivals that do not listen need not wait.
        tell: called with the part that is done, now and then.
    """

    def __init__(
        self,
        world: World,
        policy: Policy,
        *,
        measures: bool = True,
        tell: Callable[[float], None] | None = None,
    ) -> None:
        self.world = world
        self.events = 0
        self.busy_gpu_s_at_last_submission = 0.0
        self._policy = policy
        self._measures = measures
        self._tell = tell
        self._due: list[tuple[float, int, str, int, str]] = []
        self._number = 0
        self._profiled: set[str] = set()
        self._paired: set[tuple[str, str]] = set()

    def run(self, jobs: Sequence[Workload]) -> None:
        """From the first submission to the last end."""
        for came in self.world.shape.nodes:
            self._take(came)
        at, ended, told = 0, 0, 0
        while at < len(jobs) or ended < len(jobs):
            came_s = jobs[at].ask.submitted_at_s if at < len(jobs) else float("inf")
            due_s = self._due[0][0] if self._due else float("inf")
            wake_s = self._policy.wakes_at_s()
            if wake_s is not None and wake_s < min(came_s, due_s):
                self._pass_to(max(wake_s, self.world.now_s))
                self._take(TimerFired(self.world.now_s))
            elif came_s <= due_s:
                if came_s == float("inf"):
                    waiting = sum(run.ended_at_s is None for run in self.world.runs.values())
                    raise RuntimeError(f"nothing happens any more and {waiting} jobs wait")
                self._pass_to(came_s)
                self.world.add(jobs[at])
                self._take(JobCame(came_s, jobs[at].ask))
                at += 1
                self.busy_gpu_s_at_last_submission = self.world.busy_gpu_s
            else:
                ended += self._next_due()
            if self._tell and ended - told >= len(jobs) // 100:
                told = ended
                self._tell(ended / len(jobs))

    def _next_due(self) -> bool:
        """The next end or measurement; whether a job has ended."""
        at_s, _, ref, version, other = heapq.heappop(self._due)
        run = self.world.runs[ref]
        if other or version < 0:
            self._measured(run, at_s, other)
            return False
        if version != run.version or run.ended_at_s is not None:
            return False
        self._pass_to(at_s)
        touched = self.world.end(run)
        self._reschedule(touched)
        self._take(JobLeft(at_s, ref))
        return True

    def _measured(self, run: Run, at_s: float, other: str) -> None:
        if run.ended_at_s is not None or not run.gpus:
            return
        ref = run.job.ask.ref
        if not other:
            self._pass_to(at_s)
            self._take(JobProfiled(at_s, ref, run.job.use_pct, run.job.memory_mib))
            return
        beside = self.world.runs[other]
        if beside.ended_at_s is None and set(run.gpus) & set(beside.gpus):
            self._pass_to(at_s)
            self._take(PairMeasured(at_s, ref, other, run.rate, beside.rate))

    def _pass_to(self, at_s: float) -> None:
        self.world.pass_to(at_s)

    def _take(self, event: ClusterEvent) -> None:
        self.events += 1
        commands = self._policy.handle(event)
        if commands:
            self._reschedule(self.world.carry_out(commands))

    def _reschedule(self, touched: set[int]) -> None:
        for run in self.world.changed(touched):
            end_s = self.world.ends_at_s(run)
            self._push(end_s + _DUST_S, run.job.ask.ref, run.version, "")
            if self._measures and run.job.ask.ref not in self._profiled:
                self._profiled.add(run.job.ask.ref)
                self._push(self.world.now_s + PROFILE_S, run.job.ask.ref, -1, "")
        if self._measures:
            for one, other in self.world.pairs(touched):
                pair = (one.job.ask.ref, other.job.ask.ref)
                if pair not in self._paired:
                    self._paired.add(pair)
                    self._push(self.world.now_s + PROFILE_S, pair[0], -2, pair[1])

    def _push(self, at_s: float, ref: str, version: int, other: str) -> None:
        self._number += 1
        heapq.heappush(self._due, (at_s, self._number, ref, version, other))
