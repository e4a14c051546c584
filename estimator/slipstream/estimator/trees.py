# SPDX-License-Identifier: Apache-2.0
"""Random forests grown with scikit-learn and taken apart into flat arrays.

The bootstrap draws configurations, not runs: so what the trees that did not draw a configuration
say of it is a forecast, even where each was run several times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.tree import DecisionTreeRegressor

from slipstream.estimator.forest import NODE, Forest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Whole = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a forest is grown: Liquid's figures, but fewer columns for each split."""

    trees: int = 70
    depth: int = 13
    split: int = 10
    leaf: int = 5
    columns: float = 0.5
    """Of all, looked at for each split."""
    most_groups: int = 500
    """Drawn for one tree: more make larger trees, hardly better ones."""
    seed: int = 0

    def quick(self) -> Recipe:
        """For a first look."""
        return replace(self, trees=max(1, self.trees // 3), most_groups=300)


@dataclass(frozen=True, slots=True)
class Grown:
    """A tree as an array of nodes, from its root on."""

    nodes: NDArray[np.void]

    def times(self, weight: float) -> Grown:
        """With its leaves multiplied."""
        nodes = self.nodes.copy()
        leaf = nodes["feature"] < 0
        nodes["value"][leaf] *= weight
        return Grown(nodes)


@dataclass(frozen=True, slots=True)
class Trees:
    """A forest for one label."""

    trees: Sequence[Grown]
    unseen: Array
    """What the trees that did not draw a run's configuration say of it."""
    importance: Array


def grow(table: Array, wanted: Array, groups: Whole, recipe: Recipe) -> Trees:
    """Grow one; `groups` are numbers from 0 on without gaps."""
    random = np.random.default_rng(recipe.seed)
    narrow = np.ascontiguousarray(table, dtype=np.float32)
    count = int(groups.max()) + 1
    draws = min(count, recipe.most_groups)
    said, times = np.zeros(len(wanted)), np.zeros(len(wanted))
    importance = np.zeros(table.shape[1])
    trees = []
    for _ in range(recipe.trees):
        drawn = np.bincount(random.integers(0, count, draws), minlength=count)[groups]
        tree = DecisionTreeRegressor(
            max_depth=recipe.depth,
            min_samples_split=recipe.split,
            min_samples_leaf=recipe.leaf,
            max_features=recipe.columns,
            random_state=int(random.integers(2**31)),
        )
        inside = drawn > 0
        # Checked once above: scikit-learn's own checks take longer than a small tree.
        tree.fit(
            *(narrow[inside], wanted[inside], drawn[inside].astype(np.float64)), check_input=False
        )
        said[~inside] += tree.tree_.predict(narrow[~inside])[:, 0]
        times += ~inside
        importance += tree.feature_importances_
        trees.append(taken_apart(tree))
    usual = float(np.mean(wanted))
    unseen = np.where(times > 0, said / np.maximum(times, 1), usual)
    return Trees(trees, unseen, importance / recipe.trees)


def taken_apart(tree: Any) -> Grown:  # noqa: ANN401 (scikit-learn has no types)
    """The nodes of a fitted tree; its left child is always the next node."""
    inner = tree.tree_
    leaf = inner.children_left < 0
    if not (inner.children_left[~leaf] == np.flatnonzero(~leaf) + 1).all():
        raise ValueError("scikit-learn grew a tree in another order than depth first")
    nodes = np.zeros(inner.node_count, dtype=NODE)
    nodes["value"] = np.where(leaf, inner.value[:, 0, 0], inner.threshold)
    nodes["right"] = np.where(leaf, 0, inner.children_right)
    nodes["feature"] = np.where(leaf, -1, inner.feature)
    return Grown(nodes)


def flat(labels: Sequence[Sequence[Grown]], columns: int) -> Forest:
    """The trees of all labels, one after the other."""
    parts, roots, first = [], [], [0]
    at = 0
    for trees in labels:
        for tree in trees:
            nodes = tree.nodes.copy()
            nodes["right"][nodes["feature"] >= 0] += at
            parts.append(nodes)
            roots.append(at)
            at += len(nodes)
        first.append(len(roots))
    nodes = np.concatenate(parts) if parts else np.zeros(0, dtype=NODE)
    return Forest(
        nodes, np.array(roots, dtype=np.int32), np.array(first, dtype=np.int32), columns
    ).checked()
