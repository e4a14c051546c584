# SPDX-License-Identifier: Apache-2.0
"""Why an estimate is what it is: the runs it is like, and the features that matter. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.estimator.features import Features
    from slipstream.estimator.model import Model
    from slipstream.estimator.runs import Run


class Like(NamedTuple):
    """A run and how far it is from the job: 0 is the same in all that matters."""

    run: Run
    distance: float


class Matter(NamedTuple):
    """A feature, what the job has of it, and its part in what the model says."""

    name: str
    value: str
    share_pct: float


def most_like(model: Model, features: Features, runs: Sequence[Run], most: int = 5) -> list[Like]:
    """The nearest runs, by the columns that matter. The key settles ties."""
    if not runs:
        return []
    gpus = max(1, int(features.numbers.get("ask.gpus", 1)))
    row = model.columns.row(gpus, features.numbers, features.categories)
    off = model.columns.table(runs).scaled - row.scaled
    distances = np.sqrt((off**2 * model.importance).sum(axis=1))
    found = [Like(run, round(float(far), 3)) for run, far in zip(runs, distances, strict=True)]
    return sorted(found, key=lambda one: (one.distance, one.run.key))[:most]


def what_matters(model: Model, features: Features, most: int = 8) -> list[Matter]:
    """The features that weigh most in memory and time."""
    shares: dict[str, float] = {}
    for name, weight in zip(model.columns.names, model.importance, strict=True):
        plain = name.split("=")[0].rstrip("?")
        shares[plain] = shares.get(plain, 0.0) + float(weight)
    total = sum(shares.values()) or 1.0
    ordered = sorted(shares, key=lambda name: (-shares[name], name))[:most]
    return [
        Matter(name, _value(name, features), round(100 * shares[name] / total, 1))
        for name in ordered
        if shares[name] > 0
    ]


def _value(name: str, features: Features) -> str:
    if name == "gpus":
        return f"{features.numbers.get('ask.gpus', 0):g}"
    if name in features.numbers:
        return f"{features.numbers[name]:g}"
    return repr(str(features.words[name])) if name in features.words else "not told"
