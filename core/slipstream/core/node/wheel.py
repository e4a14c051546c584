# SPDX-License-Identifier: Apache-2.0
"""The turn wheel: shared jobs that want the same GPU have it in turns, by weight.

Whoever had least for its weight is next, and of those who had the same, whoever waits longest. A
late job's next turn is shorter, and then it has paid: equal jobs keep their order for ever. Time in
which a job could not have trained (before it came, while it loaded) is not owed to it. Where the
memory of two fits, the next one comes back before its turn, and the one before it leaves during it:
nobody waits for copies. A new job's first mini-batches come first. A job of lower priority has no
turn while one of higher priority wants the GPU. Jobs with several GPUs have all or none: while
there are any, all turns of the node end together.

A job that reaches no boundary cannot park. It is held instead: it begins no further device
operation, and its memory stays on the GPU. One that does not use the GPU in its turn is held after
`idle_pass_s`, one that does after `late_turns` turns without a boundary; both only if a job that
waits fits beside its memory. A held job that has not come to a device operation since takes no
turns until it does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.core.node.commands import Hold, Park, Return, Unpark
from slipstream.core.node.events import Standing
from slipstream.core.node.reasons import NodeReason
from slipstream.core.node.turns import Member, Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from slipstream.core.node.commands import NodeCommand
    from slipstream.core.node.events import JobReported, NodeJob
    from slipstream.core.node.rules import NodeRules


def _no_room(_job_id: int, stopped: Collection[int]) -> bool:
    return not stopped


@dataclass(slots=True)
class Wheel:
    """All turns of one node."""

    rules: NodeRules
    has_room: Callable[[int, Collection[int]], bool] = _no_room
    """Whether a job fits on its GPUs beside jobs that are held there with their memory."""
    members: dict[int, Member] = field(default_factory=dict)
    _arrivals: int = 0
    _passed: dict[str, int] = field(default_factory=dict)
    """New jobs in a row that have passed an old one, on each GPU."""
    _round_ends_s: float = 0.0
    _advanced_at_s: float = 0.0

    # --- what happened --------------------------------------------------------------------------

    def add(self, job: NodeJob, at_s: float, why: NodeReason = NodeReason.WAITS_FOR_TURN) -> None:
        """A job that takes turns has a seat; one that is known may have changed its weight."""
        known = self.members.get(job.job_id)
        if known:
            known.job = job
            return
        self._arrivals += 1
        self.members[job.job_id] = Member(
            job=job,
            turn=Turn.WAITING,
            ready=False,
            why_turns=why,
            since=self._arrivals,
        )
        self._owe_nothing(self.members[job.job_id], at_s)

    def order(self, job_id: int, at_s: float, *, away: bool) -> None:
        """An operator takes a job off the wheel, or puts it back: as one that has just come."""
        member = self.members[job_id]
        if not away:
            self._owe_nothing(member, at_s)
        member.ordered_away = away

    def _owe_nothing(self, member: Member, at_s: float) -> None:
        """It has no claim to what others had while it could not have trained."""
        gpus = set(member.job.gpus)
        peers = [
            one for one in self._in_it() if one is not member and not gpus.isdisjoint(one.job.gpus)
        ]
        there = [one for one in peers if one.ready] or peers
        least = min((self._had(one, at_s) for one in there), default=0.0)
        member.served_s = max(member.served_s, least * member.job.weight)

    def remove(self, job_id: int) -> None:
        """It has ended."""
        self.members.pop(job_id, None)

    def heard(self, told: JobReported) -> bool:
        """A job says how far it is; whether that may change who runs."""
        member = self.members[told.job_id]
        done = told.minibatches - member.minibatches
        if done > 0 and member.began_at_s <= member.boundary_at_s < told.boundary_at_s:
            member.minibatch_s = (told.boundary_at_s - member.boundary_at_s) / done
        member.minibatches = told.minibatches
        changed = False
        member.is_starting = told.is_starting
        member.can_hold = told.can_hold
        member.quiet_since_s = told.quiet_since_s
        member.boundary_at_s = told.boundary_at_s
        away = told.standing is Standing.PARKED or told.is_starting
        ready = not told.is_starting and (away or told.standing is not Standing.LOADING)
        if ready and not member.ready:
            self._owe_nothing(member, told.at_s)
            member.ready, changed = True, True
        still = told.standing is Standing.STILL
        held = told.standing is Standing.HELD
        if (away or still or held) and member.turn is Turn.PARKING and not member.has_stopped:
            self._charge(member, told.at_s)
            member.has_stopped = changed = True
            member.late_s = max(0.0, told.at_s - member.asked_at_s)
            member.served_s -= member.late_s
        if (away or held) and member.turn is Turn.PARKING:
            member.turn = Turn.WAITING
            changed = True
        changed |= self._heard_of_hold(member, told)
        if still and member.returns and not member.is_back:
            member.is_back = changed = True
        if member.is_new and member.minibatches >= self.rules.feedback_minibatches:
            member.is_new, changed = False, True
            if member.turn is Turn.RUNNING:
                member.ends_at_s = min(member.ends_at_s, told.at_s)
        return changed

    def _heard_of_hold(self, member: Member, told: JobReported) -> bool:
        """A job that waits is held with its memory, or no longer; whether that may change who runs.

        Also one that an earlier coordinator has held.
        """
        if member.turn is not Turn.WAITING:
            return False
        before = (member.is_held, member.wants_gpu)
        if told.standing is Standing.HELD:
            member.is_held = member.holding = member.told_to_park = True
        elif told.standing is Standing.PARKED:
            member.is_held = False
        wants = not member.is_held or told.wants_gpu
        if wants and not member.wants_gpu:
            self._owe_nothing(member, told.at_s)
        member.wants_gpu = wants
        return before != (member.is_held, member.wants_gpu)

    def call(self, job_id: int, *, runs: bool, returns: bool = False) -> None:
        """The node that leads a gang has decided."""
        if job_id in self.members:
            member = self.members[job_id]
            member.called, member.called_back = runs, returns and not runs

    def passed(self, served_s: Iterable[tuple[int, float]], at_s: float) -> None:
        """So much was had meanwhile, by the account of somebody who did not ask turn by turn."""
        for member in self.members.values():
            member.charged_at_s = at_s
            if member.turn is Turn.RUNNING:
                member.ends_at_s = max(member.ends_at_s, at_s)
        for job_id, seconds in served_s:
            if job_id in self.members:
                self.members[job_id].served_s += seconds

    # --- what to do -----------------------------------------------------------------------------

    def advance(
        self, at_s: float, fits: Callable[[int, int], bool] = lambda _job, _other: False
    ) -> list[NodeCommand]:
        """Whatever is due now: end turns, begin turns; `fits` says whether two jobs do together."""
        commands: list[NodeCommand] = []
        self._advanced_at_s = at_s
        for member in self._in_order():
            member.rests = self._is_resting(member, at_s)
            if member.turn is Turn.RUNNING:
                self._charge(member, at_s)
                if member.rests:
                    member.ends_at_s = min(member.ends_at_s, at_s)
            elif member.turn is Turn.PARKING and not member.has_stopped:
                commands += self._late(member, at_s)
        chosen = self._chosen(at_s)
        others = [one for one in self._in_order() if one.job.job_id not in chosen]
        for member in others:
            commands += self._end(member, at_s)
        for job_id in chosen:
            commands += self._begin(self.members[job_id], at_s)
        for member in others:  # whoever came back for a turn that another has just begun
            commands += self._end(member, at_s)
        return commands + self._called_back(at_s, fits)

    def wakes_at_s(self) -> float | None:
        """When time alone changes something."""
        leaving = (one for one in self.members.values() if one.turn is Turn.PARKING)
        due = [
            one.ends_at_s
            for one in leaving
            if not one.has_stopped and not (one.is_out and one.ends_at_s <= self._advanced_at_s)
        ]
        if self._is_contended():
            due += self._idle_due_s()
            for one in self.members.values():
                if one.turn is Turn.RUNNING:
                    early_s = 0.0 if one.next_is_called else self.rules.return_s
                    due.append(one.ends_at_s - early_s)
        return min(due, default=None)

    def _idle_due_s(self) -> list[float]:
        """When jobs that do not use the GPU have had long enough; not what has been looked at."""
        due = [
            since_s + self._idle_pass_s(one)
            for one in self.members.values()
            if one.turn is not Turn.WAITING and one.may_be_held and not one.holding
            if (since_s := one.idle_from_s()) is not None
        ]
        return [one for one in due if one > self._advanced_at_s]

    def _idle_pass_s(self, member: Member) -> float:
        """How long it may leave the GPU unused: for longer if its mini-batches are long."""
        longer_s = max(self.rules.idle_pass_s, 2 * member.minibatch_s)
        return min(longer_s, max(self.rules.turn_s, self.rules.idle_pass_s))

    def waits_for(self, job_id: int) -> bool:
        """Whether it is waited for until a job says that it has left, or is back."""
        one = self.members.get(job_id)
        return bool(one and (one.turn is Turn.PARKING or (one.returns and not one.is_back)))

    def has_turn(self, gpu: str) -> int | None:
        """Whose turn it is on a GPU; who is on its way out has it until the next one does."""
        there = {job: one.turn for job, one in self.members.items() if gpu in one.job.gpus}
        for turn in (Turn.RUNNING, Turn.PARKING):
            for job_id, its in there.items():
                if its is turn:
                    return job_id
        return None

    def held(self, gpu: str) -> list[int]:
        """The jobs that are held on a GPU with their memory there."""
        return [one.job.job_id for one in self._in_order() if one.is_held and gpu in one.job.gpus]

    def why(self, job_id: int) -> NodeReason:
        """Why a job has no turn, or has one."""
        member = self.members[job_id]
        if member.turn is Turn.WAITING and not member.is_held and not member.is_out:
            late = any(one.no_room for one in self._others_on(member) if one.turn is Turn.RUNNING)
            if late or not self._may_begin_beside(member):
                return NodeReason.WAITS_FOR_ROOM
        return member.reason

    def parts(self, gpu: str) -> dict[int, float]:
        """What part of a GPU's time each job has, if nothing changes."""
        there = [one for one in self.members.values() if gpu in one.job.gpus and not one.is_out]
        top = max((one.job.priority for one in there), default=0)
        whole = sum(one.job.weight for one in there if one.job.priority == top)
        return {
            one.job.job_id: one.job.weight / whole if one.job.priority == top else 0.0
            for one in there
        }

    # --- who --------------------------------------------------------------------------------------

    def _chosen(self, at_s: float, ahead_s: float = 0.0) -> list[int]:
        """Who should have the GPUs now, or that much later: no two on one of them."""
        taken: set[str] = set()
        chosen: list[int] = []
        ranked = sorted(
            (
                one
                for one in self._in_it()
                if (one.job.leads or one.called) and self._may_begin_beside(one)
            ),
            key=lambda one: self._rank(one, at_s, ahead_s),
        )
        for member in ranked:
            if taken.isdisjoint(member.job.gpus):
                taken.update(member.job.gpus)
                chosen.append(member.job.job_id)
        return chosen

    def _rank(self, one: Member, at_s: float, ahead_s: float) -> tuple[object, ...]:
        """Called gangs, not at rest, the ready, priority, the new, within their turn, had least."""
        within = one.turn is Turn.RUNNING and at_s + ahead_s < one.ends_at_s
        new = one.is_new and not self._is_old_ones_turn(one.job.gpus)
        more_s = ahead_s if one.turn is Turn.RUNNING else 0.0
        return (
            one.job.leads,
            one.rests,
            not one.ready and (one.is_starting or one.turn is not Turn.RUNNING),
            -one.job.priority,
            not (within and one.is_kept),
            not new,
            not within,
            one.since if new else round(one.had + more_s / one.job.weight, 3),
            one.began_at_s,
            one.job.job_id,  # the number settles ties
        )

    def _is_old_ones_turn(self, gpus: Iterable[str]) -> bool:
        """Whether so many new jobs have passed an old one there that no more may."""
        return any(self._passed.get(one, 0) >= self.rules.feedback_in_a_row for one in gpus)

    def _is_contended(self) -> bool:
        """Whether anybody waits for a GPU that another has."""
        return any(one.turn is Turn.WAITING and one.ready for one in self._in_it())

    def _in_it(self) -> list[Member]:
        """Those that take turns now: neither an operator nor they themselves are against it."""
        return [
            one
            for one in self.members.values()
            if not one.is_out and not (one.is_held and not one.wants_gpu)
        ]

    def _others_on(self, member: Member) -> list[Member]:
        """The other jobs of its GPUs."""
        gpus = set(member.job.gpus)
        return [
            one
            for one in self._in_order()
            if one is not member and not gpus.isdisjoint(one.job.gpus)
        ]

    def _in_order(self) -> list[Member]:
        return sorted(self.members.values(), key=lambda one: one.job.job_id)

    # --- turns ------------------------------------------------------------------------------------

    def _end(self, member: Member, at_s: float) -> list[NodeCommand]:
        job = member.job
        if member.turn is Turn.RUNNING:
            member.turn = Turn.PARKING
            member.asked_at_s = min(at_s, member.ends_at_s)
            member.ends_at_s = at_s + self.rules.park_wait_s
            member.has_stopped = member.no_room = False
            if member.rests:  # it comes to no boundary by itself
                return [self._hold(member, at_s, NodeReason.HELD_IDLE)]
        elif member.turn is Turn.PARKING or (
            member.told_to_park and not self._was_passed_over(member)
        ):
            return []
        member.told_to_park = True
        member.returns = member.is_back = False
        member.reason = self._why_waiting(member)
        return [Park(job.job_id, member.reason, job.gang)]

    def _begin(self, member: Member, at_s: float) -> list[NodeCommand]:
        job = member.job
        if member.turn is Turn.RUNNING:
            if at_s >= member.ends_at_s:  # nobody else wants it
                member.ends_at_s = self._turn_ends_s(member, at_s)
                member.next_is_called = False
            return []
        if member.turn is Turn.PARKING:
            return []
        if self._is_taken(member):
            return self._end(member, at_s)  # not before they have left
        waited = any(one.ready and not one.is_new for one in self._waiting_for(job.gpus))
        member.is_kept = self._is_old_ones_turn(job.gpus) and not member.is_new
        for gpu in job.gpus:
            self._passed[gpu] = self._passed.get(gpu, 0) + 1 if member.is_new and waited else 0
        member.turn = Turn.RUNNING
        member.began_at_s = member.charged_at_s = at_s
        member.ends_at_s = self._turn_ends_s(member, at_s)
        member.served_s += member.late_s
        member.late_s = 0.0
        member.returns = member.is_back = member.next_is_called = False
        member.holding = member.is_held = member.no_room = False
        member.wants_gpu = True
        member.reason = NodeReason.FIRST_MINIBATCHES if member.is_new else NodeReason.TURN
        if not job.leads:
            member.reason = NodeReason.GANG_CALLED
        if not member.told_to_park:
            return []  # it was never asked to wait
        member.told_to_park = False
        return [Unpark(job.job_id, member.reason, job.gang)]

    def _called_back(self, at_s: float, fits: Callable[[int, int], bool]) -> list[NodeCommand]:
        """Have those come back whose turn is next, beside those that run until then."""
        ending = [
            one
            for one in self.members.values()
            if one.turn is Turn.RUNNING
            and not one.next_is_called
            and at_s >= one.ends_at_s - self.rules.return_s
        ]
        commands = self._follow_back(fits)
        for job_id in self._chosen(at_s, self.rules.return_s) if ending else ():
            member = self.members[job_id]
            before = [one for one in ending if set(one.job.gpus) & set(member.job.gpus)]
            if before and self._may_return(member, before, fits):
                commands.append(self._return(member))
        for one in ending:
            one.next_is_called = True
        return commands

    def _follow_back(self, fits: Callable[[int, int], bool]) -> list[NodeCommand]:
        """Have gangs come back that their leaders have called back, where there is room here."""
        commands: list[NodeCommand] = []
        for member in self._in_order():
            gpus = set(member.job.gpus)
            there = [
                one
                for one in self.members.values()
                if one.turn is not Turn.WAITING and not gpus.isdisjoint(one.job.gpus)
            ]
            called = member.called_back and not member.job.leads and not member.returns
            if called and self._may_return(member, there, fits):
                commands.append(self._return(member))
        return commands

    def _may_return(
        self, member: Member, there: Iterable[Member], fits: Callable[[int, int], bool]
    ) -> bool:
        waits = member.turn is Turn.WAITING and member.told_to_park and member.minibatches > 0
        waits = waits and not member.is_held
        return waits and all(fits(one.job.job_id, member.job.job_id) for one in there)

    def _return(self, member: Member) -> NodeCommand:
        member.returns, member.reason = True, NodeReason.NEXT_TURN
        return Return(member.job.job_id, member.reason, member.job.gang)

    def _was_passed_over(self, member: Member) -> bool:
        """Whether it has come back, and another has the turn: its memory is in the way."""
        if member.is_out:
            return member.returns
        if not member.job.leads:
            return member.returns and not (member.called or member.called_back)
        gpus = set(member.job.gpus)
        running = [
            one
            for one in self.members.values()
            if one.turn is Turn.RUNNING and not gpus.isdisjoint(one.job.gpus)
        ]
        return member.returns and bool(running) and not any(one.next_is_called for one in running)

    # --- without a boundary -----------------------------------------------------------------------

    def _is_resting(self, member: Member, at_s: float) -> bool:
        """Whether it has the turn, does not use the GPU, and another job could have it beside."""
        idle_from_s = member.idle_from_s()
        if member.turn is Turn.WAITING or idle_from_s is None or not member.may_be_held:
            return False
        is_long = at_s - idle_from_s >= self._idle_pass_s(member)
        return is_long and self._another_fits(member)

    def _another_fits(self, member: Member) -> bool:
        """Whether a job that waits fits beside this one's memory, and that of those held before."""
        return any(
            self.has_room(one.job.job_id, self._held_beside(one, member.job.job_id))
            for one in self._waiting_for(member.job.gpus)
            if one.ready and (one.job.leads or one.called)
        )

    def _may_begin_beside(self, member: Member) -> bool:
        """Whether those that are held on its GPUs leave room; a job that is there needs none."""
        if member.turn is not Turn.WAITING or member.is_held:
            return True
        held = self._held_beside(member)
        return not held or self.has_room(member.job.job_id, held)

    def _held_beside(self, member: Member, *also: int) -> list[int]:
        return [
            one.job.job_id
            for one in self._others_on(member)
            if one.is_held or one.job.job_id in also
        ]

    def _late(self, member: Member, at_s: float) -> list[NodeCommand]:
        """It was asked to park and has not: it is held when that is due, or goes on at its cost."""
        if member.holding and at_s < member.ends_at_s:
            return []
        if member.holding:  # it was told to, and went on
            member.hold_failed, member.holding = True, False
        could = member.may_be_held and self._another_fits(member)
        due_s = max(member.boundary_at_s, member.began_at_s)
        due_s += self.rules.late_turns * self.rules.turn_s
        if could and (member.rests or at_s >= due_s):
            reason = NodeReason.HELD_IDLE if member.rests else NodeReason.HELD_BUSY
            return [self._hold(member, at_s, reason)]
        if at_s >= member.ends_at_s and could:
            member.ends_at_s = due_s
        elif at_s >= member.ends_at_s and not member.is_out:
            return [self._give_up(member, at_s, no_room=member.may_be_held)]
        return []

    def _hold(self, member: Member, at_s: float, reason: NodeReason) -> NodeCommand:
        member.told_to_park = member.holding = True
        member.returns = member.is_back = False
        member.ends_at_s = at_s + self.rules.park_wait_s
        member.reason = reason
        return Hold(member.job.job_id, reason, member.job.gang)

    def _give_up(self, member: Member, at_s: float, *, no_room: bool) -> NodeCommand:
        """It did not park in time: nobody can have its GPU, so it may go on, at its own cost."""
        self._charge(member, at_s)
        member.turn = Turn.RUNNING
        member.told_to_park = False
        member.is_kept = True
        member.no_room = no_room
        member.reason = NodeReason.LATE_NO_ROOM if no_room else NodeReason.PARK_LATE
        member.ends_at_s = self._turn_ends_s(member, at_s)
        return Unpark(member.job.job_id, member.reason, member.job.gang)

    def _turn_ends_s(self, member: Member, at_s: float) -> float:
        turn_s = self.rules.turn_s
        if any(len(one.job.gpus) > 1 or one.job.gang for one in self.members.values()):
            if self._round_ends_s - at_s < min(self.rules.least_turn_s, turn_s / 2):
                self._round_ends_s = at_s + turn_s
            return self._round_ends_s
        return at_s + max(turn_s - member.late_s, min(self.rules.least_turn_s, turn_s))

    def _charge(self, member: Member, at_s: float) -> None:
        member.served_s += max(0.0, at_s - member.charged_at_s)
        member.charged_at_s = at_s
        if member.is_new and at_s >= member.ends_at_s and member.turn is Turn.RUNNING:
            member.is_new = False  # a turn's worth of coming first

    def _had(self, member: Member, at_s: float) -> float:
        gone = member.turn is Turn.PARKING and member.has_stopped
        if member.turn is not Turn.WAITING and not gone:
            self._charge(member, at_s)
        return member.had

    def _is_taken(self, member: Member) -> bool:
        """Whether somebody uses its GPUs; who has stopped is not in the way of who is back."""
        wanted = set(member.job.gpus)
        return any(
            one.turn is not Turn.WAITING
            and not wanted.isdisjoint(one.job.gpus)
            and not (one.has_stopped and one.turn is Turn.PARKING and member.is_back)
            for one in self.members.values()
            if one is not member
        )

    def _waiting_for(self, gpus: Iterable[str]) -> list[Member]:
        wanted = set(gpus)
        return [
            one
            for one in self._in_it()
            if one.turn is Turn.WAITING and not wanted.isdisjoint(one.job.gpus)
        ]

    def _why_waiting(self, member: Member) -> NodeReason:
        if member.is_out:
            return NodeReason.OPERATOR
        for gpu in member.job.gpus:
            other = self.has_turn(gpu)
            if other is not None and self.members[other].job.priority > member.job.priority:
                return NodeReason.HIGHER_PRIORITY
        return member.why_turns
