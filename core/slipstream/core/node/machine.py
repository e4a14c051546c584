# SPDX-License-Identifier: Apache-2.0
"""One node's decisions: told what happened, it answers with what to do.

The same shape as the cluster's machine: no clock, no I/O, the same events give the same commands.
An event costs what it concerns: the GPUs of one job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from slipstream.core.classes import JobClass
from slipstream.core.node import events, memory
from slipstream.core.node.commands import Park, SetCap, SetShare, Unpark
from slipstream.core.node.gpu import ALL_PCT, GpuState, JobState
from slipstream.core.node.packings import Packings
from slipstream.core.node.reasons import NodeReason
from slipstream.core.node.rules import NodeRules
from slipstream.core.node.turns import Turn
from slipstream.core.node.wheel import Wheel

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from slipstream.core.node.commands import NodeCommand
    from slipstream.core.node.events import JobReported, NodeEvent, NodeJob
    from slipstream.core.node.gpu import Limits
    from slipstream.core.node.pulse import Guarantee, Sample


_LATE: Final = (NodeReason.PARK_LATE, NodeReason.LATE_NO_ROOM)


class NodeMachine:
    """`handle` is the only door; reading is free."""

    def __init__(self, rules: NodeRules | None = None) -> None:
        self.rules = rules or NodeRules()
        self.jobs: dict[int, JobState] = {}
        self.gpus: dict[str, GpuState] = {}
        self.wheel = Wheel(self.rules, self._fits_beside)
        self.packings = Packings(self.jobs, self.gpus, self.wheel)

    def handle(self, event: NodeEvent) -> list[NodeCommand]:  # noqa: C901, PLR0911 (a table)
        """Take in what happened and say what to do."""
        match event:
            case events.JobReported():
                return self._reported(event)
            case events.TimerFired():
                return self._timer(event.at_s)
            case events.JobArrived():
                return self._arrived(event.job, event.at_s)
            case events.JobLeft():
                return self._left(event.job_id, event.at_s)
            case events.GpuFound():
                return self._found(event)
            case events.GpuLost():
                self.gpus.pop(event.gpu, None)
                return []
            case events.TurnCalled():
                self.wheel.call(event.job_id, runs=event.runs, returns=event.returns)
            case events.ParkOrdered():
                return self._ordered(event)
            case events.TurnsPassed():
                self.wheel.passed(event.served_s, event.at_s)
            case events.NodeRulesChanged():
                self.rules = self.wheel.rules = event.rules
                for gpu in self.gpus.values():
                    gpu.steps = gpu.trials = None
                    self.packings.try_again(gpu.uuid)
                return self._turned(event.at_s, self.gpus)
            case _:
                assert_never(event)
        return self._turned(event.at_s)

    # --- for those who look in ------------------------------------------------------------------

    def wakes_at_s(self) -> float | None:
        """When it wants a TimerFired; None for never."""
        due = [gpu.wakes_at_s() for gpu in self.gpus.values()]
        due.append(self.packings.wakes_at_s())
        due.append(self.wheel.wakes_at_s())
        return min((one for one in due if one is not None), default=None)

    def quiet_until_s(self, gpu: str) -> float | None:
        """Until when a GPU's shares and caps stay if its jobs go on as now; turns not counted.

        None: reports are wanted. Infinity: nothing will change by itself.
        """
        quiet = (self.gpus[gpu].quiet_until_s(), self.packings.quiet_until_s(gpu))
        return None if None in quiet else min(one for one in quiet if one is not None)

    def turn_parts(self, gpu: str) -> dict[int, float]:
        """What part of a GPU's time its shared jobs have if nothing changes."""
        return self.wheel.parts(gpu)

    def is_parked(self, job_id: int) -> bool:
        """Whether a job waits for its turn, or for an operator."""
        member = self.wheel.members.get(job_id)
        return member.turn is Turn.WAITING if member else self.is_ordered_away(job_id)

    def is_ordered_away(self, job_id: int) -> bool:
        """Whether an operator has parked a job."""
        return job_id in self.jobs and self.jobs[job_id].ordered_away

    def why(self, job_id: int) -> NodeReason:
        """Why a job has what it has."""
        member = self.wheel.members.get(job_id)
        waits = member is not None and member.turn is not Turn.RUNNING
        if self.jobs[job_id].ordered_away:
            return NodeReason.OPERATOR
        return self.wheel.why(job_id) if waits else self._why_it_runs(job_id)

    def _why_it_runs(self, job_id: int) -> NodeReason:
        member = self.wheel.members.get(job_id)
        late = member is not None and member.reason in _LATE
        return member.reason if member and late else self.jobs[job_id].reason

    def turn_holder(self, job_id: int) -> tuple[int, float] | None:
        """Of a job that waits for its turn: who has it on its GPUs, and since when."""
        member = self.wheel.members.get(job_id)
        if member is None or member.turn is not Turn.WAITING:
            return None
        holders = (self.wheel.has_turn(gpu) for gpu in member.job.gpus)
        first = next((one for one in holders if one is not None), None)
        return None if first is None else (first, self.wheel.members[first].began_at_s)

    def guarantees(self) -> list[Guarantee]:
        """What each protected job lost to its guests, as far as it was measured."""
        found = (
            state.pulse.guarantee(job_id, guaranteed=state.job.job_class is not JobClass.SHARED)
            for job_id, state in sorted(self.jobs.items())
            if state.job.is_owner or state.job.takes_turns
        )
        return [one for one in found if one]

    # --- what happened --------------------------------------------------------------------------

    def _found(self, event: events.GpuFound) -> list[NodeCommand]:
        known = self.gpus.get(event.gpu)
        if known and known.memory_mib == event.memory_mib:
            return []
        on_it = sorted(job for job, one in self.jobs.items() if event.gpu in one.job.gpus)
        self.gpus[event.gpu] = GpuState(event.gpu, event.memory_mib, on_it)
        return self._turned(event.at_s, [event.gpu])

    def _arrived(self, job: NodeJob, at_s: float) -> list[NodeCommand]:
        known = self.jobs.get(job.job_id)
        before = known.job if known else None
        if before == job:
            return []
        touched = {*job.gpus, *(before.gpus if before else ())}
        released: list[NodeCommand] = []
        if known:
            if known.job.takes_turns != job.takes_turns or job.is_owner:
                # It is another kind of job now: what an operator wants of it is asked anew.
                released = self._ordered(events.ParkOrdered(at_s, job.job_id, parked=False))
            known.job = job
        else:
            self.jobs[job.job_id] = JobState(job)
        if job.takes_turns:
            self.wheel.add(job, at_s)
        elif not self.packings.is_apart(job.job_id):  # else they are let go of, where that is over
            self.wheel.remove(job.job_id)
        self._sit(job.job_id, job.gpus, touched)
        return released + self._turned(at_s, touched)

    def _ordered(self, event: events.ParkOrdered) -> list[NodeCommand]:
        """An operator parks a job, or releases it. Who takes no turns and owns is not parked."""
        state = self.jobs.get(event.job_id)
        if state is None or state.ordered_away is event.parked:
            return []
        job = state.job
        if event.parked and (job.is_owner or not job.hooked):
            return []
        state.ordered_away = event.parked
        if job.takes_turns:
            self.wheel.order(job.job_id, event.at_s, away=event.parked)
            return self._turned(event.at_s, job.gpus)
        command = (
            Park(job.job_id, NodeReason.OPERATOR, job.gang)
            if event.parked
            else Unpark(job.job_id, NodeReason.RELEASED, job.gang)
        )
        return [command, *self._turned(event.at_s, job.gpus)]

    def _left(self, job_id: int, at_s: float) -> list[NodeCommand]:
        state = self.jobs.pop(job_id, None)
        if state is None:
            return []
        self.wheel.remove(job_id)
        self._sit(job_id, (), state.job.gpus)
        return self._turned(at_s, state.job.gpus)

    def _sit(self, job_id: int, gpus: Iterable[str], touched: Iterable[str]) -> None:
        for name in touched:
            gpu = self.gpus.get(name)
            if gpu:
                others = [one for one in gpu.jobs if one != job_id]
                gpu.jobs = sorted([*others, job_id]) if name in gpus else others

    def _reported(self, told: JobReported) -> list[NodeCommand]:
        state = self.jobs.get(told.job_id)
        if state is None:
            return []
        was_loading, was_away = state.is_loading, state.is_away
        before, state.told = state.told, told
        sample = state.pulse.heard(told)
        concerned = [self.gpus[name] for name in state.job.gpus if name in self.gpus]
        needs = self._needs(state, told, before, concerned)
        if sample:
            self._sampled(state, sample, concerned, told.at_s)
        turns = told.job_id in self.wheel.members and self.wheel.heard(told)
        if self.packings.tried(state.job.gpus, told.at_s) or turns:
            return self._turned(told.at_s, state.job.gpus)
        if state.is_away != was_away:  # it has left as an operator asked: its place is another's
            return self._turned(told.at_s, state.job.gpus)
        acts = any(gpu.protected == told.job_id for gpu in concerned)
        joins = was_loading != state.is_loading
        return self._limited(concerned, told.at_s) if acts or needs or joins else []

    def _sampled(
        self, state: JobState, sample: Sample, concerned: Sequence[GpuState], at_s: float
    ) -> None:
        """What a job has done says how fast it is: alone, or beside others."""
        job_id = state.job.job_id
        steady = not state.pulse.is_warming_up(self.rules.warmup_minibatches)
        if not any(gpu.riders for gpu in concerned):
            state.pulse.alone(sample)
        elif steady and all(gpu.jobs == [job_id] for gpu in concerned):
            state.pulse.alone(sample)  # a guest, and nobody else is there
        for gpu in concerned:
            if gpu.riders and gpu.protected == job_id:
                gpu.heard(sample, at_s)
            self.packings.heard(gpu.uuid, job_id, sample)

    def _needs(
        self,
        state: JobState,
        told: JobReported,
        before: JobReported | None,
        gpus: Sequence[GpuState],
    ) -> bool:
        """Reflex 3: a job needs more memory than ever before; says whether that is so.

        Memory on its way out may be seen on both sides for a moment: a guest's counts the second
        time. A protected job does not wait for that.
        """
        need = told.memory_mib + told.spilled_mib
        if before and told.spilled_mib and all(gpu.protected != told.job_id for gpu in gpus):
            need = min(need, before.memory_mib + before.spilled_mib)
        grew = need > state.most_mib
        state.most_mib = max(need, state.most_mib)
        for gpu in gpus:
            if gpu.protected == told.job_id:
                gpu.surged = told.spilled_mib > 0
        return grew

    def _timer(self, at_s: float) -> list[NodeCommand]:
        due, tried = self.wheel.wakes_at_s(), self.packings.tried_by_now(at_s)
        if tried or (due is not None and due <= at_s):
            return self._turned(at_s, [*self._due_gpus(at_s), *tried])
        return self._limited([self.gpus[name] for name in self._due_gpus(at_s)], at_s)

    def _due_gpus(self, at_s: float) -> list[str]:
        found = []
        for name, gpu in self.gpus.items():
            due = gpu.wakes_at_s()
            if due is not None and due <= at_s:
                gpu.time_passed(at_s, self.jobs)
                found.append(name)
        return found

    # --- what to do -----------------------------------------------------------------------------

    def _turned(self, at_s: float, touched: Iterable[str] = ()) -> list[NodeCommand]:
        """Turns first: who is on a GPU decides what the others may use of it."""
        names = dict.fromkeys(touched)
        commands = self.packings.seated(at_s, names)
        if self.wheel.members:
            commands += self.wheel.advance(at_s, self._fit)
        for command in commands:
            names.update(dict.fromkeys(self.jobs[command.job_id].job.gpus))
        gpus = [self.gpus[name] for name in sorted(names) if name in self.gpus]
        for gpu in gpus:
            self._seat(gpu, at_s)
        return [*commands, *self._limited(gpus, at_s)]

    def _fit(self, job_id: int, other: int) -> bool:
        """Whether two jobs that take turns may be on their GPUs together, beside their guests."""
        pair = (job_id, other)
        more = 1 + self.rules.headroom_pct / 100
        claims = {one: self.jobs[one].claim().need_mib for one in pair}
        for name in {*self.jobs[job_id].job.gpus} & {*self.jobs[other].job.gpus}:
            gpu = self.gpus.get(name)
            if gpu is None or not all(claims.values()):
                return False
            riders = [one for one in gpu.riders if one not in pair]
            needed = sum(self.jobs[one].claim().need_mib for one in riders)
            needed += self._resident_mib(one for one in self.wheel.held(name) if one not in pair)
            if more * (needed + sum(claims.values())) > memory.usable_mib(
                gpu.memory_mib, self.rules
            ):
                return False
        return True

    def _fits_beside(self, job_id: int, stopped: Collection[int]) -> bool:
        """Whether a job fits on its GPUs beside jobs that stand still with what they have there.

        Of a job whose need is not known nothing is promised: it fits where much is free, and what
        it takes beyond that is kept in host memory by its cap.
        """
        more = 1 + self.rules.headroom_pct / 100
        for name in self.jobs[job_id].job.gpus:
            there = [one for one in stopped if name in self.jobs[one].job.gpus]
            if not there:
                continue
            gpu = self.gpus.get(name)
            if gpu is None or not all(map(self._tells_memory, there)):
                return False
            resident = self._resident_mib(there)
            if not resident:
                continue
            usable = memory.usable_mib(gpu.memory_mib, self.rules)
            # Those that take turns leave before this one runs; an owner and its guests stay.
            owner = set() if gpu.protected is None else {gpu.protected}
            stay = (owner | {*gpu.riders}) - {job_id, *there} - self.wheel.members.keys()
            needed = sum(self.jobs[one].claim().need_mib for one in stay)
            need = self.jobs[job_id].claim().need_mib
            if not need:
                need = round(usable * self.rules.unknown_room_pct / 100 / more)
            if resident + more * (need + needed) > usable:
                return False
        return True

    def _resident_mib(self, jobs: Iterable[int]) -> int:
        """What these have on their GPUs now."""
        told = (self.jobs[one].told for one in jobs)
        return sum(one.resident_mib or 0 for one in told if one)

    def _tells_memory(self, job_id: int) -> bool:
        """Whether it is known what a job has on its GPUs."""
        told = self.jobs[job_id].told
        return told is not None and told.resident_mib is not None

    def _seat(self, gpu: GpuState, at_s: float) -> None:
        there = [self.jobs[job] for job in gpu.jobs]
        turn = self.wheel.has_turn(gpu.uuid)
        owner = next((one for one in there if one.job.is_owner), None)
        protected = owner or (self.jobs[turn] if turn is not None else None)
        riders = [
            one.job.job_id for one in there if one is not protected and self._rides(one, turn)
        ]
        gpu.held_mib = self._resident_mib(self.wheel.held(gpu.uuid))
        gpu.seat(protected, riders, self.rules, at_s)

    def _rides(self, one: JobState, turn: int | None) -> bool:
        """Whether a job that is not protected is on its GPU: `turn` is whose turn it is there."""
        if one.job.job_id in self.wheel.members:
            return one.job.job_id == turn
        return not one.is_away

    def _limited(self, gpus: Iterable[GpuState], at_s: float) -> list[NodeCommand]:
        """Shares and caps that have changed; a job on several GPUs has the least of each."""
        concerned = {job for gpu in gpus for job in gpu.jobs}
        names = sorted({name for job in concerned for name in self.jobs[job].job.gpus})
        found: dict[int, list[Limits]] = {}
        for name in names:
            if name in self.gpus:
                limits = self.gpus[name].limits(self.jobs, self.rules, at_s)
                limits = self.packings.limited(name, limits)
                for job, limit in limits.items():
                    found.setdefault(job, []).append(limit)
        commands: list[NodeCommand] = []
        for job in sorted(concerned & found.keys()):
            commands += self._changed(self.jobs[job], found[job])
        return commands

    def _changed(self, state: JobState, limits: list[Limits]) -> list[NodeCommand]:
        tightest = min(limits, key=lambda one: one.share_pct)
        state.reason = reason = tightest.reason
        share = min(ALL_PCT, int(tightest.share_pct))
        cap = min((one.cap_mib for one in limits if one.cap_mib), default=0)
        commands: list[NodeCommand] = []
        if cap != state.cap_mib:
            shrinks = cap != 0 and (not state.cap_mib or cap < state.cap_mib)
            at_once = shrinks and any(one.at_once for one in limits)
            commands.append(SetCap(state.job.job_id, cap, reason, at_once))
            state.cap_mib = cap
        if share != state.share_pct:
            commands.append(SetShare(state.job.job_id, share, reason))
            state.share_pct = share
        return commands
