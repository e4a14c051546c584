# SPDX-License-Identifier: Apache-2.0
"""A plan for many jobs in the making: who sits where, and the score after each change.

Only what a change touches is counted anew. The score is the one of scoring.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slipstream.core.network.gangs import Plan
from slipstream.core.network.scoring import cost_of
from slipstream.core.network.traffic import uplinks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.core.network.gangs import Gang
    from slipstream.core.network.room import Room
    from slipstream.core.network.scoring import Weights
    from slipstream.core.network.tree import Bools, Floats, Ints

Seats = tuple[int, ...]
"""The node of each container, by number."""


class Layout:
    """Jobs on nodes.

    Attributes:
        free: GPUs free on each node.
        opening: what it adds to the score that one more job uses a node.
        reward: what each GPU that this job asks of the node takes off again.
        used: whether jobs of the layout are on a node; `on` says which.
        seats: of each job, None for one that has no place.
        score: of all that is placed.
    """

    def __init__(self, gangs: Sequence[Gang], room: Room, weights: Weights) -> None:
        self.gangs = gangs
        self.fabric = room.fabric
        self.weights = weights
        used = self.fabric.total - room.free
        self._per_gpu: Floats = (1.0 - weights.near) / self.fabric.total
        self._unused: Floats = 1.0 - self._per_gpu * used
        self.free: Ints = room.free.copy()
        self.opening: Floats = self._unused.copy()
        self.reward: Floats = self._per_gpu.copy()
        self.seats: list[Seats | None] = [None] * len(gangs)
        self.used: Bools = np.zeros(len(self.fabric), dtype=np.bool_)
        self.on: dict[int, tuple[int, ...]] = {}
        self.score = 0.0
        self._costs = [0.0] * len(gangs)
        self._load: dict[int, float] = dict(room.sent)

    def copy(self) -> Layout:
        """The same, to change it."""
        other = object.__new__(Layout)
        other.__dict__.update(self.__dict__)
        other.free, other.used = self.free.copy(), self.used.copy()
        other.opening, other.reward = self.opening.copy(), self.reward.copy()
        other.seats, other.on = self.seats.copy(), self.on.copy()
        other._costs, other._load = self._costs.copy(), self._load.copy()
        return other

    @property
    def unplaced(self) -> int:
        """Who has no place, as one number: an earlier job counts more than all later ones."""
        return int("".join("1" if seats is None else "0" for seats in self.seats) or "0", 2)

    def fits(self, job: int, seats: Seats) -> bool:
        """Whether a job could sit there now."""
        return all(self.free[at] >= asked for at, asked in _asked(self.gangs[job], seats).items())

    def added(self, job: int, seats: Seats) -> float:
        """By how much the score would grow."""
        gang = self.gangs[job]
        nodes = sum(
            self.opening[at] - self.reward[at] * asked for at, asked in _asked(gang, seats).items()
        )
        return float(nodes) + self._cost(gang, seats) + self._crowd(gang, seats, 1.0)

    def room_at(self, seats: Seats) -> int:
        """GPUs free on these nodes: the less, the better they are filled."""
        return sum(int(self.free[at]) for at in set(seats))

    def crowded(self, gang: Gang) -> dict[int, float]:
        """The racks whose uplinks are too full for what a job's node sends, and what that adds."""
        carries = self.weights.uplink_mbps
        if carries is None or not gang.mbps:
            return {}
        return {
            rack: self.weights.near * min(gang.mbps, load + gang.mbps - carries) / carries
            for rack, load in self._load.items()
            if load + gang.mbps > carries
        }

    def put(self, job: int, seats: Seats) -> None:
        """Give a job its seats; they must be free."""
        gang = self.gangs[job]
        self._costs[job] = self._cost(gang, seats)
        self.score += self._costs[job] + self._crowd(gang, seats, 1.0)
        for at, asked in _asked(gang, seats).items():
            self.score += float(self.opening[at] - self.reward[at] * asked)
            self.free[at] -= asked
            self.on[at] = (*self.on.get(at, ()), job)
            self._priced(at, -asked)
        for rack, mbps in self._sent(gang, seats).items():
            self._load[rack] = self._load.get(rack, 0.0) + mbps
        self.seats[job] = seats

    def drop(self, job: int) -> Seats | None:
        """Take a job off its seats; returns them."""
        seats = self.seats[job]
        if seats is None:
            return None
        gang = self.gangs[job]
        self.score -= self._costs[job]
        self.score += self._crowd(gang, seats, -1.0)
        for at, asked in _asked(gang, seats).items():
            self.free[at] += asked
            left = tuple(one for one in self.on.pop(at) if one != job)
            if left:
                self.on[at] = left
            self._priced(at, asked)
            self.score -= float(self.opening[at] - self.reward[at] * asked)
        for rack, mbps in self._sent(gang, seats).items():
            self._load[rack] -= mbps
        self.seats[job] = None
        return seats

    def plans(self) -> list[Plan | None]:
        """In words: the nodes of each job, None for one without a place."""
        names = self.fabric.names
        return [
            None if seats is None else Plan(gang.key, tuple(names[at] for at in seats))
            for gang, seats in zip(self.gangs, self.seats, strict=True)
        ]

    def _priced(self, at: int, freed: int) -> None:
        """What a node costs the next job, after one has come or gone."""
        here = len(self.on.get(at, ()))
        self.used[at] = here > 0
        if not here:
            self.opening[at], self.reward[at] = self._unused[at], self._per_gpu[at]
        elif self.weights.per_job:
            self.opening[at] += self._per_gpu[at] * freed
            self.reward[at] = self._per_gpu[at] * (here + 1)
        else:
            self.opening[at] = 0.0

    def _cost(self, gang: Gang, seats: Seats) -> float:
        return self.weights.near * self.weights.of(gang) * cost_of(gang, seats, self.fabric)

    def _sent(self, gang: Gang, seats: Seats) -> dict[int, float]:
        return uplinks(gang, seats, self.fabric) if self.weights.uplink_mbps else {}

    def _crowd(self, gang: Gang, seats: Seats, sign: float) -> float:
        """By how much the score changes for crowded uplinks."""
        carries = self.weights.uplink_mbps
        if not carries:
            return 0.0
        more = 0.0
        for rack, mbps in uplinks(gang, seats, self.fabric).items():
            before = self._load.get(rack, 0.0)
            more += max(0.0, (before + sign * mbps) / carries - 1.0)
            more -= max(0.0, before / carries - 1.0)
        return self.weights.near * more


def _asked(gang: Gang, seats: Seats) -> dict[int, int]:
    """GPUs asked of each node."""
    asked: dict[int, int] = {}
    for at, gpus in zip(seats, gang.gpus, strict=True):
        asked[at] = asked.get(at, 0) + gpus
    return asked
