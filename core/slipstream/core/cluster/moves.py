# SPDX-License-Identifier: Apache-2.0
"""Moves: pairs are taken apart when GPUs are free, nodes emptied for gangs, drained nodes left.

A job moves only if it can be restored, once in ten minutes at most, and if what it is expected to
gain is three times what the move costs. What a job will still run is thought to be what it has run
so far: so it is with jobs whose lengths are spread over many orders of magnitude.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.core.classes import JobClass, Role
from slipstream.core.cluster.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from slipstream.core.cluster.brain import Brain
    from slipstream.core.cluster.jobs import Job
    from slipstream.core.cluster.seat import Seat

_EACH: Final = 2


class Mover:
    """Proposes moves to the brain, within its budget."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    def after(self, touched: Collection[int]) -> None:
        """After an event: fill the holes that nobody waits for."""
        brain = self._brain
        if not brain.rules.has(Rule.MOVES) or len(brain.queues):
            return
        if not brain.ground.free.reaches(1):
            return
        for _ in range(brain.rules.most_moves):
            if not self._one_apart(touched):
                return

    def room_for(self, job: Job) -> Seat | None:
        """Empty a node that is nearly empty, for a gang that fits nowhere."""
        brain = self._brain
        if job.ask.gpus <= 1 or job.ask.gpus > brain.ground.largest or job.ask.nodes > 1:
            return None
        if job.ask.role is Role.GUEST:
            return None
        if not brain.rules.has(Rule.MOVES):
            return None
        for node in brain.ground.free.downwards(job.ask.gpus - 1, _EACH):
            if job.ask.on is not None and brain.ground.names[node] not in job.ask.on:
                continue
            seat = self._emptied(job, node)
            if seat is not None:
                return seat
        return None

    def leave(self, node: int) -> None:
        """Move off a drained node whoever finds free GPUs elsewhere."""
        brain = self._brain
        if not brain.rules.has(Rule.MOVES):
            return
        there = {
            job.number: job for gpu in brain.ground.gpus_of[node] for job in brain.ground.on[gpu]
        }
        for job in list(there.values()):
            if job.ask.restorable and self._may_move(job):
                self._move(job, self._free_for(job, {node}))

    def _one_apart(self, touched: Collection[int]) -> bool:
        """Give a free GPU to one of a pair."""
        brain = self._brain
        ground = brain.ground
        for node in sorted(touched):
            for gpu in ground.gpus_of[node]:
                ours = ground.on[gpu]
                if len(ours) < 2 and ours:  # noqa: PLR2004 (a pair)
                    continue
                found = self._apart(ours) if ours else self._to_fill(node)
                if found:
                    return True
        return False

    def _to_fill(self, node: int) -> bool:
        """One of the most used pair of the cluster comes to this node."""
        ground = self._brain.ground
        for other in ground.full.downwards_all(_EACH):
            if self._apart(ground.on[other], node):
                return True
        return False

    def _apart(self, ours: Iterable[Job], node: int | None = None) -> bool:
        for job in sorted(ours, key=lambda one: (one.guards, one.ask.gpus, -one.level, one.number)):
            # Where Slurm holds the seats, going on on another GPU of the same node is no move.
            shut = () if self._brain.rules.takes_seats else self._brain.ground.nodes_of(job.gpus)
            if self._pays(job, ours) and self._move(job, self._free_for(job, shut, node)):
                return True
        return False

    def _pays(self, job: Job, ours: Iterable[Job]) -> bool:
        brain = self._brain
        rules = brain.rules
        if _is_left_alone(job) or not self._may_move(job):
            return False
        ran_s = job.seated_s + brain.now_s - job.since_s
        lost = sum(
            2.0 - brain.book.expected(job, other, brain.now_s) for other in ours if other is not job
        )
        return ran_s * lost > rules.move_gain * rules.move_cost_s

    def _emptied(self, job: Job, node: int) -> Seat | None:
        """Who sits there goes to holes elsewhere, if all that must can."""
        brain = self._brain
        ground = brain.ground
        there = {one.number: one for gpu in ground.gpus_of[node] for one in ground.on[gpu]}
        missing = job.ask.gpus - (ground.free.number(node) or 0)
        plan: list[tuple[Job, tuple[int, ...]]] = []
        for one in sorted(there.values(), key=lambda who: (who.ask.gpus, who.number)):
            if missing <= 0:
                break
            if _is_left_alone(one) or len(ground.nodes_of(one.gpus)) > 1:
                continue
            if not self._may_move(one):
                continue
            gpus = self._free_for(one, {node, *(ground.node_of[g] for _, gs in plan for g in gs)})
            if gpus is None:
                return None
            plan.append((one, gpus))
            missing -= sum(len(ground.on[gpu]) == 1 for gpu in one.gpus)
        if missing > 0 or len(plan) > brain.rules.most_moves:
            return None
        for one, gpus in plan:
            self._move(one, gpus)
        if not brain.rules.takes_seats:
            return None  # not before they have left
        return brain.seating.on_node(job, node, brain.now_s)

    def _free_for(
        self, job: Job, shut: Collection[int], node: int | None = None
    ) -> tuple[int, ...] | None:
        ground = self._brain.ground
        nodes = [node] if node is not None else ground.free.upwards(len(job.gpus), 1 + len(shut))
        for at in nodes:
            free = [gpu for gpu in ground.gpus_of[at] if not ground.on[gpu]]
            if at not in shut and len(free) >= len(job.gpus):
                return tuple(free[: len(job.gpus)])
        return None

    def _may_move(self, job: Job) -> bool:
        brain = self._brain
        return brain.now_s - job.moved_at_s >= brain.rules.move_pause_s

    def _move(self, job: Job, gpus: tuple[int, ...] | None) -> bool:
        if gpus is None:
            return False
        self._brain.relocate(job, gpus)
        return True


def _is_left_alone(job: Job) -> bool:
    return job.ask.job_class is JobClass.GUARANTEED or not job.ask.restorable
