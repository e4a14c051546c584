# SPDX-License-Identifier: Apache-2.0
"""A running mini-batch time that neither a first compilation nor a long pause can spoil."""

from __future__ import annotations

_FIRST = 8
_SHIFT = 3  # a new duration weighs an eighth
_LEAST_NS = 1000  # below this an eighth of it rounds to nothing, and it would never grow again


class Pace:
    """The smallest of the first eight durations, then a mean in which an outlier counts little.

    A duration counts for at most twice and at least half of the mean before it, so that one pause
    moves it by an eighth, while a lasting change is followed within some forty mini-batches.
    """

    __slots__ = ("_seen", "duration_ns")

    def __init__(self) -> None:
        self._seen = 0
        self.duration_ns = 0

    def add(self, duration_ns: int) -> int:
        """Count one more mini-batch; returns the running time."""
        mean = self.duration_ns
        if self._seen < _FIRST:
            return self._add_first(duration_ns)
        # Comparisons, not min and max: those would be half the cost of a boundary.
        if duration_ns > mean << 1:
            duration_ns = mean << 1
        elif duration_ns < mean >> 1:
            duration_ns = mean >> 1
        mean += (duration_ns - mean) >> _SHIFT
        self.duration_ns = mean if mean > _LEAST_NS else _LEAST_NS  # noqa: FURB136 (see above)
        return mean

    def _add_first(self, duration_ns: int) -> int:
        least = min(self.duration_ns, duration_ns) if self._seen else duration_ns
        self._seen += 1
        self.duration_ns = max(_LEAST_NS, least)
        return self.duration_ns
