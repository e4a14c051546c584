# SPDX-License-Identifier: Apache-2.0
"""One round of planning: every waiting job gets nodes or a reason, best priority first. Pure.

What one job is given is not given to the next: a round ends with what is left for a job that is
submitted before the next round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from slipstream.core.advice import advice_key
from slipstream.core.classes import Role
from slipstream.core.placement import Need, Placement, keeps, need_of, taken
from slipstream.core.reasons import Reason, from_slurm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slipstream.core.advice import Advice
    from slipstream.core.mirror import Mirror
    from slipstream.core.records import JobRecord
    from slipstream.core.sights import NodeSight, Request

MOST_PLANNED: Final = 256
"""Jobs a round looks at: Slurm will not start more at once, and the machine must stay quick."""
MOST_SENT_ELSEWHERE: Final = 16
"""Guests that are given other nodes in one round: each costs a look at the whole cluster."""
MOST_ROOMS: Final = 16
"""Kinds of guests of which a round says where they could sit if there were CPUs."""
_FEWEST_TOGETHER: Final = 2
_KEPT_WAITING: Final = frozenset(
    {
        Reason.NO_FREE_SLOT,
        Reason.NO_GUEST_SEAT,
        Reason.NO_FREE_CPU_OR_MEMORY,
        Reason.BEHIND_OTHERS,
        Reason.OVER_QUOTA,
    }
)
"""What passes: a guest waits for it, for Slurm alone would seat it where it has to stand still.
An owner waits for its account's quota alone."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round found for one job, and where it is to wait if that was nothing."""

    record: JobRecord
    found: Placement | Reason
    waits: Placement | None = None

    @property
    def nodes(self) -> Placement | None:
        """What it is advised; None: nothing."""
        return self.found if isinstance(self.found, Placement) else self.waits

    @property
    def advice_key(self) -> str | None:
        """What its advice is known by: what all waiting tasks of an array are told is told once."""
        if isinstance(self.found, Placement):
            return self.record.advice_key
        return advice_key(self.record.token, None) if self.waits else None


@dataclass(frozen=True, slots=True)
class Round:
    """All verdicts, and the nodes as they will be if every placed job starts."""

    verdicts: tuple[Verdict, ...]
    left: Mapping[str, NodeSight]

    @property
    def unseated(self) -> int:
        """Jobs that wait for somebody to leave."""
        waits = _KEPT_WAITING | {Reason.NO_FREE_GPU}
        return sum(verdict.found in waits for verdict in self.verdicts)


class Refusals:
    """What was refused in a round: who wants as much or more of the same is refused, too."""

    def __init__(self) -> None:
        self._least: dict[Need, list[tuple[int, float, Reason]]] = {}

    def add(self, need: Need, why: Reason) -> None:
        """Refused, and by anything but the lack of a quiet seat whatever it takes of a GPU."""
        seat = why is Reason.NO_GUEST_SEAT
        least = (need.gpu_memory_mib, need.gpu_use_pct, why) if seat else (0, 0.0, why)
        self._least.setdefault(_apart_from_gpus(need), []).append(least)

    def of(self, need: Need) -> Reason | None:
        """Why this need is refused, if that is known."""
        if not self._least:
            return None
        for memory_mib, use_pct, why in self._least.get(_apart_from_gpus(need), ()):
            if need.gpu_memory_mib >= memory_mib and need.gpu_use_pct >= use_pct:
                return why
        return None


def _apart_from_gpus(need: Need) -> Need:
    if not (need.gpu_memory_mib or need.gpu_use_pct):
        return need
    return replace(need, gpu_memory_mib=0, gpu_use_pct=0.0)


class Planner:
    """One round under way.

    Args:
        requests: what was asked for, by token.
        advice: what was said before; nodes are kept while they do.
        stuck: keys of advice that Slurm has had time to follow and has not.
        nodes: as Slurm counts them.
        mirror: the brain that says who sits where.
        at_s: now.
        bound: the nodes that jobs under a move are bound for, by their keys.
    """

    def __init__(
        self,
        requests: Mapping[str, Request],
        advice: Mapping[str, Advice],
        stuck: frozenset[str],
        nodes: Mapping[str, NodeSight],
        mirror: Mirror,
        at_s: float,
        bound: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    ) -> None:
        self._bound = bound
        self._requests = requests
        self._advice = advice
        self._stuck = stuck
        self._left = dict(nodes)
        self._mirror = mirror
        self._at_s = at_s
        self._placed = 0
        self._sent_elsewhere = 0
        self._refusals = Refusals()
        self._rooms: dict[Need, Placement | None] = {}
        self._together: dict[str, tuple[str, ...]] = {}

    def plan(self, waiting: Iterable[JobRecord]) -> Round:
        """Plan for all waiting jobs that carry our marker."""
        ordered = sorted(waiting, key=_order)
        self._together = self._gangs(ordered)
        return Round(tuple(map(self.verdict, ordered)), self._left)

    def _gangs(self, ordered: Sequence[JobRecord]) -> dict[str, tuple[str, ...]]:
        """Nodes for jobs of several nodes that were not given any: together, not one by one."""
        needs: dict[str, Need] = {}
        for record in ordered:
            request = self._requests[record.token]
            new = request.nodes_min > 1 and not self._before(record)
            if not new or record.key in self._bound:
                continue
            if record.sight and from_slurm(record.sight.slurm_reason):
                continue
            if need := need_of(request, record.sight):
                needs[record.key] = need
        if len(needs) < _FEWEST_TOGETHER:
            return {}
        return self._mirror.together(needs, self._promised(ordered))

    def _promised(self, ordered: Iterable[JobRecord]) -> dict[str, NodeSight]:
        """The nodes as they will be when those have started who were told where to."""
        left = dict(self._left)
        for record in ordered:
            before = self._before(record)
            need = need_of(self._requests[record.token], record.sight) if before else None
            room = keeps(need, left, before) if need else None
            if need and room:
                left.update(taken(left, replace(room.shape, nodes=before), need.role))
        return left

    def verdict(self, record: JobRecord) -> Verdict:
        """The next job's turn."""
        request = self._requests[record.token]
        moves = record.key in self._bound  # then Slurm's reason is that it was just requeued
        if record.sight and not moves and (forbidden := from_slurm(record.sight.slurm_reason)):
            return Verdict(record, forbidden)
        need = need_of(request, record.sight)
        if need and (target := self._bound.get(record.key)):
            need = replace(need, only_nodes=target)
        if need and need.role is Role.GUEST and request.name in self._mirror.families:
            need = replace(need, family=request.name)
        found = self._found(record, need)
        if isinstance(found, Placement):
            self._placed += 1
            self._left.update(taken(self._left, found, request.role))
            return Verdict(record, found)
        if need is None or (need.role is Role.OWNER and found is not Reason.OVER_QUOTA):
            return Verdict(record, found)
        if found not in _KEPT_WAITING:
            return Verdict(record, found)
        return Verdict(record, found, self._room(need, found))

    def _found(self, record: JobRecord, need: Need | None) -> Placement | Reason:
        if self._placed >= MOST_PLANNED:
            return Reason.BEHIND_OTHERS
        if need is None:
            return Reason.SHAPE_NOT_HANDLED
        # Within a round room only shrinks: what was refused once is refused again, without a look.
        if known := self._refusals.of(need):
            return known
        found = self._elsewhere(record, need) or self._mirror.place(
            record.key, need, self._left, self._at_s, self._before(record)
        )
        if not isinstance(found, Placement):
            self._refusals.add(need, found)
        return found

    def _before(self, record: JobRecord) -> tuple[str, ...]:
        before = self._advice.get(record.advice_key)
        return before.nodes if before else self._together.get(record.key, ())

    def _elsewhere(self, record: JobRecord, need: Need) -> Placement | None:
        """Other seats for a guest that Slurm does not start where it was required to.

        Slurm may keep a whole node for a larger job that waits; we cannot see that, and a guest
        must not wait for it while there are seats on other nodes.
        """
        if need.role is Role.OWNER or record.sight is None or record.advice_key not in self._stuck:
            return None
        if self._sent_elsewhere >= MOST_SENT_ELSEWHERE:
            return None
        self._sent_elsewhere += 1
        avoided = (*need.excluded_nodes, *self._before(record))
        found = self._mirror.place(
            record.key, replace(need, excluded_nodes=avoided), self._left, self._at_s
        )
        return found if isinstance(found, Placement) else None

    def _room(self, need: Need, why: Reason) -> Placement | None:
        """Where a guest waits: nowhere, so that Slurm keeps no node for it, or where seats are."""
        if why is not Reason.NO_FREE_CPU_OR_MEMORY:
            return Placement((), need.seats, need.tasks, need.tasks * need.cpus_per_task)
        if need not in self._rooms and len(self._rooms) >= MOST_ROOMS:
            return Placement((), need.seats, need.tasks, need.tasks * need.cpus_per_task)
        if need not in self._rooms:
            self._rooms[need] = self._mirror.waits_at(need, self._left, self._at_s)
        return self._rooms[need]


def _order(record: JobRecord) -> tuple[int, float, str]:
    """Slurm's priority, then who came first, then the name; jobs not in the queue yet come last."""
    if record.sight is None:
        return (1, record.since_s, record.key)
    return (-record.sight.priority, record.sight.submitted_at_s, record.key)
