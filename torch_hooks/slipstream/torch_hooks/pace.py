# SPDX-License-Identifier: Apache-2.0
"""A running mini-batch time that neither a first compilation nor a long pause can spoil."""

from __future__ import annotations

from slipstream.torch_hooks.native_step import PaceNumbers

_FIRST = 8
_SHIFT = 3  # a new duration weighs an eighth
_LEAST_NS = 1000  # below this an eighth of it rounds to nothing, and it would never grow again


class Pace:
    """The smallest of the first eight durations, then a mean in which an outlier counts little.

    A duration counts for at most twice and at least half of the mean before it, so that one pause
    moves it by an eighth, while a lasting change is followed within some forty mini-batches.
    `step.c` does the same.
    """

    __slots__ = ("numbers",)

    def __init__(self) -> None:
        self.numbers = PaceNumbers()

    @property
    def duration_ns(self) -> int:
        """The running time."""
        return self.numbers.duration_ns

    def add(self, duration_ns: int) -> int:
        """Count one more mini-batch; returns the running time."""
        numbers = self.numbers
        mean = numbers.duration_ns
        if numbers.seen < _FIRST:
            return self._add_first(duration_ns)
        # Comparisons, not min and max: those would be half the cost of a boundary.
        if duration_ns > mean << 1:
            duration_ns = mean << 1
        elif duration_ns < mean >> 1:
            duration_ns = mean >> 1
        mean += (duration_ns - mean) >> _SHIFT
        numbers.duration_ns = mean if mean > _LEAST_NS else _LEAST_NS  # noqa: FURB136 (see above)
        return mean

    def _add_first(self, duration_ns: int) -> int:
        numbers = self.numbers
        least = min(numbers.duration_ns, duration_ns) if numbers.seen else duration_ns
        numbers.seen += 1
        numbers.duration_ns = max(_LEAST_NS, least)
        return numbers.duration_ns
