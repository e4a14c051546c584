# SPDX-License-Identifier: Apache-2.0
"""What each rule of our policy is worth: every one switched off in turn on the Philly trace.

`make -s bench NAME=rules`. The setting is that of `bench trace`: the first 20,000 jobs, at 70 % and
at 100 % offered load; ARGS="--jobs 5000" for a shorter slice. With `grow-shrink` a tenth of the
jobs is elastic, for the trace says of none that it is. docs/policies.md has the table.

The last line printed is one JSON object: for each load and rule the change in percent that
switching it off makes, of completion (mean, 99th percentile), of the time to the first 100
mini-batches and of the guaranteed jobs' queueing; more than 0 is what the rule is worth.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.core.cluster.rules import Rule
from slipstream.simulator import simulate
from slipstream.simulator.simulate import Setting
from slipstream.simulator.workload import Mix

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.simulator.report import Report

DATA: Final = Path(os.environ.get("SLIPSTREAM_DATA", "../shared/data"))
LOADS_PCT: Final = (70.0, 100.0)
"""Half an hour of one core for both; `--load 100` for one of them."""
ELASTIC: Final = Mix(elastic_pct=10.0)
FIGURES: Final = (
    "completion_mean_s",
    "completion_p99_s",
    "first_minibatches_mean_s",
    "guaranteed_queueing_mean_s",
)


def main() -> None:
    """Each load with all rules, then without each; the changes come last."""
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=20_000)
    options.add_argument("--load", type=float, action="append", dest="loads_pct")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--data", type=Path, default=DATA)
    options.add_argument("--rule", action="append", choices=[str(rule) for rule in Rule])
    given = options.parse_args()
    trace = given.data / simulate.PHILLY
    if not trace.is_file():
        print(f"skipped: no data in {given.data}", file=sys.stderr)
        print(json.dumps({"skipped": "no data"}))
        return
    whole = Setting(data=given.data, trace=trace, most_jobs=given.jobs, seed=given.seed)
    rules = [Rule(name) for name in given.rule or Rule]
    found: dict[Setting, Report] = {}
    loads_pct = given.loads_pct or LOADS_PCT
    for setting, report in simulate.compare(_settings(whole, rules, loads_pct)):
        found[setting] = report
        _tell(setting, report)
    changes = {f"{load:.0f}": _changes(whole, load, rules, found) for load in loads_pct}
    print(json.dumps({"jobs": given.jobs, "seed": given.seed, **changes}))


def _settings(whole: Setting, rules: list[Rule], loads_pct: Sequence[float]) -> list[Setting]:
    return [
        setting
        for load in loads_pct
        for setting in dict.fromkeys(
            one for rule in rules for one in _with_and_without(whole, load, rule)
        )
    ]


def _with_and_without(whole: Setting, load: float, rule: Rule) -> tuple[Setting, Setting]:
    mix = ELASTIC if rule is Rule.GROW_SHRINK else whole.mix
    base = replace(whole, load_pct=load, mix=mix)
    return base, replace(base, without=(rule,))


def _changes(
    whole: Setting, load: float, rules: list[Rule], found: dict[Setting, Report]
) -> dict[str, dict[str, float]]:
    changes = {}
    for rule in rules:
        with_it, without = (found[one] for one in _with_and_without(whole, load, rule))
        changes[str(rule)] = {
            f"{name.removesuffix('_s')}_pct": _more_pct(
                getattr(with_it, name), getattr(without, name)
            )
            for name in FIGURES
        }
    return changes


def _more_pct(with_it: float, without: float) -> float:
    return round(100.0 * (without / max(with_it, 1e-9) - 1.0), 1)


def _tell(setting: Setting, one: Report) -> None:
    elastic = ", a tenth elastic" if setting.mix.elastic_pct else ""
    parts = (
        f"{setting.load_pct:.0f} % without {', '.join(one.without) or 'nothing'}{elastic}",
        *(f"{name} {getattr(one, name):,.0f}" for name in FIGURES),
        f"queueing_worst_s {one.queueing_worst_s:,.0f}",
        f"owners slowed {one.owner_slowdown_mean_pct:.2f} %",
        f"fairness {one.fairness:.3f}, use {one.use_pct:.1f} %",
        f"{one.moves} moves, {one.parks} parks, {one.cpu_s:.0f} s of a core",
    )
    print(", ".join(parts), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
