# SPDX-License-Identifier: Apache-2.0
"""How good and how quick estimates are, on our own table of measured trainings.

`make -s bench NAME=estimator`. Learnt from four fifths of the configurations in
estimator/data/sweep.csv, asked about the other fifth: hyper-parameters that were never seen, not
rows of a configuration that was. Several draws, pooled. On the same draws: Liquid's forest as it
is, linear regression, gradient boosting and nearest neighbours, each per family as we are; and the
habit of asking for the whole GPU.

The last line printed is one JSON object:

* `r2_memory`, `r2_minibatch_time`, `r2_use`: of what is said against what was measured; and
  `r2_bandwidth`, over runs on several nodes only (one node sends nothing, and that is easy to know:
  `r2_bandwidth_all` has these runs, too). `baselines` has the same of the others.
* `under_estimated_memory_pct`: held-out runs that took more GPU memory than the safe bound;
  `median_over_estimate_ratio`: the bound over what was taken.
* `fresh_draws`: the same figures for other draws, which were not looked at while the models were
  made what they are.
* `gpu_count_regret_pct`: how much longer (too few GPUs) or how much more GPU time (too many) the
  chosen number takes than the best by the same rule on measured times, in the mean; beside it
  `always_one_regret_pct`.
* `predict_us_p50`, `predict_us_p99`: from features to an estimate, all labels of one job.
* `speedup_vs_sklearn`: the same forests, one row, by scikit-learn and by us; `max_difference` what
  they differ by at most. `numpy_us_p50` is our way without native code.
* `retrain_s`: one family of 10,000 runs (the table's, each varied a little).
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sklearn.ensemble import GradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import LinearRegression
from sklearn.neighbors import KNeighborsRegressor

from slipstream.estimator.columns import columns_of, configuration
from slipstream.estimator.evaluation import Outcome, held_out, splits
from slipstream.estimator.features import Features
from slipstream.estimator.fitting import fit
from slipstream.estimator.forest import _Walker
from slipstream.estimator.gpu_count import smallest_good
from slipstream.estimator.labels import AT, LABELS
from slipstream.estimator.predicting import best_count, estimate_of
from slipstream.estimator.runs_csv import read_csv
from slipstream.estimator.trees import flat, taken_apart
from slipstream.estimator.values import category_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from slipstream.estimator.model import Model
    from slipstream.estimator.runs import Run

TABLE: Final = Path(__file__).parents[1] / "estimator" / "data" / "sweep.csv"
SEEDS: Final = range(5)
FRESH_SEEDS: Final = range(300, 305)
"""Draws that nobody looked at while the models were made."""
GPU_MIB: Final = 4096.0
"""Of the sweep's GPUs: what one who asks for the whole GPU keeps from others."""
ROWS: Final = 10_000
ASKS: Final = 5_000
WORDS: Final[dict[int, str]] = {}
FIGURES: Final = {
    "r2_memory": "gpu_memory_mib",
    "r2_minibatch_time": "minibatch_ms",
    "r2_bandwidth": "network_mbps",
    "r2_use": "gpu_use_pct",
}
BASELINES: Final[dict[str, Callable[[], Any]]] = {
    "liquid_forest": lambda: RandomForestRegressor(
        70, max_depth=13, min_samples_split=10, min_samples_leaf=5, random_state=0
    ),
    "linear_regression": LinearRegression,
    "gradient_boosting": lambda: GradientBoostingRegressor(random_state=0),
    "nearest_neighbours": lambda: KNeighborsRegressor(5, weights="distance"),
}


def main() -> None:
    """Measure everything, telling what goes on; the figures come last."""
    warnings.filterwarnings("ignore")
    with TABLE.open(encoding="utf-8") as lines:
        runs = [run for run in read_csv(lines) if run.alone]
    say(f"{len(runs)} runs, {len({configuration(run) for run in runs})} configurations")
    outcome = held_out(runs, SEEDS, say)
    figures: dict[str, Any] = {
        "runs": len(runs),
        **quality(outcome),
        "whole_gpu_over_estimate_ratio": rounded(
            statistics.median(GPU_MIB / one for one in outcome.memory_mib)
        ),
        "fresh_draws": quality(held_out(runs, FRESH_SEEDS, say)),
        "baselines": baselines(runs),
        **regret(outcome),
        **speed(runs),
    }
    print(json.dumps(figures))


def quality(outcome: Outcome) -> dict[str, float | None]:
    """How good the estimates of the runs held out are."""
    return {
        "held_out": len(outcome.runs),
        **{name: rounded(outcome.r2_where_any(label)) for name, label in FIGURES.items()},
        "bandwidth_runs": sum(value > 0 for value in outcome.measured.get("network_mbps", ())),
        "r2_bandwidth_all": rounded(outcome.r2("network_mbps")),
        "under_estimated_memory_pct": rounded(outcome.under_estimated_pct),
        "median_over_estimate_ratio": rounded(outcome.median_over_estimate_ratio),
        "not_spoken_of_pct": rounded(100 * outcome.unlike / max(1, len(outcome.runs))),
    }


def baselines(runs: Sequence[Run]) -> dict[str, dict[str, float | None]]:
    """The same figures for others: per family, on the same draws and columns."""
    found: dict[str, dict[str, float | None]] = {}
    for name, make in BASELINES.items():
        say(f"beside it: {name}")
        pooled = Outcome()
        for learnt, unseen in splits(runs, SEEDS):
            for family in sorted({run.family for run in unseen}):
                ask(
                    pooled,
                    make,
                    *([run for run in part if run.family == family] for part in (learnt, unseen)),
                )
        found[name] = {
            figure: rounded(pooled.r2_where_any(label)) for figure, label in FIGURES.items()
        }
    return found


def ask(pooled: Outcome, make: Callable[[], Any], learnt: list[Run], unseen: list[Run]) -> None:
    """One baseline, one family, one draw: fitted to the values as they are."""
    columns = columns_of(learnt)
    table, asked = columns.table(learnt).scaled, columns.table(unseen).scaled
    for label in FIGURES.values():
        measured = LABELS[AT[label]].measured
        rows = [
            (row, value)
            for row, run in zip(table, learnt, strict=True)
            if (value := measured(run)) is not None
        ]
        wanted = [
            (row, value)
            for row, run in zip(asked, unseen, strict=True)
            if (value := measured(run)) is not None
        ]
        if len(rows) < len(SEEDS) or not wanted:
            continue
        model = make().fit(np.array([row for row, _ in rows]), np.array([one for _, one in rows]))
        said = model.predict(np.array([row for row, _ in wanted]))
        pooled.measured.setdefault(label, []).extend(value for _, value in wanted)
        pooled.said.setdefault(label, []).extend(said.tolist())


def regret(outcome: Outcome) -> dict[str, float | None]:
    """What the chosen number of GPUs costs beyond the best choice."""
    ours: list[float] = []
    always_one: list[float] = []
    for models, unseen in outcome.draws:
        by_configuration: dict[object, dict[int, Run]] = {}
        for run in unseen:
            by_configuration.setdefault((run.family, configuration(run)), {})[run.gpus] = run
        for counts in by_configuration.values():
            times = {
                gpus: run.minibatch_ms / gpus for gpus, run in counts.items() if run.minibatch_ms
            }
            one = next(iter(counts.values()))
            if len(times) < 2 or 1 not in times or one.family not in models:  # noqa: PLR2004
                continue
            chosen = best_count(models[one.family], one.numbers, one.categories)
            nearest = min(times, key=lambda gpus: (abs(gpus - chosen), gpus))
            ours.append(cost(times, nearest))
            always_one.append(cost(times, 1))
    return {
        "gpu_count_choices": len(ours),
        "gpu_count_regret_pct": rounded(100 * statistics.fmean(ours)) if ours else None,
        "always_one_regret_pct": rounded(100 * statistics.fmean(always_one)) if ours else None,
    }


def cost(times: dict[int, float], chosen: int) -> float:
    """Longer if too few, more GPU time if too many."""
    best = smallest_good(times)
    if chosen < best:
        return times[chosen] / times[best] - 1.0
    return chosen * times[chosen] / (best * times[best]) - 1.0


def speed(runs: Sequence[Run]) -> dict[str, float | None]:
    """Fitting 10,000 runs, asking what comes out, and scikit-learn asked the same."""
    many = varied([run for run in runs if run.family == runs[0].family])
    say(f"fitting {len(many)} runs")
    began_s = time.perf_counter()
    model = fit(many, many[0].family, 0.0)
    retrain_s = time.perf_counter() - began_s
    say(f"{retrain_s:.1f} s; {len(model.forest.roots)} trees, {len(model.forest.nodes)} nodes")
    asked = [features(run) for run in many[:: len(many) // 200]]
    answered = sum(estimate_of(model, job) is not None for job in asked)
    say(f"{answered} of {len(asked)} jobs are like what was learnt from")
    took_us = [timed_us(estimate_of, model, job) for job in asked * (ASKS // len(asked))]
    return {
        "predict_us_p50": rounded(float(np.percentile(took_us, 50))),
        "predict_us_p99": rounded(float(np.percentile(took_us, 99))),
        **against_sklearn(model, many[:2_000]),
        "retrain_s": rounded(retrain_s),
    }


def against_sklearn(model: Model, runs: Sequence[Run]) -> dict[str, float | None]:
    """The same forests asked row by row."""
    table = model.columns.table(runs).scaled
    forests = []
    for label in LABELS:
        values = np.array([label.measured(run) or 0.0 for run in runs])
        forest = RandomForestRegressor(
            70, max_depth=13, min_samples_split=10, min_samples_leaf=5, random_state=0
        )
        forests.append(forest.fit(table, label.bent(values)))
    ours = flat(
        [[taken_apart(tree) for tree in one.estimators_] for one in forests], table.shape[1]
    )
    walker = _Walker(ours)
    rows = table[:: len(table) // 50]
    theirs_us = [timed_us(predict_all, forests, row) for row in rows]
    native_us = [timed_us(ours.means, row) for row in [*rows] * 20]
    numpy_us = [timed_us(walker, row) for row in [*rows] * 20]
    worst = max(
        abs(float(one.predict(row[None])[0]) - said)
        for row in rows
        for way in (ours.means, walker)
        for one, said in zip(forests, way(row), strict=True)
    )
    return {
        "sklearn_us_p50": rounded(statistics.median(theirs_us)),
        "native_us_p50": rounded(statistics.median(native_us)),
        "numpy_us_p50": rounded(statistics.median(numpy_us)),
        "speedup_vs_sklearn": rounded(statistics.median(theirs_us) / statistics.median(native_us)),
        "max_difference": worst,
    }


def varied(runs: Sequence[Run]) -> list[Run]:
    """As many runs as a large family has: these, with sizes and measurements varied a little."""
    random = np.random.default_rng(0)
    found = []
    for number in range(ROWS):
        run = runs[number % len(runs)]
        factor = float(np.exp(random.normal(0.0, 0.1)))
        sizes = {
            name: max(1.0, round(value * np.exp(random.normal(0.0, 0.2)))) if value > 4 else value  # noqa: PLR2004
            for name, value in run.numbers.items()
            if name.startswith("arg.")
        }
        found.append(
            replace(
                run,
                key=f"{number}@1",
                ended_s=float(number),
                numbers={**run.numbers, **sizes},
                categories={name: spelled(word) for name, word in run.categories.items()},
                minibatch_ms=(run.minibatch_ms or 1.0) * factor,
                run_s=(run.run_s or 1.0) * factor,
                gpu_memory_mib=(run.gpu_memory_mib or 1.0) * factor,
            )
        )
    return found


def spelled(word: int) -> int:
    """The category of a word that stands for one which is only known by its category."""
    category = category_of(str(word))
    WORDS[category] = str(word)
    return category


def features(run: Run) -> Features:
    """As if it were submitted again. Words are gone from a history: numbers stand for them."""
    words = {name: WORDS[word] for name, word in run.categories.items()}
    return Features(family=run.family, numbers=dict(run.numbers), words=words)


def predict_all(forests: Sequence[Any], row: NDArray[np.float64]) -> list[float]:
    """As scikit-learn does it, label by label."""
    return [float(one.predict(row[None])[0]) for one in forests]


def timed_us(act: Callable[..., object], *arguments: object) -> float:
    """Of one call."""
    began_ns = time.perf_counter_ns()
    act(*arguments)
    return (time.perf_counter_ns() - began_ns) / 1e3


def rounded(value: float | None) -> float | None:
    """As exact as it is."""
    return None if value is None else round(value, 3)


def say(line: str) -> None:
    """What goes on."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
