# SPDX-License-Identifier: Apache-2.0
"""From a model and a job's features to an estimate. Pure: all that the submit path waits for."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Final

from slipstream.core.estimate import Basis, Estimate
from slipstream.estimator.defaults import safe_default
from slipstream.estimator.gpu_count import smallest_good
from slipstream.estimator.labels import AT
from slipstream.estimator.model import EVERYBODY
from slipstream.estimator.values import category_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.estimator.features import Features
    from slipstream.estimator.model import Model, Said

_ALL_PCT: Final = 100.0
_ALMOST: Final = 0.01


def estimate_of(model: Model, features: Features) -> Estimate | None:
    """What a model says of a job; None if the job is unlike everything it has learnt from."""
    categories = _categories(model, features)
    asked = int(features.numbers.get("ask.gpus", 0))
    gpus = asked or best_count(model, features.numbers, categories)
    said = said_of(model, gpus, features.numbers, categories)
    return None if said is None else _estimate(said, features, gpus)


def said_of(
    model: Model, gpus: int, numbers: Mapping[str, float], categories: Mapping[str, int]
) -> Said | None:
    """All labels of a job on so many GPUs; None if it is unlike what was learnt from."""
    row = model.columns.row(gpus, numbers, categories)
    growth = model.growth(numbers)
    return model.said(row, growth) if model.is_like(categories, row, growth) else None


def best_count(model: Model, numbers: Mapping[str, float], categories: Mapping[str, int]) -> int:
    """The number of GPUs for a job that asks for none."""
    if len(model.gpu_counts) < 2 or not model.known[AT["minibatch_ms"]]:  # noqa: PLR2004
        return model.gpu_counts[0] if model.gpu_counts else 1
    times = {}
    for gpus in model.gpu_counts:
        said = model.said(model.columns.row(gpus, numbers, categories))
        time_ms = said.middle("minibatch_ms")
        if time_ms is not None:
            times[gpus] = time_ms / gpus
    return smallest_good(times)


def _categories(model: Model, features: Features) -> dict[str, int]:
    """Only of the words that the model looks at."""
    words = features.words
    return {name: category_of(words[name]) for name in model.words_used if name in words}


def _estimate(said: Said, features: Features, gpus: int) -> Estimate:
    default = safe_default(features)
    memory_mib, host_mib = said.safe("gpu_memory_mib"), said.safe("host_memory_mib")
    use_pct, cpus = said.middle("gpu_use_pct"), said.middle("cpus")
    network_mbps = said.middle("network_mbps") if gpus > 1 else 0.0
    low_s, run_s, high_s = said.early("run_s"), said.middle("run_s"), said.late("run_s")
    limit_s = default.run_high_s
    if high_s is None or run_s is None:
        high_s = limit_s
    else:
        high_s = max(run_s, high_s if limit_s is None else min(high_s, limit_s))
    model = said.model
    return Estimate(
        basis=Basis.GLOBAL if model.family == EVERYBODY else Basis.FAMILY,
        runs=model.runs,
        gpus=gpus,
        gpu_memory_mib=None if memory_mib is None else ceil(memory_mib),
        gpu_use_pct=default.gpu_use_pct if use_pct is None else min(use_pct, _ALL_PCT),
        gpu_use_spread_pct=said.middle("gpu_use_spread_pct") or default.gpu_use_spread_pct,
        network_mbps=default.network_mbps if network_mbps is None else network_mbps,
        cpus=default.cpus if cpus is None else max(1, ceil(cpus - _ALMOST)),
        host_memory_mib=default.host_memory_mib if host_mib is None else ceil(host_mib),
        run_s=run_s,
        run_low_s=min(low_s or 0.0, run_s or 0.0),
        run_high_s=high_s,
        launch_s=said.middle("launch_s"),
        train_s=said.middle("train_s"),
        save_s=said.middle("save_s"),
        minibatch_ms=said.middle("minibatch_ms"),
        shared_slowdown=None if use_pct is None else model.sharing.slowdown(use_pct),
    )
