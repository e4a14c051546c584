# SPDX-License-Identifier: Apache-2.0
"""How fast a job trains: alone, now, and how sure that is.

A report says how many mini-batches ended since the one before and how long they took. All
statistics are means of these, each clipped to within a quarter of their median: a validation or a
busy moment of the machine counts little, and what a guest with a small share does to one report in
ten, which a median would hide, counts in full.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    from slipstream.core.node.events import JobReported

_FURTHEST: Final = 1.25
_SUREST: Final = 0.003
"""Of itself: an old look never counts for so much that a new one is not heard."""
_AGREE: Final = 2.0
"""So many errors apart two looks may be and have seen the same."""
_REMEMBERED: Final = 256
_ENOUGH: Final = 5
_KEPT: Final = 64  # of a window: what is older says nothing about now


@dataclass(frozen=True, slots=True)
class Sample:
    """Mini-batches that ended between two reports."""

    from_s: float
    minibatches: int
    each_s: float


@dataclass(frozen=True, slots=True)
class Middle:
    """A mean, how far single values lie from it, and how wrong it may be."""

    value_s: float
    sigma_s: float
    error_s: float


def middle(values: Collection[float], *, least_sigma_s: float = 0.0) -> Middle:
    """Of a few values their own spread says little: the least it can be is given."""
    centre = median(values)
    clipped = [min(max(one, centre / _FURTHEST), centre * _FURTHEST) for one in values]
    sigma = max(pstdev(clipped), least_sigma_s)
    return Middle(fmean(clipped), sigma, sigma / math.sqrt(len(clipped)))


def both(one: Middle, other: Middle) -> Middle:
    """What two looks at the same thing say together, each counting for how sure it is."""
    surest = _SUREST * one.value_s
    weights = [1 / max(each.error_s, surest) ** 2 for each in (one, other)]
    value_s = (weights[0] * one.value_s + weights[1] * other.value_s) / sum(weights)
    return Middle(value_s, max(one.sigma_s, other.sigma_s), 1 / math.sqrt(sum(weights)))


@dataclass(frozen=True, slots=True)
class Guarantee:
    """What an owner lost to its guests, as far as that was measured."""

    job_id: int
    guaranteed: bool
    """Whether anybody promised it something; a shared job is only protected during its turn."""
    baseline_ms: float
    """Its mini-batch time alone."""
    slowdown_pct: float
    error_pct: float
    """95 % confidence: it lies within so much of the truth."""
    reports: int


class Window:
    """What was measured since something changed."""

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.minibatches = 0
        self.values: deque[float] = deque(maxlen=_KEPT)

    def add(self, sample: Sample) -> bool:
        """Take a sample, unless it began before the change; says whether it was taken."""
        if sample.from_s < self.since_s:
            return False
        self.minibatches += sample.minibatches
        self.values.append(sample.each_s)
        return True


class Pulse:
    """One job's."""

    def __init__(self) -> None:
        self.minibatches = 0
        self.beside: deque[float] = deque(maxlen=_REMEMBERED)
        """Mini-batch times while guests ran."""
        self._last: JobReported | None = None
        self._baseline: Middle | None = None
        self._alone: deque[float] = deque(maxlen=_KEPT)
        """Mini-batch times while nobody else was on its GPUs."""
        self._is_stale = False

    @property
    def baseline(self) -> Middle | None:
        """Its mini-batch time alone, once it is known."""
        if self._is_stale and len(self._alone) >= _ENOUGH:
            self._baseline = middle(self._alone)
            self._is_stale = False
        return self._baseline

    def is_warming_up(self, minibatches: int) -> bool:
        """Whether its latest mini-batches were among its first."""
        return self.minibatches <= minibatches

    def learned(self, alone: Middle) -> None:
        """Its guests stood still, and this was measured."""
        self._baseline = alone
        self._alone.clear()
        self._is_stale = False

    def looked(self, alone: Middle) -> None:
        """The same once more: if it is what was known, it is known better now."""
        known = self.baseline
        if known is not None:
            apart_s = abs(known.value_s - alone.value_s)
            if apart_s <= _AGREE * math.hypot(known.error_s, alone.error_s):
                alone = both(known, alone)
        self.learned(alone)

    def alone(self, sample: Sample) -> None:
        """Nobody else was there."""
        self._alone.append(sample.each_s)
        self._is_stale = True

    def heard(self, told: JobReported) -> Sample | None:
        """What a report adds to the one before it; nothing if no mini-batch has ended."""
        before, self._last = self._last, told
        self.minibatches = told.minibatches
        if before is None or told.minibatches <= before.minibatches or not before.minibatches:
            return None
        took_s = told.boundary_at_s - before.boundary_at_s - (told.away_s - before.away_s)
        if took_s <= 0:  # users may write anything into their pages
            return None
        count = told.minibatches - before.minibatches
        return Sample(before.boundary_at_s, count, took_s / count)

    @property
    def spread_pct(self) -> float:
        """How much its mini-batch time alone varies by itself."""
        one = self.baseline
        return 100 * one.sigma_s / one.value_s if one else 0.0

    def now(self, window: Window, sure_reports: int) -> Middle:
        """The mean of a window, while it is short no surer of itself than the baseline was."""
        few = len(window.values) < sure_reports
        least = self.baseline.sigma_s if self.baseline and few else 0.0
        return middle(window.values, least_sigma_s=least)

    def error_s(self, now: Middle) -> float:
        """How wrong the difference to the baseline may be."""
        return math.hypot(now.error_s, self.baseline.error_s if self.baseline else 0.0)

    def drop_pct(self, each_s: float) -> float:
        """How much of its rate alone a job loses whose mini-batch takes so long."""
        return 100 * (1 - self.baseline.value_s / each_s) if self.baseline and each_s > 0 else 0.0

    def guarantee(self, job_id: int, *, guaranteed: bool) -> Guarantee | None:
        """What to report of an owner; nothing before there is something to compare."""
        if self.baseline is None or not self.beside:
            return None
        alone, beside = self.baseline, middle(self.beside, least_sigma_s=self.baseline.sigma_s)
        error_s = math.hypot(alone.error_s, beside.error_s)
        return Guarantee(
            job_id=job_id,
            guaranteed=guaranteed,
            baseline_ms=1e3 * alone.value_s,
            slowdown_pct=100 * (beside.value_s / alone.value_s - 1),
            error_pct=1.96 * 100 * error_s / alone.value_s,
            reports=len(self.beside),
        )
