# SPDX-License-Identifier: Apache-2.0
"""Finding the growth law of a label: which products of sizes, and how much of each.

A lasso with weights that are not negative chooses among all products of few numbers and gates;
their weights are fitted without its penalty. Errors count relative to the value; how many terms are
worth having is decided on configurations that were left out.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.optimize import nnls  # type: ignore[import-untyped]  # ships no types
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import lasso_path

from slipstream.estimator.growth import FARTHEST, LARGEST_LOG

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from slipstream.estimator.columns import Row

    Array = NDArray[np.float64]
    Whole = NDArray[np.intp]

_POWERS: Final = (1.0, 2.0)
_MOST_POWER: Final = 6.0
_MOST_ROWS: Final = 200
"""For the search; the weights are fitted with more."""
_MOST_ROWS_WEIGHED: Final = 4_000
_PLAINER: Final = 0.8
"""What a product with one factor more is worth."""
_FALLING: Final = tuple(np.geomspace(3e-2, 1e-4, 9).tolist())
_PATIENCE: Final = 2
_MOST_ROUNDS: Final = 100
_ROUGHLY: Final = 1e-3
_WORST: Final = 2.0
"""An error beyond e² counts as this: one run must not decide."""
BENT: Final = 0.3
_PENALTIES: Final = (0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
_TINY: Final = 1e-9
_DRAWN: Final = 5.0
"""So many runs the middle of two laws counts for."""
_SLACK: Final = 0.5
"""Of a standard error: fewer terms are worth as much."""


@dataclass(frozen=True, slots=True)
class Law:
    """Of one label, with what it says of the runs' configurations when it has not seen them."""

    exponents: Array
    gates: NDArray[np.int32]
    weights: Array
    unseen: Array


@dataclass(frozen=True, slots=True)
class Choice:
    """From which numbers and gates products are made."""

    numbers: Sequence[int]
    below: frozenset[int]
    """Of them those that may be divided by."""
    gates: Sequence[tuple[int, int]]
    factors: int
    """Numbers in one product, at most."""
    each: bool = False
    """Whether the first number, that of GPUs, may only be divided by."""


class _Search:
    """The products of a choice, as columns over some rows."""

    def __init__(self, rows: Row, values: Array, choice: Choice) -> None:
        self._exponents = _exponents(choice, rows.logs.shape[1])
        self._gates = np.array(choice.gates, dtype=np.int32)
        self._rows = rows
        self._values = values
        factors = np.abs(self._exponents).sum(axis=1)[:, None] + (self._gates > 0).sum(axis=1)
        self.plain = (_PLAINER**factors).ravel().astype(np.float32)
        # Products of centred numbers: which of them is large does not depend on units.
        self._centre = rows.logs.mean(axis=0)

    def parts(self, terms: Whole) -> tuple[Array, NDArray[np.int32]]:
        """Exponents and gates of terms."""
        at, gate = np.divmod(terms, len(self._gates))
        return self._exponents[at], self._gates[gate]

    def columns(self, where: Whole) -> NDArray[np.float32]:
        """Of all products, over the values and of length 1: what a law says sums up to ones."""
        logs = (self._rows.logs[where] - self._centre) @ self._exponents.T
        grown = np.exp(np.clip(logs, -LARGEST_LOG, LARGEST_LOG)).astype(np.float32)
        opened = self._rows.gates[where]
        gates = (opened[:, self._gates[:, 0]] * opened[:, self._gates[:, 1]]).astype(np.float32)
        gates /= self._values[where, None].astype(np.float32)
        columns: NDArray[np.float32]
        columns = (grown[:, :, None] * gates[:, None, :]).reshape(len(where), -1)
        columns /= np.linalg.norm(columns, axis=0) + _TINY
        return columns

    def chosen(self, where: Whole, terms: Whole) -> Array:
        """The columns of some terms."""
        exponents, gates = self.parts(terms)
        logs = np.minimum(self._rows.logs[where] @ exponents.T, LARGEST_LOG)
        opened = self._rows.gates[where]
        columns: Array = np.exp(logs) * opened[:, gates[:, 0]] * opened[:, gates[:, 1]]
        return columns


def law_of(rows: Row, values: Array, folds: Whole, choice: Choice) -> Law:
    """The law of positive values; the folds keep configurations together."""
    search = _Search(rows, values, choice)
    everything = np.arange(len(values))
    looked_at = _some(everything)
    columns = search.columns(looked_at)
    parts = [folds != fold for fold in range(int(folds.max()) + 1)]
    lassos = [_Lasso(columns[part[looked_at]], search.plain) for part in parts]
    unseen: list[Array] = []
    for penalty in _FALLING:
        said = np.zeros(len(values))
        for part, lasso in zip(parts, lassos, strict=True):
            terms = lasso.terms(penalty)
            weights = _weighed(search, everything[part], values, terms)
            said[~part] = search.chosen(everything[~part], terms) @ weights
        unseen.append(said)
        if _is_enough(unseen, values):
            break
    count = _enough(unseen, values)
    lasso = _Lasso(columns, search.plain)
    for penalty in _FALLING[: count + 1]:
        terms = lasso.terms(penalty)
    exponents, gates = search.parts(terms)
    weights = _weighed(search, everything, values, terms)
    used = weights > 0
    return Law(exponents[used], gates[used], weights[used], unseen[count])


class _Lasso:
    """Ever more terms as its penalty falls, none with a negative weight.

    Where two products say about the same it shares the weight among them, which a search that
    takes one term after the other does not: that errs early, and builds on it.
    """

    def __init__(self, columns: NDArray[np.float32], plain: NDArray[np.float32]) -> None:
        # The penalty is for columns with a mean square of 1; plain ones are larger, so cheaper.
        scale = plain * np.float32(np.sqrt(len(columns)))
        self._columns = np.asfortranarray(columns * scale)
        self._weights: NDArray[np.float32] | None = None
        self._terms = np.zeros(0, dtype=np.intp)

    def terms(self, penalty: float) -> Whole:
        """Those at a penalty, which is less than any before; at most half as many as runs."""
        runs = len(self._columns)
        if len(self._terms) > runs // 2:
            return self._terms
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # which terms, not how much of each
            _, path, _ = lasso_path(
                *(self._columns, np.ones(runs, dtype=np.float32)),
                alphas=[penalty],
                coef_init=self._weights,
                positive=True,
                max_iter=_MOST_ROUNDS,
                tol=_ROUGHLY,
            )
        self._weights = path[:, 0]
        self._terms = np.flatnonzero(self._weights)
        return self._terms


def power_law(table: Array, wanted: Array, folds: Whole) -> tuple[Array, Array]:
    """A straight line through bent values, and what it says of configurations left out.

    Ridge regression with the penalty that is best on the folds. The first weight is the constant.
    """
    best: tuple[float, float, Array] | None = None
    for penalty in _PENALTIES:
        unseen = np.empty(len(wanted))
        for fold in range(int(folds.max()) + 1):
            inside = folds != fold
            line = _line(table[inside], wanted[inside], penalty)
            unseen[~inside] = line[0] + table[~inside] @ line[1:]
        error = float(np.mean((unseen - wanted) ** 2))
        if best is None or error < best[0]:
            best = (error, penalty, unseen)
    assert best is not None  # noqa: S101 (there are penalties)
    return _line(table, wanted, best[1]), best[2]


def blended(grown: Array, straight: Array, wanted: Array) -> float:
    """How much of the sum of products: what is best on the unseen, drawn to the middle."""
    apart = grown - straight
    many = float(apart @ apart) + 1e-12
    best = float(np.clip((wanted - straight) @ apart / many, 0.0, 1.0))
    return (len(wanted) * best + _DRAWN * 0.5) / (len(wanted) + _DRAWN)


def curved(table: Array, pairs: NDArray[np.int32]) -> Array:
    """The same columns and the products of pairs of them, which count for less."""
    near = np.clip(table, -FARTHEST, FARTHEST)
    return np.hstack((table, BENT * near[:, pairs[:, 0]] * near[:, pairs[:, 1]]))


def _line(table: Array, wanted: Array, penalty: float) -> Array:
    centre, middle = table.mean(axis=0), float(wanted.mean())
    near = table - centre
    if table.shape[1] <= len(table):
        gram = near.T @ near + penalty * np.eye(table.shape[1])
        weights = np.linalg.solve(gram, near.T @ (wanted - middle))
    else:
        gram = near @ near.T + penalty * np.eye(len(table))
        weights = near.T @ np.linalg.solve(gram, wanted - middle)
    return np.concatenate(([middle - float(centre @ weights)], weights))


def _weighed(search: _Search, where: Whole, values: Array, terms: Whole) -> Array:
    where = _some(where, _MOST_ROWS_WEIGHED)
    columns = search.chosen(where, terms) / values[where, None]
    lengths = np.linalg.norm(columns, axis=0) + 1e-300
    weights, _ = nnls(columns / lengths, np.ones(len(where)), maxiter=50 * len(terms) + 100)
    scaled: Array = weights / lengths
    return scaled


def _some(where: Whole, most: int = _MOST_ROWS) -> Whole:
    """Evenly spread, if there are too many."""
    if len(where) <= most:
        return where
    return where[np.linspace(0, len(where) - 1, most).astype(np.intp)]


def _is_enough(unseen: Sequence[Array], values: Array) -> bool:
    """Whether the last penalties have made nothing better."""
    errors = _squares(unseen, values).mean(axis=1)
    return int(np.argmin(errors)) < len(errors) - _PATIENCE


def _squares(unseen: Sequence[Array], values: Array) -> Array:
    said = np.maximum(np.array(unseen), _TINY)
    squares: Array = np.clip(np.log(said / values), -_WORST, _WORST) ** 2
    return squares


def _enough(unseen: Sequence[Array], values: Array) -> int:
    """The highest penalty, by its place, that is about as good as the best."""
    off = _squares(unseen, values)
    errors = off.mean(axis=1)
    best = int(np.argmin(errors))
    slack = (off - off[best]).std(axis=1) / np.sqrt(len(values))
    return int(np.flatnonzero(errors <= errors[best] + _SLACK * slack)[0])


def _exponents(choice: Choice, width: int) -> Array:
    """Of all products of few of these numbers, at most one of them divided by."""
    found = []
    for factors in range(min(choice.factors, len(choice.numbers)) + 1):
        for which in combinations(choice.numbers, factors):
            powers_of = [_powers(choice, at) for at in which]
            for powers in product(*powers_of):
                below = sum(power < 0 for power in powers)
                if below <= 1 and sum(power for power in powers if power > 0) <= _MOST_POWER:
                    one = np.zeros(width)
                    one[list(which)] = powers
                    found.append(one)
    return np.array(found)


def _powers(choice: Choice, at: int) -> tuple[float, ...]:
    if choice.each and at == 0:
        return (-1.0,)
    return (*_POWERS, -1.0) if at in choice.below else _POWERS
