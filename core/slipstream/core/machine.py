# SPDX-License-Identifier: Apache-2.0
"""The cluster's decisions: told what happened, it answers with what to do. The only door of core.

No clock and no I/O: the live daemon, the simulator and a replay differ only in who makes the events
and who carries out the commands. The same events give the same commands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from slipstream.core import (
    answers,
    events,
    extending,
    moving,
    parking,
    proposals,
    reporting,
    resizing,
    swapping,
    upgrading,
)
from slipstream.core.advice import Advice, advice_key
from slipstream.core.classes import Role, Strength
from slipstream.core.commands import Admit, Advise, Arrival, Settle, Withdraw
from slipstream.core.mirror import Mirror, rules_of
from slipstream.core.moves import Stage
from slipstream.core.placement import Placement
from slipstream.core.planning import Planner, Verdict
from slipstream.core.reasons import Reason
from slipstream.core.records import PHASE_OF, REASON_OF, JobRecord, Phase, seen_as, unseen_key
from slipstream.core.rules import Rules
from slipstream.core.state import State, restored

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slipstream.core.commands import Command
    from slipstream.core.events import Event
    from slipstream.core.placement import Need
    from slipstream.core.sights import JobSight, NodeSight


class Machine:
    """`handle` is the only door. Reading `state` is free, changing it is not."""

    def __init__(self, rules: Rules | None = None) -> None:
        rules = rules or Rules()
        self.state = State(mode=rules.mode, rules=rules)
        self._left: Mapping[str, NodeSight] = {}
        self._mirror = Mirror(rules_of(self.state))
        self._stale = False
        self._swap_at_s: float | None = None
        self._grow_at_s: float | None = None

    def handle(self, event: Event) -> list[Command]:  # noqa: C901, PLR0911, PLR0912 (a table)
        """Take in what happened and say what to do."""
        state = self.state
        match event:
            case events.JobSubmitted():
                return self._submitted(event)
            case events.ClusterSeen():
                return self._looked(event)
            case events.NodeReported():
                changes, commands = reporting.reported(state, event)
                self._stale = self._stale or changes
                return commands
            case events.TopologyRead():
                state.groups = event.groups
                self._stale = True
                return []
            case events.RulesChanged():
                if event.rules.mode is not state.rules.mode:
                    state.mode = event.rules.mode
                state.rules = event.rules
            case events.ModeChanged():
                state.mode = event.mode
            case events.SwitchedOff():
                state.switched_off = True
            case events.SwitchedOn():
                state.switched_off = False
            case events.SlurmLost():
                state.slurm_away = True
            case events.SlurmFound():
                state.slurm_away = False
                moving.controller_back(state)
            case events.CommandRefused(about="Extend"):
                extending.refused(state, event)
                return []
            case events.CommandRefused(about="Upgrade"):
                upgrading.refused(state, event)
                self._stale = True
                return []
            case events.CommandRefused(about="Resize"):
                return []
            case events.CommandRefused():
                self._refused(event)
                moving.refused(state, event)
                return []
            case events.MoveAsked():
                return self._asked_to_move(event)
            case events.ResizeAsked():
                return self._asked_to_resize(event)
            case events.ParkAsked():
                parking.asked(state, event)
            case events.JobSaved():
                return moving.saved(state, event)
            case events.SchedulerStarted():
                return moving.taken_up(state, event.at_s)
            case events.TimerFired():
                return self._timer(event)
            case events.StateRestored():
                self.state = restored(event)
                self._mirror = Mirror(rules_of(self.state))
            case _:
                assert_never(event)
        return self._planned(event.at_s)

    def wakes_at_s(self) -> float | None:
        """When it wants a TimerFired; 0 for as soon as convenient, None for never."""
        if self._stale:
            return 0.0
        half_s = self.state.rules.lease_s / 2
        due = [advice.until_s - half_s for advice in self.state.advice.values()]
        due += map(moving.due_at_s, self.state.moves.values())
        due += upgrading.due_at_s(self.state) + parking.due_at_s(self.state)
        asked_for = (self._mirror.stale_at_s, self._swap_at_s, self._grow_at_s)
        due += [at_s for at_s in asked_for if at_s is not None]
        due += [
            record.since_s + self._patience_s(record)
            for record in self.state.jobs.values()
            if record.phase in (Phase.SUBMITTED, Phase.LOST)
        ]
        return min(due, default=None)

    def _submitted(self, event: events.JobSubmitted) -> list[Command]:
        """Answer from what the last round of planning left: the submission waits for it."""
        request, state = event.request, self.state
        state.requests[request.token] = request
        record = JobRecord(
            key=unseen_key(request.token),
            token=request.token,
            phase=Phase.SUBMITTED,
            reason=Reason.NOT_SEEN_YET,
            since_s=event.at_s,
        ).explained(
            Reason.NOT_SEEN_YET, event.at_s, f"submitted as {request.job_class} {request.role}"
        )
        state.put(record)
        # Nothing was said of it yet that Slurm could have ignored: none is stuck.
        turn = self._planner(self._left, event.at_s, frozenset()).plan([record])
        (verdict,), self._left = turn.verdicts, turn.left
        message = answers.to_user(request, verdict.found, advising=state.advising)
        admit = Admit(request.token, request.job_class, request.role, message)
        return [admit, *self._advised(verdict, event.at_s)]

    def _looked(self, event: events.ClusterSeen) -> list[Command]:
        state = self.state
        commands: list[Command] = []
        for name in event.nodes_gone:
            state.nodes.pop(name, None)
            state.reports.pop(name, None)
        if event.complete:
            state.nodes.clear()
        state.nodes.update((node.name, node) for node in event.nodes)
        for sight in event.jobs:
            commands += self._seen(sight, event.at_s)
        for key in event.jobs_gone:
            commands += self._gone(key)
        if event.complete:
            shown = {sight.ref for sight in event.jobs}
            for key in [one.key for one in state.jobs.values() if one.sight]:
                commands += self._gone(key) if key not in shown else []
        commands += upgrading.looked(state, event.at_s)
        commands += self._planned(event.at_s)
        return commands + moving.starts(state, event.at_s)

    def _seen(self, sight: JobSight, at_s: float) -> list[Command]:
        """A job is in Slurm's queue, as told by Slurm."""
        phase = PHASE_OF[sight.standing]
        record = self.state.jobs.get(sight.ref)
        self._reread(sight)
        settled: list[Command] = []
        if record is not None and sight.request and sight.request.token != record.token:
            # It was marked after we first saw it, or is another with the number of one that Slurm
            # forgot when it was killed.
            settled += self._gone(sight.ref)
            record = None
        if record is None:
            record, arrived = self._first_seen(sight, phase, at_s)
            settled += arrived
        reason = REASON_OF.get(phase, Reason.LEFT_TO_SLURM if not record.token else record.reason)
        moved = record.moved(phase, at_s, seen_as(sight)) if phase is not record.phase else record
        moved = replace(moved, key=sight.ref, sight=sight, reason=reason)
        self.state.put(moved)
        moving.seen(self.state, moved, at_s)
        return settled

    def _reread(self, sight: JobSight) -> None:
        """What a marker tells that a submission did not, or that has changed since."""
        asked = sight.request
        known = self.state.requests.get(asked.token) if asked else None
        if asked and known:
            self.state.requests[asked.token] = replace(
                known, role=asked.role, may_be_guest=asked.may_be_guest, size=asked.size
            )

    def _first_seen(
        self, sight: JobSight, phase: Phase, at_s: float
    ) -> tuple[JobRecord, list[Command]]:
        """The announced job it is, or one we hear of for the first time."""
        asked = sight.request
        if asked is None:
            plain = JobRecord(
                key=sight.ref, phase=phase, reason=Reason.LEFT_TO_SLURM, since_s=at_s, sight=sight
            )
            return plain, []
        # The marker tells less than the submission did: it counts only if that was never heard.
        self.state.requests.setdefault(asked.token, asked)
        announced = self.state.drop(unseen_key(asked.token))
        if announced is None:
            siblings = any(self.state.with_token(asked.token))
            fresh = JobRecord(
                key=sight.ref,
                token=asked.token,
                phase=phase,
                reason=REASON_OF.get(phase, Reason.NOT_SEEN_YET),
                since_s=at_s,
            ).explained(
                Reason.NOT_SEEN_YET, at_s, f"found in the queue as {asked.job_class} {asked.role}"
            )
            fresh = fresh.explained(fresh.reason, at_s, seen_as(sight))
            return fresh, [] if siblings else [Settle(asked.token, Arrival.SEEN, sight.ref)]
        return announced, [Settle(asked.token, Arrival.SEEN, sight.ref)]

    def _gone(self, key: str) -> list[Command]:
        """Slurm has forgotten a job; with its last task a submission is over."""
        record = self.state.drop(key)
        if record is None or not record.token:
            return []
        if not any(self.state.with_token(record.token)):
            self.state.requests.pop(record.token, None)
        return self._withdrawn(record.advice_key)

    def _timer(self, event: events.TimerFired) -> list[Command]:
        commands: list[Command] = []
        overdue = [
            record
            for record in self.state.jobs.values()
            if record.phase in (Phase.SUBMITTED, Phase.LOST)
            and record.since_s + self._patience_s(record) <= event.at_s
        ]
        for record in overdue:
            if record.phase is Phase.LOST:
                commands += self._gone(record.key)
            elif not self.state.slurm_away:
                lost = record.moved(Phase.LOST, event.at_s, "it never came into Slurm's queue")
                self.state.put(replace(lost, reason=Reason.NEVER_ARRIVED))
                commands.append(Settle(record.token, Arrival.LOST))
                commands += self._withdrawn(record.advice_key)
            else:  # nobody knows while Slurm is away: look again later
                self.state.put(replace(record, since_s=event.at_s))
        moving.overdue(self.state, event.at_s)
        parking.overdue(self.state, event.at_s)
        commands += upgrading.waited_for(self.state, event.at_s)
        commands += upgrading.overdue(self.state, event.at_s)
        return commands + self._planned(event.at_s)

    def where_to(
        self, key: str, nodes: tuple[str, ...], at_s: float, *, forced: bool
    ) -> Placement | Reason:
        """Where a job would move to now, or why it does not move."""
        return self.state.why_idle or moving.target_for(
            self.state, self._probe(at_s), key, nodes, at_s, forced=forced
        )

    def sized_where(self, asked: events.ResizeAsked) -> Placement | Reason:
        """Where an elastic job would go on with so many GPUs, or why it does not."""
        probe = self._probe(asked.at_s)
        return self.state.why_idle or resizing.target_for(self.state, probe, self._left, asked)

    def _probe(self, at_s: float) -> Callable[[Need], Placement | Reason]:
        return lambda need: self._mirror.probe(need, self._left, at_s)

    def _asked_to_resize(self, event: events.ResizeAsked) -> list[Command]:
        found = self.sized_where(event)
        if not isinstance(found, Placement):
            return []
        return moving.begin(self.state, event, found, size=event.gpus)

    def _asked_to_move(self, event: events.MoveAsked) -> list[Command]:
        found = self.where_to(event.key, event.nodes, event.at_s, forced=event.forced)
        if not isinstance(found, Placement):
            return []
        return proposals.begun(self.state, self._mirror, self._left, event, found)

    def _patience_s(self, record: JobRecord) -> float:
        rules = self.state.rules
        return rules.forget_s if record.phase is Phase.LOST else rules.arrival_s

    def _refused(self, event: events.CommandRefused) -> None:
        """Advice that could not be given is no advice: the next round tries again."""
        key = advice_key(event.token, event.task)
        self.state.advice.pop(key, None)
        concerned = [one for one in self.state.with_token(event.token) if one.advice_key == key]
        for record in concerned:
            text = f"advice could not be given: {event.text}"
            self.state.put(record.explained(record.reason, event.at_s, text))

    def _planned(self, at_s: float) -> list[Command]:
        """A round of planning over everything that waits, and what follows from it."""
        state = self.state
        self._stale = False
        waiting = [
            record
            for record in state.jobs.values()
            if record.token and record.phase in (Phase.WAITING, Phase.SUBMITTED)
        ]
        if rules_of(state) != self._mirror.rules:
            self._mirror = Mirror(rules_of(state))
        self._mirror.look(state, at_s)
        upgrades = upgrading.wishes(state, self._mirror, at_s)
        stuck = frozenset(
            key
            for key, advice in state.advice.items()
            if advice.reason is Reason.ADVISED and self._is_half_over(advice, at_s)
        )
        found = self._planner(upgrading.counted(state.nodes, state), at_s, stuck).plan(waiting)
        self._left = found.left
        self._mirror.ended(at_s, found.unseated)
        commands = upgrades
        for verdict in found.verdicts:
            commands += self._advised(verdict, at_s)
        # Who has left by a move keeps its nodes: back where it was at once, Slurm would lose it.
        on, moves = state.advising, state.moves
        said = {one.advice_key for one in found.verdicts if on or one.record.key in moves}
        for key in [key for key in state.advice if key not in said]:
            commands += self._withdrawn(key)
        swaps, self._swap_at_s = swapping.swaps(state, found.verdicts, self._probe(at_s), at_s)
        commands += swaps + proposals.moves(state, self._mirror, self._left, at_s)
        resizes, self._grow_at_s = resizing.wishes(state, self._mirror, found, at_s)
        return commands + resizes

    def _advised(self, verdict: Verdict, at_s: float) -> list[Command]:
        """Say where one job should start or wait, unless that was said and still holds."""
        record, nodes, key = verdict.record, verdict.nodes, verdict.advice_key
        self._explain(record, verdict.found, at_s)
        state = self.state
        if nodes is None or key is None or not state.advising:
            return []
        before = state.advice.get(key)
        placed = nodes is verdict.found
        if before and not self._is_half_over(before, at_s):
            same_kind = (before.reason is Reason.ADVISED) is placed
            if before.nodes == nodes.nodes and same_kind:
                return []
        # A guest must not sit where it would stand still, nor a moved job where it came from.
        bound = state.requests[record.token].role is Role.GUEST or record.key in state.moves
        bound = bound or verdict.found is Reason.OVER_QUOTA
        state.advice[key] = Advice(
            token=record.token,
            task=record.task if placed else None,
            nodes=nodes.nodes,
            tasks_per_node=nodes.tasks_per_node,
            strength=Strength.REQUIRE if bound else Strength.PREFER,
            until_s=at_s + state.rules.lease_s,
            reason=Reason.ADVISED if isinstance(verdict.found, Placement) else verdict.found,
            hosts=nodes.hosts,
        )
        return [Advise(state.advice[key])]

    def _is_half_over(self, advice: Advice, at_s: float) -> bool:
        return advice.until_s - at_s <= self.state.rules.lease_s / 2

    def _explain(self, record: JobRecord, found: Placement | Reason, at_s: float) -> None:
        """Leave the reason with the job. What stops everybody comes before what stops this one."""
        state = self.state
        reason, text = answers.to_waiting(found, advising=state.advising)
        if state.slurm_away:
            reason, text = Reason.SLURM_AWAY, "Slurm's controller does not answer"
        elif state.switched_off:
            reason, text = Reason.SWITCHED_OFF, "Slipstream is switched off"
        elif record.phase is Phase.SUBMITTED:
            reason = Reason.NOT_SEEN_YET
        state.put(record.explained(reason, at_s, text))

    def _withdrawn(self, key: str) -> list[Command]:
        advice = self.state.advice.pop(key, None)
        return [Withdraw(advice.token, advice.task)] if advice else []

    def _planner(
        self, nodes: Mapping[str, NodeSight], at_s: float, stuck: frozenset[str]
    ) -> Planner:
        state = self.state
        bound = {
            key: move.target for key, move in state.moves.items() if move.stage is not Stage.SAVING
        }
        return Planner(state.requests, state.advice, stuck, nodes, self._mirror, at_s, bound)
