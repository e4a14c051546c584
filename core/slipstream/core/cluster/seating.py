# SPDX-License-Identifier: Apache-2.0
"""Seats for a job: proposals, and the guard that disposes of them. Nothing is changed here.

A seat is a set of GPUs, as few nodes as the job can be on, and who has to leave for it. A job takes
free GPUs first, then seats beside others, then seats of those that come after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from slipstream.core.classes import JobClass
from slipstream.core.cluster.jobs import OVERDUE, Standing
from slipstream.core.cluster.rules import Rule
from slipstream.core.cluster.seat import Seat
from slipstream.core.cluster.settled import Settled

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from slipstream.core.cluster.ground import Ground
    from slipstream.core.cluster.jobs import Job
    from slipstream.core.cluster.pairs import PairBook
    from slipstream.core.cluster.rules import ClusterRules

    Finder = Callable[[Job, "_Part"], Iterator[int]]

_EACH: Final = 3
"""Of equally good nodes or GPUs, how many are looked at: an answer in time beats the last bit."""
_MOST_QUIET: Final = 24
_NEW_WAITS_S: Final = 600.0
"""Without early feedback, a new job asks nobody to leave before that."""


class _Option(NamedTuple):
    """One GPU: how good it is (less is better, the last is its number), and who leaves it."""

    score: tuple[float, ...]
    gpu: int
    leaving: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True)
class _Part:
    """What is looked for on one node: so many GPUs, among the first few nodes of each count."""

    gpus: int
    each: int
    """More than have been taken for other parts of the job."""
    at_s: float


class Seating:
    """Looks for seats on the ground."""

    def __init__(self, ground: Ground, book: PairBook, rules: ClusterRules) -> None:
        self._ground = ground
        self._book = book
        self._rules = rules
        self._settled = Settled(ground, self.picked)
        self._guests, self._packing = rules.has(Rule.GUESTS), rules.has(Rule.PACKING)
        self._pair_gain = rules.pair_gain if rules.has(Rule.PAIRS) else 0.0

    def anywhere(self, job: Job, at_s: float) -> Seat | None:
        """The best seat in the cluster."""
        if job.ask.nodes:
            return self._settled.seat(job, at_s)
        if job.standing is Standing.PARKED and not job.ask.restorable:
            return self._where_it_was(job, at_s)
        finders = (self._free,) if job.is_guaranteed else (self._free, self._beside, self._instead)
        for find in finders:
            seat = self._on_parts(job, at_s, find)
            if seat:
                return seat
        return self._on_parts(job, at_s, self._owned) if job.is_guaranteed else None

    def on_node(self, job: Job, node: int, at_s: float) -> Seat | None:
        """The best seat on one node, for a job that can be on one."""
        ground = self._ground
        if node in ground.closed or job.ask.gpus > len(ground.gpus_of[node]):
            return None
        if job.standing is Standing.PARKED and not job.ask.restorable:
            return self._where_it_was(job, at_s)
        if self._is_kept(node, job):
            return None
        return self.picked(job, node, at_s, job.ask.gpus)

    def on_nodes(self, job: Job, nodes: Sequence[int], at_s: float) -> Seat | None:
        """The seat of a job on the nodes kept for it."""
        if job.standing is Standing.PARKED and not job.ask.restorable:
            return self._where_it_was(job, at_s)
        left = job.ask.gpus
        gpus: list[int] = []
        leaving: list[Job] = []
        for node in nodes:
            count = min(left, len(self._ground.gpus_of[node]))
            seat = self.picked(job, node, at_s, count)
            if seat is None:
                return None
            gpus += seat.gpus
            leaving += seat.leaving
            left -= count
        return Seat(tuple(gpus), _once(leaving)) if left == 0 else None

    def part_of(self, job: Job, nodes: Iterable[int], at_s: float) -> bool:
        """Whether any of these nodes could hold a part of a gang that is wider than a node."""
        largest = self._ground.largest
        count = job.ask.gpus % largest or largest
        open_nodes = [node for node in nodes if node not in self._ground.closed]
        return any(self.picked(job, node, at_s, count) for node in open_nodes)

    def fits(self, job: Job, others: Sequence[Job], gpu: int, at_s: float) -> bool:
        """The guard: whether a job and these others may be on one GPU together."""
        ground = self._ground
        if not others:
            return True
        if len(others) >= self._rules.most_on_gpu and not ground.seats[gpu]:
            return False
        use, memory = job.use_pct, job.memory_mib
        for other in others:
            use += other.use_pct
            memory += other.memory_mib
        if memory > ground.memory_mib[gpu] or use > self._rules.most_use_pct:
            return False
        for other in others:  # noqa: SIM110 (the innermost loop: a generator costs more than it)
            if not self._together(job, other, at_s):
                return False
        return True

    def _together(self, job: Job, other: Job, at_s: float) -> bool:
        if not (job.ask.shares and other.ask.shares):
            return False
        if job.is_guaranteed or other.guards:
            owner, guest = (job, other) if job.is_guaranteed else (other, job)
            if guest.is_guaranteed or not self._guests:
                return False
            return owner.use_pct < self._rules.guest_below_pct
        return self._packing and self._book.expected(job, other, at_s) >= self._pair_gain

    # --- generators: they propose nodes ---------------------------------------------------------

    def _free(self, job: Job, part: _Part) -> Iterator[int]:
        """Best fit: as few free GPUs as possible are left over."""
        del job
        yield from self._ground.free.upwards(part.gpus, part.each)

    def _beside(self, job: Job, part: _Part) -> Iterator[int]:
        """Where the least used GPUs are beside which it fits, or nodes with enough room."""
        ground = self._ground
        if part.gpus > 1:
            yield from ground.roomy.upwards(part.gpus, part.each)
            return
        seen: set[int] = set()
        tenths = int((self._rules.most_use_pct - job.use_pct) / 10.0)
        for gpu in islice(ground.quiet.upwards(0, _EACH), _MOST_QUIET):
            if (ground.quiet.number(gpu) or 0) > tenths:
                return
            node = ground.node_of[gpu]
            if node not in seen and self.fits(job, ground.on[gpu], gpu, part.at_s):
                seen.add(node)
                yield node

    def _instead(self, job: Job, part: _Part) -> Iterator[int]:
        """Where those sit that come last."""
        for level in range(self._ground.empty - 1, job.level - 1, -1):
            yield from self._ground.takeable[level].upwards(part.gpus, part.each)

    def _owned(self, job: Job, part: _Part) -> Iterator[int]:
        """Where no guaranteed job owns the GPUs."""
        del job
        yield from self._ground.unowned.upwards(part.gpus, 2 * part.each)

    def _on_parts(self, job: Job, at_s: float, find: Finder) -> Seat | None:
        """As few nodes as it can be on: whole ones, and one for the rest."""
        largest = max(1, self._ground.largest)
        whole, rest = divmod(job.ask.gpus, largest)
        gpus: list[int] = []
        leaving: list[Job] = []
        shut: set[int] = set()
        for count in [largest] * whole + [rest] * (rest > 0):
            part = _Part(count, _EACH + len(shut), at_s)
            seat = self._best(job, count, find(job, part), shut, at_s)
            if seat is None:
                return None
            gpus += seat.gpus
            leaving += seat.leaving
            shut |= self._ground.nodes_of(seat.gpus)
        return Seat(tuple(gpus), _once(leaving))

    def _best(
        self, job: Job, count: int, nodes: Iterable[int], shut: Collection[int], at_s: float
    ) -> Seat | None:
        """The first node that does, or of a newcomer's guest seats the best pair."""
        for node in nodes:
            if node in shut or self._is_kept(node, job):
                continue
            seat = self.picked(job, node, at_s, count)
            if seat:
                return seat
        return None

    def _is_kept(self, node: int, job: Job) -> bool:
        """Whether a node is kept for another one, whom this one would not leave for."""
        if job.is_guaranteed:
            return self._ground.reserved.get(node, job.number) != job.number
        return job.level == OVERDUE and self._ground.promised.get(node, job.number) != job.number

    # --- the guard on one node ------------------------------------------------------------------

    def picked(self, job: Job, node: int, at_s: float, count: int) -> Seat | None:
        """The best of its GPUs, so many of them."""
        ground = self._ground
        if ground.at_most(job.level, node) < count:
            return None
        gpus, rules = ground.gpus_of[node], self._rules
        if rules.takes_seats and ground.free.at.get(node, 0) >= count:
            return Seat(tuple(islice((gpu for gpu in gpus if not ground.on[gpu]), count)))
        find = self._taken if rules.takes_seats else self._untaken
        options: list[_Option] = []
        to_spare = len(gpus) - count
        for gpu in gpus:
            option = find(job, gpu, at_s)
            if option:
                options.append(option)
            elif to_spare:
                to_spare -= 1
            else:
                return None  # what is left is too little
        return _first_of(options, count)

    def _taken(self, job: Job, gpu: int, at_s: float) -> _Option | None:
        """Who would leave this GPU for the job; None if somebody must stay who cannot."""
        ours = self._ground.on[gpu]
        if not ours:
            return _Option((0.0, 0.0, gpu), gpu)
        if len(ours) >= self._rules.most_on_gpu and self._ground.worst[gpu] <= job.level:
            return None  # nobody there can be asked to leave
        staying: tuple[Job, ...] = ()
        leaving: tuple[Job, ...] = ()
        for other in sorted(ours, key=_importance) if len(ours) > 1 else ours:
            if self.fits(job, (*staying, other), gpu, at_s):
                staying += (other,)
            elif other.guards or not self._yields(other, job, at_s):
                return None
            else:
                leaving += (other,)
        pair = self._book.expected(job, staying[0], at_s) if staying else 0.0
        return _Option((1.0 + len(leaving), -pair, gpu), gpu, leaving)

    def _untaken(self, job: Job, gpu: int, at_s: float) -> _Option | None:
        """Nobody leaves: an owner gets a GPU without one, a guest a seat on a quiet GPU."""
        ground, ours = self._ground, self._ground.on[gpu]
        owned = any(other.guards for other in ours)
        if job.is_guaranteed:
            return None if owned else _Option((float(len(ours)), gpu), gpu)
        if not ground.has_seat(gpu):
            return None
        if job.ask.job_class is JobClass.SHARED and not owned:  # they take turns
            return _Option((float(len(ours)), ground.load_pct(gpu), gpu), gpu)
        if not self._is_quiet(gpu, job.memory_mib) or not self.fits(job, ours, gpu, at_s):
            return None
        return _Option((float(bool(ours)), ground.load_pct(gpu), gpu), gpu)

    def _is_quiet(self, gpu: int, memory_mib: int) -> bool:
        """Whether a GPU was measured to have room for a guest, or not at all."""
        seen = self._ground.seen[gpu]
        fits = seen.memory_used_mib + memory_mib <= self._ground.memory_mib[gpu]
        return fits and (seen.use_pct or 0.0) < self._rules.guest_below_pct

    def _yields(self, other: Job, job: Job, at_s: float) -> bool:
        """Whether one leaves for another: peers for those who had less, all for guaranteed ones."""
        if job.is_guaranteed:
            return True
        is_new = job.standing is Standing.WAITING and at_s - job.since_s < _NEW_WAITS_S
        if is_new and not self._rules.has(Rule.EARLY_FEEDBACK):
            return False
        return other.level > job.level

    def _where_it_was(self, job: Job, at_s: float) -> Seat | None:
        found = self._taken if self._rules.takes_seats else self._untaken
        leaving: list[Job] = []
        for gpu in job.left_gpus:
            option = found(job, gpu, at_s)
            if option is None or self._ground.node_of[gpu] in self._ground.closed:
                return None
            leaving += option.leaving
        return Seat(job.left_gpus, _once(leaving))


def _first_of(options: list[_Option], count: int) -> Seat:
    """The best of them, so many."""
    if count == 1:
        best = min(options)
        return Seat((best.gpu,), best.leaving)
    chosen = sorted(options)[:count]
    leaving = _once(who for one in chosen for who in one.leaving)
    return Seat(tuple(one.gpu for one in chosen), leaving)


def _importance(job: Job) -> tuple[bool, int, int]:
    return (not job.guards, job.level, job.number)


def _once(jobs: Iterable[Job]) -> tuple[Job, ...]:
    return tuple({job.number: job for job in jobs}.values())
