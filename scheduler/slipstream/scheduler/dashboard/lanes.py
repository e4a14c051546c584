# SPDX-License-Identifier: Apache-2.0
"""Who was on which GPU from when to when, and what it did there: a lane of spans per GPU. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_SPANS: Final = 256
"""Of one GPU; the oldest go first."""
MOST_LANES: Final = 8192
Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Who:
    """A job on a GPU: as what, and what it does."""

    job: str
    role: str
    does: str


@dataclass(slots=True)
class _Lane:
    ended: deque[tuple[float, float, Who]] = field(default_factory=lambda: deque(maxlen=MOST_SPANS))
    now: dict[Who, float] = field(default_factory=dict)
    """Who is on it, since when."""


class Lanes:
    """All GPUs."""

    def __init__(self) -> None:
        self._lanes: dict[Place, _Lane] = {}

    def seen(self, place: Place, at_s: float, here: Iterable[Who]) -> None:
        """These are on it now, and nobody else."""
        lane = self._lanes.get(place)
        if lane is None:
            if len(self._lanes) >= MOST_LANES:
                return
            lane = self._lanes[place] = _Lane()
        those = set(here)
        for who in [one for one in lane.now if one not in those]:
            lane.ended.append((lane.now.pop(who), at_s, who))
        for who in sorted(those - lane.now.keys(), key=lambda one: (one.role, one.job, one.does)):
            lane.now[who] = at_s

    def told(self, after_s: float = 0.0) -> list[dict[str, Any]]:
        """Every lane with what was there after that: [from, until or null, job, role, does]."""
        return [
            {"node": node, "gpu": index, "spans": _spans(self._lanes[node, index], after_s)}
            for node, index in sorted(self._lanes)
        ]

    def forget(self, node: str) -> None:
        """A node is gone."""
        for place in [one for one in self._lanes if one[0] == node]:
            del self._lanes[place]


def _spans(lane: _Lane, after_s: float) -> list[list[Any]]:
    over = [
        [began_s, ended_s, who.job, who.role, who.does]
        for began_s, ended_s, who in lane.ended
        if ended_s > after_s
    ]
    return over + [
        [began_s, None, who.job, who.role, who.does] for who, began_s in lane.now.items()
    ]
