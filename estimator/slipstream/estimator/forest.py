# SPDX-License-Identifier: Apache-2.0
"""Forests as flat arrays, walked by a few lines of C, or by numpy where there is no library.

Predicting needs nothing of scikit-learn: `fitting` takes its trees apart.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from slipstream.estimator import native

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

NODE: Final = np.dtype([("value", "<f8"), ("right", "<i4"), ("feature", "<i4")])
"""The struct of native/forest.c."""
DEEPEST: Final = 64


class ForestError(ValueError):
    """Arrays that are no forest; says why."""


@dataclass(frozen=True, eq=False)
class Forest:
    """The trees of all labels: label l has trees first[l] to first[l + 1] - 1."""

    nodes: NDArray[np.void]
    roots: NDArray[np.int32]
    first: NDArray[np.int32]
    columns: int

    @functools.cached_property
    def means(self) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
        """What the trees of each label say of a row, in the mean; nothing of no trees."""
        try:
            native.load()
        except native.NativeError:
            return _Walker(self)
        return _Native(self)

    def checked(self) -> Forest:
        """Itself, if every walk through it ends inside it; raises ForestError."""
        nodes, roots, first = self.nodes, self.roots, self.first
        count = len(nodes)
        at = np.arange(count)
        leaf = nodes["feature"] < 0
        right = nodes["right"]
        if not np.isfinite(nodes["value"]).all():
            raise ForestError("a node that is no number")
        if (nodes["feature"] >= self.columns).any():
            raise ForestError("a feature that does not exist")
        if count and not leaf[-1]:
            raise ForestError("a last node that is no leaf")
        if ((right <= at) | (right >= count))[~leaf].any():
            raise ForestError("a child outside of the forest")
        if ((roots < 0) | (roots >= count)).any():
            raise ForestError("a root outside of the forest")
        if (
            first.size == 0
            or first[0] != 0
            or first[-1] != len(roots)
            or (np.diff(first) < 0).any()
        ):
            raise ForestError("labels without their trees")
        return self


class _Native:
    """Asks the library. Buffers are its own: one thread asks at a time, as the submit path does."""

    def __init__(self, forest: Forest) -> None:
        self._kept = (forest.nodes, forest.roots, forest.first)
        labels = len(forest.first) - 1
        self._trees = np.maximum(1, np.diff(forest.first)).astype(np.float64)
        self._row = np.zeros(forest.columns, dtype=np.float32)
        self._sums = np.zeros(labels)
        function = native.load().slip_forest
        arrays = [array.ctypes.data for array in self._kept]
        arguments = (*arrays, labels, self._row.ctypes.data, self._sums.ctypes.data)
        self._call = functools.partial(function, *arguments)

    def __call__(self, row: NDArray[np.float64]) -> NDArray[np.float64]:
        self._row[:] = row
        self._call()
        means: NDArray[np.float64] = self._sums / self._trees
        return means


class _Walker:
    """All trees at once, level by level."""

    def __init__(self, forest: Forest) -> None:
        nodes, count = forest.nodes, len(forest.nodes)
        leaf = nodes["feature"] < 0
        at = np.arange(count)
        self._feature = np.where(leaf, 0, nodes["feature"]).astype(np.intp)
        self._value = nodes["value"].astype(np.float64)
        # A leaf is its own child, so that all walks take the same number of levels.
        self._children = np.empty(2 * count, dtype=np.intp)
        self._children[0::2] = np.where(leaf, at, at + 1)
        self._children[1::2] = np.where(leaf, at, nodes["right"])
        self._roots = forest.roots.astype(np.intp)
        self._first = forest.first
        self._trees = np.maximum(1, np.diff(forest.first)).astype(np.float64)
        self._levels = _levels(self._roots, self._children)

    def __call__(self, row: NDArray[np.float64]) -> NDArray[np.float64]:
        row = row.astype(np.float32).astype(np.float64)
        at = self._roots
        for _ in range(self._levels):
            goes_left = row[self._feature[at]] <= self._value[at]
            at = self._children[2 * at + 1 - goes_left]
        sums = np.concatenate(([0.0], np.cumsum(self._value[at])))
        means: NDArray[np.float64] = np.diff(sums[self._first]) / self._trees
        return means


def _levels(roots: NDArray[np.intp], children: NDArray[np.intp]) -> int:
    """Of the deepest tree."""
    at, levels = np.unique(roots), 0
    while levels < DEEPEST:
        below = np.concatenate((children[2 * at], children[2 * at + 1]))
        below = np.setdiff1d(below, at)
        if not below.size:
            break
        at, levels = below, levels + 1
    return levels
