# SPDX-License-Identifier: Apache-2.0
"""The cluster's decisions: told what happened, it says who starts, parks and moves.

`handle` is the only door; no clock, no I/O, no random state. After an event only the nodes it
touched are looked at again: who could not sit elsewhere before cannot now.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import TYPE_CHECKING, assert_never

from slipstream.core.classes import JobClass
from slipstream.core.cluster import events
from slipstream.core.cluster.floor import Floor
from slipstream.core.cluster.jobs import GUARANTEED, OVERDUE, Standing
from slipstream.core.cluster.moves import Mover
from slipstream.core.cluster.pairs import PairBook
from slipstream.core.cluster.promises import Promises
from slipstream.core.cluster.quota_line import QuotaLine
from slipstream.core.cluster.reservations import Reservations
from slipstream.core.cluster.rules import ClusterRules, Rule
from slipstream.core.cluster.seating import Seating
from slipstream.core.reasons import Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slipstream.core.cluster.asks import Ask
    from slipstream.core.cluster.commands import ClusterCommand
    from slipstream.core.cluster.events import ClusterEvent
    from slipstream.core.cluster.jobs import Job
    from slipstream.core.cluster.seat import Seat

    _Order = Callable[[str], tuple[float, str]]

_HEADS = 2
"""Of each tenant, how many are tried where the first does not fit."""
_MOST_TRIED = 6
_MOST_TIMERS = 16
_MOST_SENT_ON = 4
"""Of those who left their seats for others, how many look for another one at once."""


class Brain(Floor):
    """Reading its state is free, changing it is not."""

    def __init__(self, rules: ClusterRules | None = None) -> None:
        super().__init__(rules or ClusterRules())
        self.book = PairBook(self.rules.pair_memory_s)
        self.seating = Seating(self.ground, self.book, self.rules)
        self._mover = Mover(self)
        self._promises = Promises(self)
        self._reservations = Reservations(self, self._is_allowed)
        self._quota = QuotaLine(self)
        self._looked_at: set[int] | None = None
        """Nodes that were seen since the last round; None where there are no rounds."""

    def handle(self, event: ClusterEvent) -> list[ClusterCommand]:  # noqa: C901, PLR0912 (a table)
        """Take in what happened and say what to do."""
        self.now_s = event.at_s
        self._commands, self._touched, self._parked = [], set(), []
        self._owners_left = isinstance(event, events.NodeCame | events.NodeSeen)
        match event:
            case events.NodeCame():
                self._touched.add(self.ground.add(event))
                self.tenants.gpus += event.gpus
            case events.NodeSeen():
                self._seen(event)
            case events.RacksRead():
                self.ground.topology = event.topology
            case events.UplinksSeen():
                self.ground.sent_mbps = dict(event.sent)
            case events.RoundBegan():
                self.take_back()
                self._looked_at = set() if self._looked_at is None else self._looked_at
            case events.RoundEnded():
                self._round_ended(event.waiting)
            case events.NodeDrained():
                self._drained(event.node)
            case events.JobCame():
                self._job_came(event)
            case events.RoomWanted():
                self._make_room(event.ask)
            case events.JobLeft():
                self._job_left(event.ref)
            case events.JobProfiled():
                self._profiled(event)
            case events.PairMeasured():
                self._measured(event)
            case events.PairsRemembered():
                self.book.remember(event.pairs)
            case events.CommandRefused():
                self._refused(event.ref)
            case events.TimerFired():
                self._timers()
            case _:
                assert_never(event)
        if given_up := self._reservations.renew():
            self._touched |= given_up
            self._owners_left = True
        if self._looked_at is not None:
            self._looked_at |= self._touched
        elif self._touched:
            self._refill()
            self._send_on()
            self._mover.after(self._touched)
        self._elastic.after()
        self._promises.after()
        return self._commands

    def wakes_at_s(self) -> float | None:
        """When it wants a TimerFired; None for never."""
        while self._due:
            _, number, version = self._due[0]
            job = self._by_number.get(number)
            if job is not None and job.version == version:
                break
            heapq.heappop(self._due)
        due_s = self._due[0][0] if self._due else None
        grow_s = self._elastic.due_s
        return due_s if grow_s is None else grow_s if due_s is None else min(due_s, grow_s)

    # --- what happened --------------------------------------------------------------------------

    def _job_came(self, event: events.JobCame) -> None:
        ask = event.ask
        if ask.ref in self.jobs:
            return
        job = self._enter(ask)
        self._wait(job)
        if ask.nodes:  # it may use other nodes than those before it
            self._try(job)
        else:
            self._try_unless_behind(job)

    def _seen(self, event: events.NodeSeen) -> None:
        was_open = event.node in self.ground.node_at and (
            self.ground.node_at[event.node] not in self.ground.closed
        )
        if event.node not in self.ground.node_at:
            self.ground.add(events.NodeCame(at_s=event.at_s, node=event.node, gpus=len(event.gpus)))
        self.see(event)
        self.tenants.gpus += len(event.gpus) * (event.takes_jobs - was_open)

    def _round_ended(self, waiting: int) -> None:
        """Who sits may move to what nobody who waits could have."""
        looked_at, self._looked_at = self._looked_at or set(), set()
        for node in sorted(self.ground.drained & looked_at):
            self._mover.leave(node)
        if not waiting:
            self._mover.after(looked_at)

    def _make_room(self, ask: Ask) -> None:
        """Have a node emptied for such a job, if its tenant may own so much."""
        job = self.imagined(ask)
        free = ask.job_class is JobClass.SHARED or not self.rules.has(Rule.QUOTAS)
        if free or self.tenants.may_own(job):
            self._mover.room_for(job)

    def _job_left(self, ref: str) -> None:
        job = self.jobs.pop(ref, None)
        if job is None:
            return
        if job.standing is Standing.SEATED:
            self._recount(self._stand(job))
        else:
            self.queues.remove(job)
        del self._by_number[job.number]
        self.overdue.pop(job.number, None)
        kept = self._reservations.over(job)
        self._touched.update(kept)
        self._owners_left |= bool(kept)

    def _profiled(self, event: events.JobProfiled) -> None:
        job = self.jobs.get(event.ref)
        if job is None:
            return
        job.use_pct, job.memory_mib = event.use_pct, event.memory_mib
        self._count(job.gpus)

    def _measured(self, event: events.PairMeasured) -> None:
        """Keep a pair or undo it: the one who comes later leaves."""
        one, other = self.jobs.get(event.ref), self.jobs.get(event.other)
        if one is None or other is None or not self.rules.has(Rule.PAIRS):
            return
        total = event.rate + event.other_rate
        guarded = one.guards or other.guards
        if not guarded:
            self.book.learn(one, other, total, self.now_s)
        least = 1.0 if guarded else self.rules.pair_gain
        together = set(one.gpus) & set(other.gpus)
        if together and total < least:
            last = max((one, other), key=lambda job: (not job.guards, job.level, job.number))
            if not last.guards:  # whatever was measured of it
                self.park(last)

    def _drained(self, name: str) -> None:
        node = self.ground.node_at.get(name)
        if node is None:
            return
        self._reservations.left(node)
        self.ground.close(node)
        self.tenants.gpus -= len(self.ground.gpus_of[node])
        self._mover.leave(node)

    def _refused(self, ref: str) -> None:
        """It is not where we thought: it waits as if it had just come."""
        job = self.jobs.get(ref)
        if job is not None and job.standing is Standing.SEATED:
            self._recount(self._stand(job))
            self._wait(job)

    def _timers(self) -> None:
        """Turns that are over, and jobs that have waited long enough to be lifted.

        Where very many are due it asks to be woken again at once: no answer takes long.
        """
        rung = 0
        while rung < _MOST_TIMERS and self._due and self._due[0][0] <= self.now_s:
            _, number, version = heapq.heappop(self._due)
            job = self._by_number.get(number)
            if job is None or job.version != version:
                continue  # not counted: whether wakes_at_s has dropped it must not matter
            rung += 1
            if job.standing is Standing.SEATED:
                self._demote(job)
            else:
                self._lift(job)
        self._elastic.woken()

    def _demote(self, job: Job) -> None:
        self._accrue(job)
        job.level = max(job.level, 0) + 1
        self._set_timer(job)
        self._recount(job.gpus)

    def _lift(self, job: Job) -> None:
        self.queues.remove(job)
        job.level -= 1
        served = self.rules.levels_gpu_s
        job.served_gpu_s = served[job.level - 1] if job.level > 0 else 0.0
        self._wait(job)
        self._try_unless_behind(job)

    # --- who sits ---------------------------------------------------------------------------------

    def _try(self, job: Job) -> bool:
        """Give a waiting job the best seat there is."""
        reason = self._forbidden(job)
        if reason is None:
            seat = self.seating.anywhere(job, self.now_s)
            if seat is None and self._elastic.shrink():
                seat = self.seating.anywhere(job, self.now_s)
            seat = seat or self._mover.room_for(job)
            if seat is not None:
                self._sit(job, seat)
                return True
            reason = self._reserve(job)
        job.reason = reason
        return False

    def _try_unless_behind(self, job: Job) -> None:
        """Behind a long line of its kind a job gets in line: there was no seat for them."""
        if self.queues.is_behind(job):
            job.reason = self._forbidden(job) or self._unseated(job)
        else:
            self._try(job)

    def _send_on(self) -> None:
        """Who has just left its seat for another may find one elsewhere."""
        for job in self._parked[:_MOST_SENT_ON]:
            if job.standing is Standing.PARKED:
                self._try_unless_behind(job)

    def _forbidden(self, job: Job) -> Reason | None:
        if not job.is_guaranteed or job.ask.job_class is JobClass.SHARED:
            return None
        if self.rules.has(Rule.QUOTAS) and not self._quota.has_room(job):
            return Reason.OVER_QUOTA
        return None

    def _reserve(self, job: Job) -> Reason:
        """A job without a seat has nodes kept for it, if it is one of those that own them."""
        if job.is_guaranteed and self._reservations.keep(job):
            return Reason.RESERVING
        return self._unseated(job)

    def _unseated(self, job: Job) -> Reason:
        return Reason.WAITS_FOR_TURN if job.standing is Standing.PARKED else Reason.NO_FREE_GPU

    def _refill(self) -> None:
        """Seat who waits on the nodes that were touched, the most important first."""
        full: set[int] = set()
        order = _Had(self).__getitem__ if self.rules.has(Rule.FAIRNESS) else None
        # All others leave for guaranteed jobs: only where one of them left, another finds a seat.
        first = GUARANTEED if self._owners_left else OVERDUE
        for level in range(first, self.ground.bottom + 1):
            for size in self.queues.sizes(level):
                if size in full or not self._may_fit(level, size):
                    continue  # in full: where those who come first found nothing
                while self._seat_one(level, size, order):
                    pass
                if level >= 0 and self.queues.waits(level, size):
                    full.add(size)

    def _may_fit(self, level: int, size: int) -> bool:
        """Whether enough GPUs of a touched node could be theirs: mostly one is free, or two."""
        promised = next(iter(self.overdue.values()), None)
        if level == GUARANTEED or (level == OVERDUE and promised and promised.ask.gpus == size):
            return True  # nodes may be kept for it elsewhere
        largest = max(1, self.ground.largest)
        part = size if size <= largest else size % largest or largest
        return any(self.ground.at_most(level, node) >= part for node in self._touched)

    def _seat_one(self, level: int, size: int, order: _Order | None) -> bool:
        """One job of this level and size; whether there was one that could be seated."""
        at_most = self.ground.at_most
        nodes = [node for node in sorted(self._touched) if at_most(level, node) >= size]
        heads = self.queues.heads(level, size, order, _HEADS, self._may_come)
        for job in islice(filter(self._is_allowed, heads), _MOST_TRIED):
            seat = self._seat_for(job, nodes)
            if seat is not None:
                self._sit(job, seat)
                return True
        return False

    def _is_allowed(self, job: Job) -> bool:
        """Whoever may not start is passed over: others may, behind it."""
        if not job.is_guaranteed:
            return True
        forbidden = self._forbidden(job)
        if forbidden is not None:
            job.reason = forbidden
        return forbidden is None

    def _may_come(self, job: Job) -> bool:
        """Whether it could sit on a touched node: some can only go back where they were."""
        if job.ask.restorable or job.standing is not Standing.PARKED:
            return True
        return not self._touched.isdisjoint(self.ground.nodes_of(job.left_gpus))

    def _seat_for(self, job: Job, nodes: Iterable[int]) -> Seat | None:
        """On those that are kept for it, or on one of these, which were touched."""
        kept = self.ground.kept_for(job.number)
        # Kept ones are looked at, touched or not: it may have waited for its quota.
        seat = self.seating.on_nodes(job, kept, self.now_s) if kept else None
        seat = seat or self._touched_seat(job, nodes)
        if seat is None and job.is_guaranteed:
            job.reason = self._reserve(job)
        return seat

    def _touched_seat(self, job: Job, nodes: Iterable[int]) -> Seat | None:
        wide = job.ask.gpus > self.ground.largest
        if wide and not self.seating.part_of(job, self._touched, self.now_s):
            return None
        if wide or job.reason is Reason.OVER_QUOTA:
            return self.seating.anywhere(job, self.now_s)
        for node in nodes:
            seat = self.seating.on_node(job, node, self.now_s)
            if seat is not None:
                return seat
        return None

    def _sit(self, job: Job, seat: Seat) -> None:
        """A waiting or parked job gets its seat."""
        left = [gpu for other in seat.leaving for gpu in self._parked_from(other)]
        self.queues.remove(job)
        self._touched.update(self._reservations.over(job))
        self.settle(job, seat.gpus, left)


class _Had(dict[str, tuple[float, str]]):
    """What each tenant had when this event came, and its name, which settles ties."""

    def __init__(self, brain: Brain) -> None:
        super().__init__()
        self._brain = brain

    def __missing__(self, tenant: str) -> tuple[float, str]:
        had = self[tenant] = (self._brain.tenants.had(tenant, self._brain.now_s), tenant)
        return had
