# SPDX-License-Identifier: Apache-2.0
"""Features as columns of numbers: which of them a model looks at, and how each is scaled. Pure.

The same code makes the table that is learnt from and the one row that is asked about.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from slipstream.estimator.labels import WITHOUT_EFFECT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from slipstream.estimator.runs import Run

    Array = NDArray[np.float64]

GPUS: Final = "gpus"
"""The first column of all: how many GPUs a run had."""
MOST_COLUMNS: Final = 64
_MOST_WORDS: Final = 12
"""Of one name; the rest count as other words."""
_RARE: Final = 0.03
_WIDE: Final = 8
"""A whole number that goes from 0 to this grows by factors."""
_SAME: Final = 1e-9
_LARGEST: Final = 1e12
"""No size is larger: what is counts as not told."""
_FAR_LOG: Final = math.log(2.0)
_NOT_OURS: Final = re.compile(rf"^(?!arg\.|hint\.|launch\.)|{WITHOUT_EFFECT.pattern}")
"""Names that make no configuration of their own."""


@dataclass(frozen=True, slots=True)
class Number:
    """A column from a number."""

    name: str
    grows: bool
    """By factors: its logarithm counts."""
    fill: float
    """For a job that does not say."""
    floor: float
    """What is smaller counts as this where a logarithm is taken."""


class Row(NamedTuple):
    """One job as a model sees it, or many."""

    scaled: Array
    """Every column, for trees."""
    logs: Array
    """Of the numbers, for what grows by factors."""
    gates: Array
    """What switches growth on: 1, the share a ring of GPUs sends, flags and their opposites; and
    of each number one less, for between n layers there are n - 1."""


@dataclass(frozen=True, eq=False)
class Columns:
    """All columns of a model: numbers, whether a number is told at all, and words one by one."""

    numbers: tuple[Number, ...]
    told: tuple[str, ...]
    words: tuple[tuple[str, int], ...]
    centre: Array
    spread: Array
    low: Array
    high: Array
    """What was seen, scaled."""
    far: Array
    """How much beyond that is too far."""
    constants: Mapping[str, float]
    """Numbers that were the same in every run."""
    closed: Mapping[str, tuple[int, ...]]
    """All the words that a name ever had."""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """For people; of a word only its category is left."""
        return (
            *(one.name for one in self.numbers),
            *(f"{name}?" for name in self.told),
            *(f"{name}={value:08x}" for name, value in self.words),
        )

    @cached_property
    def _floors(self) -> Array:
        return np.array([one.floor for one in self.numbers])

    @cached_property
    def _grows(self) -> NDArray[np.bool_]:
        return np.array([one.grows for one in self.numbers])

    def row(self, gpus: float, numbers: Mapping[str, float], categories: Mapping[str, int]) -> Row:
        """One job."""
        get, known = numbers.get, categories.get
        values = [
            value if -_LARGEST < (value := get(one.name, one.fill)) < _LARGEST else one.fill
            for one in self.numbers
        ]
        values[0] = gpus
        flags = [1.0 if name in numbers else 0.0 for name in self.told]
        flags += [1.0 if known(name) == word else 0.0 for name, word in self.words]
        return self._of(np.array(values), np.array(flags))

    def table(self, runs: Sequence[Run]) -> Row:
        """Many."""
        rows = [self.row(run.gpus, run.numbers, run.categories) for run in runs]
        return Row(*(np.array(part) for part in zip(*rows, strict=True)))

    def beyond(self, scaled: Array) -> float:
        """How far outside of what was seen a job is; more than 1 is too far."""
        return float((np.maximum(self.low - scaled, scaled - self.high) / self.far).max())

    def _of(self, values: Array, flags: Array) -> Row:
        logs = np.log(np.maximum(values, self._floors))
        bent = np.where(self._grows, logs, values)
        scaled = (np.concatenate((bent, flags)) - self.centre) / self.spread
        ring = 1.0 - 1.0 / max(1.0, values[0])
        between = np.maximum(values - 1.0, 0.0)
        return Row(scaled, logs, np.concatenate(((1.0, ring), flags, 1.0 - flags, between)))


def configuration(run: Run) -> tuple[object, ...]:
    """The same for runs of the same hyper-parameters, whatever their seed and their GPUs."""
    told = (*run.numbers.items(), *run.categories.items())
    return tuple(sorted(one for one in told if not _NOT_OURS.search(one[0])))


def columns_of(runs: Sequence[Run]) -> Columns:
    """The columns in which these runs differ, of what is told most often. The name settles ties."""
    columns = _Kept()
    values = _numbers(runs)
    constants: dict[str, float] = {}
    numbers = []
    for name, column in values.items():
        there = column[np.isfinite(column)]
        if name != GPUS and len(there) == len(runs) and np.ptp(there) == 0:
            constants[name] = float(there[0])
            continue
        number = _number(name, there)
        filled = np.where(np.isfinite(column), column, number.fill)
        bent = np.log(np.maximum(filled, number.floor)) if number.grows else filled
        if columns.take(bent, anyway=name == GPUS):
            numbers.append(number)
    told = tuple(
        name for name, column in values.items() if columns.take(np.isfinite(column).astype(float))
    )
    words, closed = _words(runs)
    kept = (one for one in words if columns.take(np.array([_has(run, *one) for run in runs])))
    return _scaled(tuple(numbers), told, tuple(kept), columns.kept, (constants, closed))


class _Kept:
    """Columns so far: one that says nothing, or what another says already, is not taken."""

    def __init__(self) -> None:
        self.kept: list[Array] = []
        self._unit: list[Array] = []

    def take(self, column: Array, *, anyway: bool = False) -> bool:
        centred = column - column.mean()
        length = float(np.linalg.norm(centred))
        says_something = length > _SAME * (1.0 + float(np.abs(column).max()))
        unit = centred / length if says_something else centred
        known = any(abs(float(unit @ one)) > 1.0 - _SAME for one in self._unit)
        wanted = says_something and not known and len(self.kept) < MOST_COLUMNS
        if wanted or anyway:
            self.kept.append(column)
            self._unit.append(unit)
        return wanted or anyway


def _numbers(runs: Sequence[Run]) -> dict[str, Array]:
    """By name, the number of GPUs first, those most often told next; NaN for what is not told."""
    found = {GPUS: np.array([float(run.gpus) for run in runs])}
    for name in _often(runs, (run.numbers for run in runs)):
        column = np.array([run.numbers.get(name, math.nan) for run in runs], dtype=np.float64)
        found.setdefault(name, np.where(np.abs(column) < _LARGEST, column, math.nan))
    return found


def _words(runs: Sequence[Run]) -> tuple[list[tuple[str, int]], dict[str, tuple[int, ...]]]:
    """Name and word; and the names of which every run has one of these words."""
    found: list[tuple[str, int]] = []
    closed: dict[str, tuple[int, ...]] = {}
    least = _least(runs)
    for name in _often(runs, (run.categories for run in runs)):
        counts = Counter(run.categories[name] for run in runs if name in run.categories)
        often = sorted(counts, key=lambda word: (-counts[word], word))[:_MOST_WORDS]
        frequent = [word for word in often if counts[word] >= least]
        found += [(name, word) for word in frequent]
        if sum(counts[word] for word in frequent) == len(runs) and not _NOT_OURS.search(name):
            closed[name] = tuple(frequent)
    return found, closed


def _least(runs: Sequence[Run]) -> float:
    """So many runs must tell of something before it counts."""
    return min(float(len(runs)), max(2.0, _RARE * len(runs)))


def _often(runs: Sequence[Run], told: Iterable[Mapping[str, object]]) -> list[str]:
    """The names that enough runs tell, most often told first."""
    counts = Counter(name for one in told for name in one)
    least = _least(runs)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    wanted = (name for name in names if counts[name] >= least and not WITHOUT_EFFECT.search(name))
    return list(islice(wanted, MOST_COLUMNS))


def _has(run: Run, name: str, word: int) -> float:
    return 1.0 if run.categories.get(name) == word else 0.0


def _number(name: str, there: Array) -> Number:
    """How a number with these values is bent."""
    positive = there[there > 0]
    grows = len(there) > 0 and bool(there.min() > 0 or (there.min() == 0 and there.max() >= _WIDE))
    return Number(
        name,
        grows,
        fill=float(np.median(there)) if len(there) else 0.0,
        floor=float(positive.min()) / 2 if len(positive) else 1.0,
    )


def _scaled(
    numbers: tuple[Number, ...],
    told: tuple[str, ...],
    words: tuple[tuple[str, int], ...],
    kept: Sequence[Array],
    same: tuple[Mapping[str, float], Mapping[str, tuple[int, ...]]],
) -> Columns:
    table = np.array(kept).T
    centre, spread = table.mean(axis=0), table.std(axis=0)
    spread[spread < _SAME] = 1.0
    low, high = (table.min(axis=0) - centre) / spread, (table.max(axis=0) - centre) / spread
    far = np.full(len(kept), np.inf)
    for at, number in enumerate(numbers):
        far[at] = _FAR_LOG / spread[at] if number.grows else max(high[at] - low[at], _SAME)
    return Columns(numbers, told, words, centre, spread, low, high, far, *same)
