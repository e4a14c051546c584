# SPDX-License-Identifier: Apache-2.0
"""Fitting: from finished runs to a model. Needs scikit-learn and takes seconds; never in a daemon.

Every error here is one on configurations that the fit had not seen, for laws and trees alike: what
is promised of a model comes from them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Final

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # ships no types

from slipstream.estimator.columns import Row, columns_of, configuration
from slipstream.estimator.growth import Laws
from slipstream.estimator.growth_fit import BENT, Choice, blended, curved, law_of, power_law
from slipstream.estimator.judging import quantile_of, score_of
from slipstream.estimator.labels import LABELS, NAMES
from slipstream.estimator.model import EVERYBODY, QUANTILES, Model
from slipstream.estimator.sharing import sharing_of
from slipstream.estimator.trees import Grown, Recipe, flat, grow

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    from slipstream.estimator.columns import Columns
    from slipstream.estimator.labels import Label
    from slipstream.estimator.model import Score
    from slipstream.estimator.runs import Run

    Array = NDArray[np.float64]
    Whole = NDArray[np.intp]

FEWEST_CONFIGURATIONS: Final = 8
"""Below that the plain rule for few runs is as good."""
FEWEST_FAMILIES: Final = 3
_FEWEST_RUNS: Final = 5
_FEWEST_GROUPS: Final = 3
"""Of one label: what only runs on several GPUs have is learnt from fewer."""
_FOLDS: Final = 5
_MOST_NUMBERS: Final = 6
_MOST_FLAGS: Final = 8
_MOST_PAIRED: Final = 14
_RUNS_FOR_PAIRS: Final = 20
_LEAST_LAYERS: Final = 1.0
_MOST_LAYERS: Final = 128
_CHECKED: Final = 0.01
"""Of all importance: what matters less may be anything."""
_WIDER: Final = {"log": np.log(4.0), "logit": 1.5}
_HARDLY: Final = np.log(1.25)
_SUREST: Final = 1e-3


class TooFewError(ValueError):
    """Not enough runs for a model; says how many there are."""


@dataclass(frozen=True, slots=True)
class _Learnt:
    """One label: its law or none (it follows from others), its trees, and what both say unseen."""

    exponents: Array
    gates: NDArray[np.int32]
    weights: Array
    power: Array
    blend: float
    trees: Sequence[Grown]
    derived: bool
    where: Whole
    """The runs that have it."""
    wanted: Array
    unseen: Array
    """Both bent."""
    apart: Array
    """How far the two laws are from each other, there."""
    importance: Array


def fit(runs: Sequence[Run], family: str, now_s: float, recipe: Recipe | None = None) -> Model:
    """The model of these runs, the newest first; raises TooFewError.

    Args:
        runs: of one family, or of all; those that shared their GPUs teach what that costs.
        family: its name; EVERYBODY for all.
        now_s: written into the model.
        recipe: of the forest.
    """
    shared = [run for run in runs if not run.alone]
    runs = [run for run in runs if run.alone]
    groups = _groups([run.family if family == EVERYBODY else configuration(run) for run in runs])
    count = int(groups.max()) + 1 if runs else 0
    if count < (FEWEST_FAMILIES if family == EVERYBODY else FEWEST_CONFIGURATIONS):
        raise TooFewError(f"{count} configurations or families in {len(runs)} runs")
    # Many small products: threads of the linear algebra would only wait for each other.
    with threadpool_limits(limits=1):
        model = _Fitter(runs, groups, recipe or Recipe()).model(family, now_s)
    newest_s = max(model.newest_s, *(run.ended_s for run in shared)) if shared else model.newest_s
    return replace(model, newest_s=newest_s, sharing=sharing_of(model, shared))


class _Fitter:
    def __init__(self, runs: Sequence[Run], groups: Whole, recipe: Recipe) -> None:
        self._runs, self._groups, self._recipe = runs, groups, recipe
        self._columns = columns_of(runs)
        self._rows = self._columns.table(runs)
        order = np.random.default_rng(recipe.seed).permutation(int(groups.max()) + 1)
        self._folds = order[groups] % min(_FOLDS, len(order))
        self._learnt: dict[str, _Learnt] = {}
        self._pairs = _pairs(self._columns, len(runs))

    def model(self, family: str, now_s: float) -> Model:
        """All labels, put together."""
        for label in LABELS:
            one = self._learn(label)
            if one is not None:
                self._learnt[label.name] = one
        unsure, errors, scores = self._judged(by_family=family == EVERYBODY)
        importance = self._importance()
        self._columns.far[importance < _CHECKED] = np.inf
        found = [self._learnt.get(name) for name in NAMES]
        spans = [_span(label, one) for label, one in zip(LABELS, found, strict=True)]
        return Model(
            family=family,
            runs=len(self._runs),
            newest_s=max(run.ended_s for run in self._runs),
            fitted_s=now_s,
            columns=self._columns,
            laws=_laws(found, self._columns, self._pairs),
            forest=flat([one.trees if one else () for one in found], len(self._columns.centre)),
            derived=np.array([one is not None and one.derived for one in found]),
            known=np.array([one is not None for one in found]),
            low=np.array([low for low, _ in spans]),
            high=np.array([high for _, high in spans]),
            unsure=unsure,
            errors=errors,
            importance=importance,
            gpu_counts=tuple(sorted({run.gpus for run in self._runs if run.minibatch_ms})),
            scores=scores,
        )

    def _learn(self, label: Label) -> _Learnt | None:
        """By itself or from others, whichever is better on what was not seen."""
        measured = np.array([_number(label.measured(run)) for run in self._runs])
        there = np.isfinite(measured)
        if label.zero_alone:
            there &= measured > 0
        where = np.flatnonzero(there)
        groups = _groups(self._groups[where].tolist())
        if len(where) < _FEWEST_RUNS or groups.max() + 1 < _FEWEST_GROUPS:
            return None
        ways = [self._by_law(label, where, measured[where])]
        if label.follows and all(part in self._learnt for part in label.parts):
            ways += self._from_parts(label, where, measured[where])
        return min(
            ways, key=lambda one: float(np.mean(np.clip(one.unseen - one.wanted, -2, 2) ** 2))
        )

    def _by_law(self, label: Label, where: Whole, measured: Array) -> _Learnt:
        rows = Row(*(part[where] for part in self._rows))
        wanted = label.bent(measured)
        groups, folds = (
            _groups(self._groups[where].tolist()),
            _refolded(self._folds[where], self._groups[where]),
        )
        first = grow(rows.scaled, wanted, groups, self._recipe.quick())
        law = law_of(rows, label.unbent(wanted), folds, self._choice(label, first.importance))
        power, straight = self._power(label, rows.scaled, wanted, folds)
        grown = label.bent(law.unseen)
        blend = blended(grown, straight, wanted)
        smooth = blend * grown + (1.0 - blend) * straight
        trees = grow(rows.scaled, wanted - smooth, groups, self._recipe)
        weight, unseen = _added(smooth, trees.unseen, wanted)
        return _Learnt(
            *(law.exponents, law.gates, law.weights, power, blend),
            trees=[one.times(weight) for one in trees.trees] if weight else (),
            derived=False,
            where=where,
            wanted=wanted,
            unseen=unseen,
            apart=np.abs(grown - straight),
            importance=first.importance,
        )

    def _power(
        self, label: Label, table: Array, wanted: Array, folds: Whole
    ) -> tuple[Array, Array]:
        """The straight and the bent power law, mixed: weights of all columns and pairs."""
        width, pairs = table.shape[1], self._pairs
        sizes = np.array([not self._no_size(label, name) for name in self._columns.names])
        mine = np.flatnonzero(sizes[pairs].all(axis=1))
        line, straight = power_law(table[:, sizes], wanted, folds)
        power = np.zeros(1 + width + len(pairs))
        power[0], power[1 : 1 + width][sizes] = line[0], line[1:]
        if len(mine):
            both = np.concatenate((np.flatnonzero(sizes), width + mine))
            bent, unseen = power_law(curved(table, pairs)[:, both], wanted, folds)
            weights = np.zeros_like(power)
            weights[0], weights[1 + both] = bent[0], bent[1:]
            weights[1 + width :] *= BENT
            part = blended(unseen, straight, wanted)
            power = part * weights + (1.0 - part) * power
            straight = part * unseen + (1.0 - part) * straight
        return power, straight

    def _no_size(self, label: Label, name: str) -> bool:
        """Whether a column cannot matter for a label, by its name."""
        return bool(label.ignores.search(name))

    def _from_parts(self, label: Label, where: Whole, measured: Array) -> list[_Learnt]:
        """What follows from the parts that are learnt; nothing if they are of other runs."""
        assert label.follows is not None  # noqa: S101 (its caller looked)
        values: dict[str, Array] = {}
        both = where
        for name in label.parts:
            both = np.intersect1d(both, self._learnt[name].where)
        if len(both) < len(where):
            return []
        for name in label.parts:
            part = self._learnt[name]
            said = np.full(len(self._runs), np.nan)
            said[part.where] = LABELS[NAMES.index(name)].unbent(part.unseen)
            values[name] = said[where]
        wanted = label.bent(measured)
        smooth = label.bent(label.follows(values))
        rows, groups = self._rows.scaled[where], _groups(self._groups[where].tolist())
        trees = grow(rows, wanted - smooth, groups, self._recipe)
        weight, unseen = _added(smooth, trees.unseen, wanted)
        numbers = len(self._columns.numbers)
        return [
            _Learnt(
                *(np.zeros((0, numbers)), np.zeros((0, 2), dtype=np.int32), np.zeros(0)),
                *(np.zeros(1 + len(self._columns.names) + len(self._pairs)), 0.0),
                trees=[one.times(weight) for one in trees.trees] if weight else (),
                derived=True,
                where=where,
                wanted=wanted,
                unseen=unseen,
                apart=np.zeros(len(unseen)),
                importance=trees.importance,
            )
        ]

    def _choice(self, label: Label, importance: Array) -> Choice:
        """The numbers and gates that matter most make products."""
        columns = self._columns
        numbers = len(columns.numbers)
        by_weight = [
            int(at)
            for at in np.argsort(-importance, kind="stable")
            if not self._no_size(label, columns.names[at])
        ]
        # What somebody passes to a program matters rather than what is asked of Slurm.
        chosen = [at for at in by_weight if at < numbers and not _asked(columns.names[at])]
        chosen = chosen[:_MOST_NUMBERS]
        several = np.ptp(self._rows.logs[:, 0]) > 0
        if several and 0 not in chosen:
            chosen = [*chosen[: _MOST_NUMBERS - 1], 0]
        flags = [
            at - numbers for at in by_weight if at >= numbers and not _asked(columns.names[at])
        ]
        flags = flags[:_MOST_FLAGS]
        names = [*columns.told, *(name for name, _ in columns.words)]
        every = len(names)
        gates = [(2 + at, names[at]) for at in flags]
        gates += [(2 + every + at, names[at]) for at in flags if names.count(names[at]) == 1]
        gates += [(2 + 2 * every + at, columns.names[at]) for at in chosen if self._counts(at)]
        if several and not label.each:
            gates.append((1, "ring"))
        pairs = [
            (a, b)
            for at, (a, one) in enumerate(gates)
            for b, other in gates[at + 1 :]
            if one != other
        ]
        below = {at for at in chosen if label.shrinks_with.search(columns.names[at])}
        opened = [(0, 0), *((gate, 0) for gate, _ in gates), *pairs]
        return Choice(chosen, frozenset({0, *below}), opened, label.factors, label.each)

    def _counts(self, at: int) -> bool:
        """Whether a number counts layers or the like: whole, from 1 or 2 on, never many."""
        less_one = self._rows.gates[:, at - len(self._columns.numbers)]
        return (
            at > 0
            and bool((less_one == np.round(less_one)).all())
            and less_one.min() <= 1
            and less_one.max() < _MOST_LAYERS
            and self._columns.numbers[at].floor >= _LEAST_LAYERS / 2
        )

    def _judged(self, *, by_family: bool) -> tuple[Array, Array, dict[str, Score]]:
        """How unsure each label is, quantiles of the errors over that, and scores."""
        unsure = np.full(len(LABELS), _SUREST)
        errors = np.zeros((len(LABELS), len(QUANTILES)))
        scores: dict[str, Score] = {}
        ended_s = np.array([run.ended_s for run in self._runs])
        for at, label in enumerate(LABELS):
            one = self._learnt.get(label.name)
            if one is None:
                continue
            unsure[at] = max(_SUREST, float(np.median(np.abs(one.wanted - one.unseen))))
            off = (one.wanted - one.unseen) / (unsure[at] + one.apart)
            parts = [off]
            if by_family:  # what is safe must be so for every family, not for most runs
                parts = [
                    off[self._groups[one.where] == group] for group in range(self._groups.max() + 1)
                ]
            for which, quantile in enumerate(QUANTILES):
                each = [quantile_of(part, quantile) for part in parts if len(part)]
                errors[at, which] = (max if quantile > 0.5 else min)(each)  # noqa: PLR2004
            scores[label.name] = score_of(
                label, one.wanted, one.unseen, ended_s[one.where], by_family=by_family
            )
        return unsure, errors, scores

    def _importance(self) -> Array:
        """Of each column for memory and time, in the mean."""
        told = [self._learnt[name].importance for name in NAMES if name in self._learnt]
        wanted = [
            self._learnt[name].importance
            for name in ("gpu_memory_mib", "minibatch_ms", "run_s")
            if name in self._learnt and not self._learnt[name].derived
        ]
        mean: Array = np.mean(wanted or told, axis=0)
        return mean


def _leash(one: _Learnt) -> float:
    """As far as on any run, times the odds of the sum of products."""
    return float(one.apart.max()) * one.blend / (1.0 - one.blend)


def _pairs(columns: Columns, runs: int) -> NDArray[np.int32]:
    """Of the columns that are told to the program; fewer where there are few runs."""
    ours = [at for at, name in enumerate(columns.names) if not _asked(name)][:_MOST_PAIRED]
    found = list(combinations_with_replacement(ours, 2)) if runs >= _RUNS_FOR_PAIRS else []
    return np.array(found, dtype=np.int32).reshape(-1, 2)


def _asked(name: str) -> bool:
    return name.startswith(("ask.", "env.", "launcher"))


def _added(smooth: Array, trees: Array, wanted: Array) -> tuple[float, Array]:
    """So much of what the trees say as is best on what they have not seen; and the sum."""
    left = wanted - smooth
    weight = float(np.clip(left @ trees / max(float(trees @ trees), 1e-12), 0.0, 1.0))
    weight = weight if weight > 0.05 else 0.0  # noqa: PLR2004 (not worth a walk through the trees)
    return weight, smooth + weight * trees


def _span(label: Label, one: _Learnt | None) -> tuple[float, float]:
    if one is None:
        return -1.0, 1.0
    wider = _WIDER[label.scale]
    above = _HARDLY if label.bounded else wider
    return float(one.wanted.min() - wider), float(one.wanted.max() + above)


def _laws(found: Sequence[_Learnt | None], columns: Columns, pairs: NDArray[np.int32]) -> Laws:
    kept = [one for one in found if one is not None]
    counts = [len(one.weights) if one else 0 for one in found]
    nothing = np.zeros(1 + len(columns.names) + len(pairs))
    return Laws(
        exponents=np.concatenate([one.exponents for one in kept]).reshape(-1, len(columns.numbers)),
        gates=np.concatenate([one.gates for one in kept]).reshape(-1, 2).astype(np.int32),
        weights=np.concatenate([one.weights for one in kept]),
        first=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
        pairs=pairs,
        power=np.array([one.power if one else nothing for one in found]),
        blend=np.array([one.blend if one else 0.0 for one in found]),
        leash=np.array([_leash(one) if one else 0.0 for one in found]),
    )


def _groups(keys: Sequence[Hashable]) -> Whole:
    """Numbers for equal keys, in the order of their first."""
    numbers: Mapping[Hashable, int] = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    return np.array([numbers[key] for key in keys], dtype=np.intp)


def _refolded(folds: Whole, groups: Whole) -> Whole:
    """Without gaps; drawn anew where the few runs of a label are all in one."""
    if folds.min() == folds.max():
        folds = _groups(groups.tolist()) % _FOLDS
    return np.unique(folds, return_inverse=True)[1].astype(np.intp)


def _number(value: float | None) -> float:
    return np.nan if value is None or not np.isfinite(value) or value < 0 else float(value)
