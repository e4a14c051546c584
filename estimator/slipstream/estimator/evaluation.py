# SPDX-License-Identifier: Apache-2.0
"""How good the models are on hyper-parameters they have not seen: whole configurations held out.

Needs scikit-learn; for `slipstream estimator evaluate` and the benchmark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from slipstream.estimator.columns import configuration
from slipstream.estimator.fitting import TooFewError, fit
from slipstream.estimator.labels import AT, LABELS
from slipstream.estimator.predicting import said_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from slipstream.estimator.model import Model
    from slipstream.estimator.runs import Run

    Array = NDArray[np.float64]

HELD_OUT: Final = 0.2
_TINY: Final = 1e-3
_MARGIN: Final = 1.1
"""Of the plain rule for jobs that a model says nothing of (families.py)."""


@dataclass(slots=True)
class Outcome:
    """Measured and said, of the runs that were held out."""

    runs: list[Run] = field(default_factory=list)
    measured: dict[str, list[float]] = field(default_factory=dict)
    said: dict[str, list[float]] = field(default_factory=dict)
    families: dict[str, list[str]] = field(default_factory=dict)
    """Whose they are."""
    bounds_mib: list[float] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)
    draws: list[tuple[dict[str, Model], list[Run]]] = field(default_factory=list)
    """For each draw the models and the runs they have not seen."""
    unlike: int = 0
    """Runs that a model would not have spoken of."""

    def r2(self, label: str) -> float | None:
        """How much of the variance is explained; None if there is nothing to explain."""
        return r2_of(np.array(self.measured.get(label, ())), np.array(self.said.get(label, ())))

    def r2_where_any(self, name: str) -> float | None:
        """Where a label is only of several GPUs, of those: that one sends nothing is no feat."""
        if not LABELS[AT[name]].zero_alone:
            return self.r2(name)
        measured, said = np.array(self.measured.get(name, ())), np.array(self.said.get(name, ()))
        return r2_of(measured[measured > 0], said[measured > 0])

    def median_error(self, label: str) -> float | None:
        """0.1 is 10 %."""
        measured, said = np.array(self.measured.get(label, ())), np.array(self.said.get(label, ()))
        there = (measured > 0) & (said > 0)
        if not there.any():
            return None
        return float(np.expm1(np.median(np.abs(np.log(said[there] / measured[there])))))

    @property
    def under_estimated_pct(self) -> float:
        """Runs that took more GPU memory than their bound."""
        over = np.array(self.memory_mib) > np.array(self.bounds_mib)
        return 100.0 * float(over.mean()) if over.size else 0.0

    @property
    def median_over_estimate_ratio(self) -> float:
        """The bound over what was taken."""
        ratios = np.array(self.bounds_mib) / np.maximum(_TINY, np.array(self.memory_mib))
        return float(np.median(ratios)) if ratios.size else 0.0


def r2_of(measured: Array, said: Array) -> float | None:
    """1 is perfect, 0 as good as the mean."""
    variance = float(((measured - measured.mean()) ** 2).sum()) if measured.size else 0.0
    if variance == 0:
        return None
    return 1.0 - float(((measured - said) ** 2).sum()) / variance


def splits(runs: Sequence[Run], seeds: Sequence[int]) -> Iterator[tuple[list[Run], list[Run]]]:
    """For each seed, runs to learn from and runs of configurations that none of those has."""
    groups = [(run.family, configuration(run)) for run in runs]
    every = list(dict.fromkeys(groups))
    for seed in seeds:
        order = np.random.default_rng(seed).permutation(len(every))
        out = {every[at] for at in order[: max(1, round(HELD_OUT * len(every)))]}
        yield (
            [run for run, group in zip(runs, groups, strict=True) if group not in out],
            [run for run, group in zip(runs, groups, strict=True) if group in out],
        )


def held_out(
    runs: Sequence[Run],
    seeds: Sequence[int],
    told: Callable[[str], None] = lambda _line: None,
) -> Outcome:
    """Fit without some configurations and compare; over several draws of them."""
    outcome = Outcome()
    alone = [run for run in runs if run.alone]
    for learnt, unseen in splits(alone, seeds):
        models = fitted(learnt)
        outcome.draws.append((models, unseen))
        told(f"{len(models)} models of {len(learnt)} runs, {len(unseen)} runs held out")
        for run in unseen:
            if run.family in models:
                _compare(outcome, models[run.family], run, learnt)
    return outcome


def fitted(runs: Sequence[Run]) -> dict[str, Model]:
    """A model for each family that has enough runs."""
    models = {}
    newest = sorted(runs, key=lambda run: (-run.ended_s, run.key))
    for family in sorted({run.family for run in runs}):
        try:
            models[family] = fit([run for run in newest if run.family == family], family, 0.0)
        except TooFewError:
            continue
    return models


def _compare(outcome: Outcome, model: Model, run: Run, learnt: Sequence[Run]) -> None:
    outcome.runs.append(run)
    row = model.columns.row(run.gpus, run.numbers, run.categories)
    bent = model.bent(row)  # also of what it would not speak of
    for at, label in enumerate(LABELS):
        measured = label.measured(run)
        value = label.unbend(bent[at]) if model.known[at] else None
        if label.zero_alone and run.gpus == 1:
            value = 0.0
        if measured is not None and value is not None:
            outcome.measured.setdefault(label.name, []).append(measured)
            outcome.said.setdefault(label.name, []).append(value)
            outcome.families.setdefault(label.name, []).append(run.family)
    if run.gpu_memory_mib is not None:
        outcome.memory_mib.append(run.gpu_memory_mib)
        outcome.bounds_mib.append(_bound_mib(outcome, model, run, learnt))


def _bound_mib(outcome: Outcome, model: Model, run: Run, learnt: Sequence[Run]) -> float:
    """As a job gets it when it is submitted, but not rounded up to a MiB."""
    said = said_of(model, run.gpus, run.numbers, run.categories)
    bound = said.safe("gpu_memory_mib") if said else None
    if bound is not None:
        return bound
    outcome.unlike += 1
    family = [one.gpu_memory_mib or 0 for one in learnt if one.family == run.family]
    return _MARGIN * max(family)
