# SPDX-License-Identifier: Apache-2.0
"""Things by a small whole number, the first of each number at once.

Sorted lists: to move a hundred kilobytes in memory is cheaper here than any tree.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Buckets:
    """Numbers from 0 to `most`; things are whole numbers, too, and the lowest comes first."""

    __slots__ = ("_of", "at")

    def __init__(self, most: int) -> None:
        self._of: list[list[int]] = [[] for _ in range(most + 1)]
        self.at: dict[int, int] = {}
        """The number of each thing, to be read."""

    def put(self, thing: int, number: int) -> None:
        """A thing has this number now."""
        old = self.at.get(thing)
        if old == number:
            return
        if old is not None:
            self._remove(thing, old)
        if number >= len(self._of):
            self._of += [[] for _ in range(number + 1 - len(self._of))]
        self.at[thing] = number
        insort(self._of[number], thing)

    def shift(self, thing: int, by: int) -> None:
        """A thing that has a number has another now; one that has none goes on without."""
        number = self.at.get(thing)
        if by and number is not None:
            self.put(thing, number + by)

    def drop(self, thing: int) -> None:
        """It has none any more."""
        old = self.at.pop(thing, None)
        if old is not None:
            self._remove(thing, old)

    def number(self, thing: int) -> int | None:
        """What it has."""
        return self.at.get(thing)

    def upwards(self, least: int, each: int) -> Iterator[int]:
        """The first few of each number, from `least` up."""
        for things in self._of[least:]:
            yield from things[:each]

    def downwards(self, most: int, each: int) -> Iterator[int]:
        """The first few of each number, from `most` down."""
        for things in self._of[most::-1]:
            yield from things[:each]

    def downwards_all(self, each: int) -> Iterator[int]:
        """The first few of each number, from the largest down."""
        return self.downwards(len(self._of) - 1, each)

    def first(self, number: int, count: int) -> list[int]:
        """The first `count` with exactly this number."""
        return self._of[number][:count] if number < len(self._of) else []

    def reaches(self, least: int) -> bool:
        """Whether anything has so much."""
        return any(self._of[least:])

    def _remove(self, thing: int, number: int) -> None:
        things = self._of[number]
        del things[bisect_left(things, thing)]
