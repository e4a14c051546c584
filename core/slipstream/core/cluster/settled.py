# SPDX-License-Identifier: Apache-2.0
"""Nodes for jobs whose number of nodes is settled, as Slurm settles it at submission.

An owner of one node goes where the fewest GPUs without an owner are left over, so that large holes
stay for large jobs; on several nodes that is weighed against their nearness, by Liquid's score. A
guest goes to free GPUs, where most of them are, then to the least used ones; on several nodes to
the quietest, near each other. The order in which nodes came settles what is left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.core.cluster.seat import Seat
from slipstream.core.network.bestfit import best_fit
from slipstream.core.network.fabric import Fabric
from slipstream.core.network.gangs import Gang
from slipstream.core.network.nearness import nearest
from slipstream.core.network.room import Room
from slipstream.core.network.scoring import Weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from slipstream.core.cluster.ground import Ground
    from slipstream.core.cluster.jobs import Job
    from slipstream.core.network.nearness import Score

    Picked = Callable[[Job, int, float, int], Seat | None]

_ALL: Final = 1 << 30
_LOAD_STEP_PCT: Final = 10.0
"""Use within one of these counts as equal: it is noise, and advice should not follow noise."""
_LINK_MBPS: Final = 10_000.0
"""What a node's link is thought to carry, as the estimator does of a job nobody knows."""


class Settled:
    """Looks for seats on the ground; `picked` is the guard on one node."""

    def __init__(self, ground: Ground, picked: Picked) -> None:
        self._ground = ground
        self._picked = picked

    def seat(self, job: Job, at_s: float) -> Seat | None:
        """The nodes of before, if they still do, or the best ones."""
        known = self._ground.node_at
        before = [known[name] for name in job.ask.before if name in known]
        if len(before) == job.ask.nodes and (seat := self._on_all(job, before, at_s)):
            return seat
        if job.ask.nodes == 1:
            found = (self._on_all(job, (node,), at_s) for node in self._proposed(job))
            return next((seat for seat in found if seat), None)
        seats = {
            node: seat
            for node in range(len(self._ground.names))
            if (seat := self._on_all(job, (node,), at_s))
        }
        if len(seats) < job.ask.nodes:
            return None
        return _one([seats[node] for node in self._together(job, seats)])

    def _on_all(self, job: Job, nodes: Iterable[int], at_s: float) -> Seat | None:
        seats = []
        for node in nodes:
            if not self._may_use(job, node):
                return None
            seat = self._picked(job, node, at_s, job.ask.each)
            if seat is None:
                return None
            seats.append(seat)
        return _one(seats)

    def _may_use(self, job: Job, node: int) -> bool:
        ground, on = self._ground, job.ask.on
        return node not in ground.closed and (on is None or ground.names[node] in on)

    def _proposed(self, job: Job) -> Iterator[int]:
        """Nodes for a job of one node, the best first."""
        ground, count = self._ground, job.ask.each
        if job.is_guaranteed:
            yield from ground.unowned.upwards(count, _ALL)
            return
        for node in ground.free.downwards_all(_ALL):
            if (ground.free.number(node) or 0) < count:
                break
            yield node
        if count > 1:
            yield from ground.roomy.upwards(count, _ALL)
            return
        for gpu in ground.quiet.upwards(0, _ALL):
            yield ground.node_of[gpu]

    def _together(self, job: Job, seats: Mapping[int, Seat]) -> list[int]:
        """Of more nodes than it needs those that are best together."""
        ground, ask = self._ground, job.ask
        names = {ground.names[node]: node for node in seats}
        if not job.is_guaranteed:
            scores = {name: self._score(seats[node], node) for name, node in names.items()}
            return [names[name] for name in nearest(scores, ask.nodes, ground.topology)]
        gang = Gang(
            key="",
            gpus=(ask.each,) * ask.nodes,
            servers=int(ask.servers),
            mbps=ask.mbps,
            apart=True,
        )
        gpus = {name: len(ground.gpus_of[node]) for name, node in names.items()}
        free = {name: ground.unowned.number(node) or 0 for name, node in names.items()}
        fabric = Fabric(gpus, ground.topology)
        weights = Weights(link_mbps=_LINK_MBPS, uplink_mbps=ground.uplink_mbps or None)
        plan = best_fit(gang, Room(fabric, free, ground.sent_mbps), weights)
        if plan is None:
            raise AssertionError(f"{ask.nodes} of {len(seats)} nodes hold it, and none were found")
        return [names[name] for name in sorted(plan.nodes)]

    def _score(self, seat: Seat, node: int) -> Score:
        """Of a guest on one of several nodes; less is better."""
        ground = self._ground
        use = sum(int(ground.load_pct(gpu) // _LOAD_STEP_PCT) for gpu in seat.gpus)
        owners_met = sum(any(job.guards for job in ground.on[gpu]) for gpu in seat.gpus)
        return (use // max(1, len(seat.gpus)), owners_met, -(ground.roomy.number(node) or 0))


def _one(seats: Iterable[Seat]) -> Seat:
    """Several as one; nobody leaves where nodes are settled."""
    return Seat(tuple(gpu for seat in seats for gpu in seat.gpus))
