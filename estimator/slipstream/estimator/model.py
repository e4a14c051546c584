# SPDX-License-Identifier: Apache-2.0
"""A model: what was learnt from the runs of one family, or of all. Pure; predicts in microseconds.

Each label is what its growth law says, or what follows from other labels, times what a forest
found that this leaves out (docs/decisions/0013).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from slipstream.estimator.labels import AT, LABELS, NAMES, WITHOUT_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from slipstream.estimator.columns import Columns, Row
    from slipstream.estimator.forest import Forest
    from slipstream.estimator.growth import Laws

    Array = NDArray[np.float64]

EVERYBODY: Final = ""
"""The family of the model of all runs."""
QUANTILES: Final = (0.1, 0.5, 0.9, 0.96)
_TENTH, _MEDIAN, _NINETY, _SAFE = range(len(QUANTILES))
_FAR: Final = 1.0
_MOST_GROWTH: Final = 2.0
"""Of a number that was the same in every run: beyond that nobody knows."""
_FEWEST_SHARED: Final = 3


@dataclass(frozen=True, slots=True)
class Score:
    """How good a label is, on configurations that were not learnt from."""

    runs: int = 0
    error: float = 0.0
    """The median of how far it is off, as a factor less 1: 0.1 is 10 %."""
    recent_error: float = 0.0
    """The same of the newest ten runs."""
    r2: float = 0.0
    off: str = ""
    """Why it is not used."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """What sharing its GPUs has cost, from runs that did (`sharing.py`)."""

    runs: int = 0
    stretch: float = 1.0
    """The median: so many times as long the GPU took for the same work."""

    def slowdown(self, use_pct: float) -> float | None:
        """How many times as long a mini-batch takes beside others, by its use of a GPU alone."""
        if self.runs < _FEWEST_SHARED:
            return None
        return 1.0 + (self.stretch - 1.0) * min(use_pct, 100.0) / 100.0


@dataclass(frozen=True, eq=False)
class Model:
    """One. `known` says of which labels it has an opinion."""

    family: str
    runs: int
    newest_s: float
    fitted_s: float
    columns: Columns
    laws: Laws
    forest: Forest
    derived: NDArray[np.bool_]
    """Labels that follow from others, in place of a law."""
    known: NDArray[np.bool_]
    low: Array
    high: Array
    """Of each label, bent: what was seen and somewhat beyond."""
    unsure: Array
    """Of each label the least it is unsure by; where its laws disagree, it is more so."""
    errors: Array
    """For each label the QUANTILES of errors on unseen configurations, over how unsure it was."""
    importance: Array
    gpu_counts: tuple[int, ...]
    """Measured, where runs with several make a choice possible."""
    scores: Mapping[str, Score] = field(default_factory=dict)
    sharing: Sharing = field(default_factory=Sharing)

    @cached_property
    def spoken(self) -> frozenset[str]:
        """The labels it has an opinion of that is not switched off."""
        off = {name for name, score in self.scores.items() if score.off}
        return frozenset(
            name for at, name in enumerate(NAMES) if self.known[at] and name not in off
        )

    @cached_property
    def words_used(self) -> tuple[str, ...]:
        """Names of the words it looks at."""
        return tuple(
            dict.fromkeys((*(name for name, _ in self.columns.words), *self.columns.closed))
        )

    def said(self, row: Row, growth: float = 1.0) -> Said:
        """All it says of a job."""
        apart = [0.0] * len(LABELS)
        return Said(self.bent(row, apart), apart, self, growth)

    def bent(self, row: Row, apart: list[float] | None = None) -> list[float]:
        """Every label of a job in the middle, on the scale it is learnt on; NaN if not known.

        Into `apart` goes how far its laws are from each other.
        """
        grown, lines = self.laws.values(row).tolist(), self.laws.lines(row).tolist()
        found: list[float] = self.forest.means(row.scaled).tolist()
        values: dict[str, float] = {}
        for at, label in enumerate(LABELS):
            known, derived, blend, leash, low, high = self._plain[at]
            if not known:
                found[at] = math.nan
                continue
            if derived and label.follows:
                smooth = label.bend(label.follows(values))
            else:
                smooth = lines[at]
                if blend:
                    farther = label.bend(grown[at]) - smooth
                    smooth += blend * min(max(farther, -leash), leash)
                    if apart is not None:
                        apart[at] = abs(farther)
            found[at] = min(max(found[at] + smooth, low), high)
            values[label.name] = label.unbend(found[at])
        return found

    @cached_property
    def _plain(self) -> list[tuple[bool, bool, float, float, float, float]]:
        """Arrays as Python's own numbers: numpy is slow with single ones."""
        laws = self.laws
        columns = (self.known, self.derived, laws.blend, laws.leash, self.low, self.high)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def familiar(self, row: Row) -> bool:
        """Whether its numbers are not far outside of what was learnt from."""
        return self.columns.beyond(row.scaled) <= _FAR

    def same_words(self, categories: Mapping[str, int]) -> bool:
        """Whether every word has been seen, where all words were."""
        return all(categories.get(name) in words for name, words in self.columns.closed.items())

    def growth(self, numbers: Mapping[str, float]) -> float:
        """By how much a job may be larger in what was never different before."""
        factor = 1.0
        for name, before in self._constant_sizes:
            now = numbers.get(name, before)
            if now != before:
                factor *= max(1.0, now / before) if before > 0 and now > 0 else math.inf
        return factor

    @cached_property
    def _constant_sizes(self) -> list[tuple[str, float]]:
        return [
            (name, before)
            for name, before in self.columns.constants.items()
            if not WITHOUT_SIZE.search(name) and not name.startswith("ask.")
        ]

    def is_like(self, categories: Mapping[str, int], row: Row, growth: float) -> bool:
        """Whether anything may be said of this job."""
        return growth <= _MOST_GROWTH and self.familiar(row) and self.same_words(categories)

    @cached_property
    def doubts(self) -> list[tuple[float, list[float]]]:
        """Of each label how unsure it is at least, and its errors over that."""
        return list(zip(self.unsure.tolist(), self.errors.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Said:
    """What a model says of one job: values by label."""

    bent: Sequence[float]
    apart: Sequence[float]
    model: Model
    growth: float = 1.0

    def middle(self, name: str) -> float | None:
        """The median, if it is known."""
        return self._at(name, None)

    def safe(self, name: str) -> float | None:
        """Seldom exceeded."""
        value = self._at(name, _SAFE)
        return None if value is None else value * self.growth

    def early(self, name: str) -> float | None:
        """One of ten is less."""
        return self._at(name, _TENTH)

    def late(self, name: str) -> float | None:
        """One of ten is more."""
        return self._at(name, _NINETY)

    def _at(self, name: str, quantile: int | None) -> float | None:
        model = self.model
        if name not in model.spoken:
            return None
        at = AT[name]
        bent = self.bent[at]
        if quantile is not None:
            unsure, errors = model.doubts[at]
            bent += errors[quantile] * (unsure + self.apart[at])
        return LABELS[at].unbend(bent)
