# SPDX-License-Identifier: Apache-2.0
"""Immediate mode: the place that adds least to the score, for one job now.

On one node where it can be. Otherwise around each switch in turn, racks first: the nodes with most
room until the rest fits on one, and for that rest the node it fills best. What is best by estimate
is scored exactly, and the least taken.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np

from slipstream.core.network.layout import Layout
from slipstream.core.network.one_by_one import seats_one_by_one
from slipstream.core.network.scoring import OURS

if TYPE_CHECKING:
    from slipstream.core.network.fabric import Fabric
    from slipstream.core.network.gangs import Gang, Plan
    from slipstream.core.network.layout import Seats
    from slipstream.core.network.room import Room
    from slipstream.core.network.scoring import Weights
    from slipstream.core.network.tree import Ints

Share: TypeAlias = list[tuple[int, int]]
"""Nodes, and how many containers on each."""

_TRIED: Final = 2
"""Groups of each level that are scored exactly."""

_LEFT_OPEN: Final = 1e-6
"""For each GPU that stays free beside the job: it settles what is equal otherwise."""


def best_fit(gang: Gang, room: Room, weights: Weights = OURS) -> Plan | None:
    """Where one job goes, by the score; None: there is no room for all of it.

    Args:
        gang: the job.
        room: what is free. It is not changed: `room.take(plan, gang)` when the job starts.
        weights: what counts how much.
    """
    if not room.holds(gang):
        return None
    layout = Layout([gang], room, weights)
    seats = best_seats(layout, 0)
    if seats is None:
        return None
    layout.put(0, seats)
    return layout.plans()[0]


def best_seats(
    layout: Layout, job: int, *, without: int | None = None, sharing: bool = False
) -> Seats | None:
    """Where one job of a layout goes, beside those that have their seats; None: nowhere.

    Args:
        layout: the jobs that have their seats.
        job: which one has none.
        without: a node it shall not be on.
        sharing: others will come to the same node, so that it pays only for its part.
    """
    gang = layout.gangs[job]
    size = max(gang.gpus)
    if any(gpus not in (0, size) for gpus in gang.gpus):
        return seats_one_by_one(layout, job, without=without, large_first=True)
    search = _Search(layout, gang, size, without)
    found = search.on_one_node(sharing=sharing)
    if search.count > 1 and not (found and (sharing or found[0][0][0] in layout.on)):
        found += search.on_several()
    seats = [seated(gang, share, layout.fabric) for share in found]
    if len(seats) > 1:
        return min(
            seats, key=lambda one: (round(layout.added(job, one), 9), layout.room_at(one), one)
        )
    return seats[0] if seats else None


class _Search:
    """Places for equal containers: a list of nodes, with how many containers on each.

    Containers without GPUs come later: they sit where the others are.
    """

    def __init__(self, layout: Layout, gang: Gang, size: int, without: int | None) -> None:
        self._layout, self._gang = layout, gang
        self.count = sum(gpus > 0 for gpus in gang.gpus)
        most = 1 if gang.apart else self.count
        self._units: Ints = np.minimum(layout.free // size if size > 1 else layout.free, most)
        if without is not None:
            self._units[without] = 0
        self._most = most
        self._crowded = layout.crowded(gang)
        self._size = size
        self._edge = (
            layout.weights.near * layout.weights.of(gang) / gang.edges if gang.edges else 0.0
        )

    def on_one_node(self, *, sharing: bool) -> list[Share]:
        """The node that adds least, and among equals the one that is filled best."""
        if self._most < self.count:
            return []
        at = np.flatnonzero(self._units == self.count)
        if not at.size:
            return []
        asked, free = self.count * self._size, self._layout.free[at]
        opening = self._layout.opening[at]
        added = (opening * asked / free if sharing else opening) - self._layout.reward[at] * asked
        added += _LEFT_OPEN * (free - asked)
        return [[(int(at[added.argmin()]), self.count)]]

    def on_several(self) -> list[Share]:
        """The best groups of each level of switches, by estimate."""
        live = np.flatnonzero(self._units)
        if not live.size or int(self._units[live].sum()) < self.count:
            return []
        fabric = self._layout.fabric
        used = self._layout.used[live]
        rank = self._ranked(live)
        found: list[Share] = []
        levels = [row[live] for row in fabric.groups]
        ranks = [rank]
        if used.any():  # what is used already costs no new node
            ranks.append(np.where(used, 0, rank + 1))
        if self._crowded:
            late = np.isin(fabric.rack[live], list(self._crowded))
            ranks.append(rank + late * (int(rank.max()) + 1))
        for level, groups in enumerate(levels):
            if level and np.array_equal(groups, levels[level - 1]):
                continue
            for one in ranks:
                found += self._around(live, groups, one)
        if not found:  # no domain holds it
            found += self._around(live, np.zeros_like(live), rank)
        return found

    def _ranked(self, live: Ints) -> Ints:
        """Most room first, for few nodes; if their number is given, those that are filled best.

        Among equals those whose rack has most of them.
        """
        rank = self._most - self._units[live]
        if self._gang.apart:
            rank = self._layout.free[live] - self._size
        like = self._layout.fabric.rack[live] * (int(rank.max()) + 1) + rank
        alike = np.bincount(like)[like]
        most: int = alike.max()
        ranked: Ints = rank * (most + 1) + most - alike
        return ranked

    def _around(self, live: Ints, groups: Ints, rank: Ints) -> list[Share]:
        """The groups that hold the job with the least new nodes, by estimate."""
        order = np.argsort(groups * (int(rank.max()) + 1) + rank, kind="stable")
        nodes, groups = live[order], groups[order]
        units = self._units[nodes]
        so_far = np.cumsum(units)
        begins = np.ones(groups.size, dtype=np.bool_)
        np.not_equal(groups[1:], groups[:-1], out=begins[1:])
        starts, within = begins.nonzero()[0], np.cumsum(begins) - 1
        before = so_far - units - (so_far - units)[starts][within]
        last = np.flatnonzero((before < self.count) & (before + units >= self.count))
        if not last.size:
            return []
        opening = self._layout.opening[nodes]
        sums = np.cumsum(opening)
        first = starts[within[last]]
        estimate = sums[last] - sums[first] + opening[first]
        ends = np.append(starts[1:], nodes.size)
        found = []
        for at in np.argsort(estimate, kind="stable")[:_TRIED].tolist():
            one, to = int(first[at]), int(last[at])
            share = list(zip(nodes[one:to].tolist(), units[one:to].tolist(), strict=True))
            rest = self.count - int(before[to])
            share.append((self._for_the_rest(nodes[to : ends[within[to]]], rest, share), rest))
            found.append(share)
        return found

    def _for_the_rest(self, nodes: Ints, rest: int, share: Share) -> int:
        """The node that the rest fills best, near the others."""
        fabric, layout = self._layout.fabric, self._layout
        holding = nodes[self._units[nodes] >= rest]
        added = layout.opening[holding] - layout.reward[holding] * (rest * self._size)
        if share:
            near = fabric.near(int(fabric.rack[share[-1][0]]))
            added += near[fabric.rack[holding]] * self._edge
        for rack, more in self._crowded.items():
            added[fabric.rack[holding] == rack] += more
        return int(holding[added.argmin()])


def seated(gang: Gang, share: Share, fabric: Fabric) -> Seats:
    """The containers on their nodes: a ring in the order of the nodes, servers in the middle."""
    places = [at for at, count in sorted(share) for _ in range(count)]
    if not gang.servers:
        return tuple(places)
    with_gpus = sum(gpus > 0 for gpus in gang.gpus[: gang.servers])
    workers = Counter(places)
    # The middle: nearest to all others. Servers that need a GPU take it from there outwards.
    by_distance = sorted(
        workers,
        key=lambda at: (
            sum(fabric.cost(at, to) * n for to, n in workers.items()),
            -workers[at],
            at,
        ),
    )
    outwards = [at for at in by_distance for _ in range(workers[at])]
    own, others = outwards[:with_gpus], sorted(outwards[with_gpus:])
    middle = own[0] if own else by_distance[0]
    taken = iter(own)
    servers = [next(taken) if gpus else middle for gpus in gang.gpus[: gang.servers]]
    return (*servers, *others)
