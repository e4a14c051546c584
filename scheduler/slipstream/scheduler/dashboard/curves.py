# SPDX-License-Identifier: Apache-2.0
"""Curves over time in so many points: when full, every second one goes, so that all of it stays."""

from __future__ import annotations

import math
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_POINTS: Final = 240
MOST_CURVES: Final = 4096


class Curve:
    """Rows of numbers, each with its time; None is a gap."""

    def __init__(self, width: int, most: int = MOST_POINTS) -> None:
        self._times = array("d")
        self._columns = [array("f") for _ in range(width)]
        self._most = most
        self._every_s = 0.0

    def add(self, at_s: float, values: Sequence[float | None]) -> None:
        """One more, unless the last one is as good as now."""
        if self._times and at_s - self._times[-1] < self._every_s:
            return
        self._times.append(at_s)
        for column, value in zip(self._columns, values, strict=True):
            column.append(math.nan if value is None else value)
        if len(self._times) > self._most:
            self._thin_out()

    def points(self) -> list[list[float | None]]:
        """All, the oldest first."""
        rows = zip(self._times, *self._columns, strict=True)
        return [[at_s, *(None if math.isnan(one) else one for one in row)] for at_s, *row in rows]

    def _thin_out(self) -> None:
        self._times = self._times[::2]
        self._columns = [column[::2] for column in self._columns]
        self._every_s = (self._times[-1] - self._times[0]) / len(self._times)


class Curves:
    """Curves by name; of too many those go that nothing was added to for longest."""

    def __init__(self, width: int, most: int = MOST_CURVES) -> None:
        self._curves: OrderedDict[str, Curve] = OrderedDict()
        self._width = width
        self._most = most

    def add(self, name: str, at_s: float, values: Sequence[float | None]) -> None:
        """A point of one of them."""
        curve = self._curves.get(name)
        if curve is None:
            curve = self._curves[name] = Curve(self._width)
            if len(self._curves) > self._most:
                self._curves.popitem(last=False)
        self._curves.move_to_end(name)
        curve.add(at_s, values)

    def points(self, name: str) -> list[list[float | None]]:
        """None: no points."""
        curve = self._curves.get(name)
        return curve.points() if curve else []

    def __len__(self) -> int:
        return len(self._curves)
