# SPDX-License-Identifier: Apache-2.0
"""Every policy on a real trace, at 70 % and at 100 % offered load.

`make -s bench NAME=trace`. The first 20,000 jobs of the Philly trace in `../shared/data`, on
clusters sized so that all their work would fill them to 70 % or 100 % from the first submission to
the last. The load comes in waves: in the second half of the time more is asked for than there is.
docs/simulator.md has the model and its assumptions. ARGS="--jobs 2000" for a short run.

The last line printed is one JSON object, with the figures of each load under `70` and `100`:

* `completion_vs_srtf_oracle`: our mean completion over that of the policy that knows all times
  (goal: at most 1.5). `completion_gain_vs_tiresias`: how many times longer Tiresias takes (1.3).
* `best_rival`, `gain_vs_best_rival`: the best of the policies that do not know the future.
* `p99_vs_backfill`: 99th percentile of completion over that of backfill (at most 1).
* `owner_slowdown_mean_pct`: of guaranteed jobs while they own GPUs, by the node machine (1).
* `first_minibatches_sooner_pct`: than with backfill, to the first 100 mini-batches (77).
* `cpu_s_worst`: of one policy on one core (300).
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slipstream.simulator import policies, simulate
from slipstream.simulator.simulate import Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.simulator.report import Report

DATA: Final = Path("../shared/data")
LOADS_PCT: Final = (70, 100)


def main() -> None:
    """Both loads, all policies, on all cores; the figures come last."""
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=20_000)
    options.add_argument("--data", type=Path, default=DATA)
    options.add_argument("--only", action="append", choices=policies.NAMES)
    given = options.parse_args()
    trace = given.data / simulate.PHILLY
    if not trace.is_file():
        print(f"skipped: no data in {given.data}", file=sys.stderr)
        print(json.dumps({"skipped": "no data"}))
        return
    settings = [
        Setting(data=given.data, trace=trace, policy=name, most_jobs=given.jobs, load_pct=load)
        for load in LOADS_PCT
        for name in given.only or policies.NAMES
    ]
    found: dict[float, dict[str, Report]] = {load: {} for load in LOADS_PCT}
    for setting, report in simulate.compare(settings):
        found[setting.load_pct][report.policy] = report
        _tell(setting, report)
    if given.only:
        return
    print(json.dumps({str(load): _figures(found[load]) for load in LOADS_PCT}))


def _figures(reports: Mapping[str, Report]) -> dict[str, Any]:
    ours, oracle = reports[policies.OURS], reports[policies.ORACLE]
    rivals = [one for one in reports.values() if one not in (ours, oracle)]
    best = min(rivals, key=lambda one: one.completion_mean_s)
    backfill = reports["backfill"]
    sooner = 1.0 - ours.first_minibatches_mean_s / backfill.first_minibatches_mean_s
    mean_s = ours.completion_mean_s
    return {
        "gpus": ours.gpus,
        "completion_vs_srtf_oracle": round(mean_s / oracle.completion_mean_s, 3),
        "completion_gain_vs_tiresias": round(reports["tiresias"].completion_mean_s / mean_s, 2),
        "best_rival": best.policy,
        "gain_vs_best_rival": round(best.completion_mean_s / mean_s, 2),
        "p99_vs_backfill": round(ours.completion_p99_s / backfill.completion_p99_s, 3),
        "owner_slowdown_mean_pct": round(ours.owner_slowdown_mean_pct, 2),
        "first_minibatches_sooner_pct": round(100.0 * sooner, 1),
        "cpu_s_worst": round(max(one.cpu_s for one in reports.values())),
        "completion_mean_s": {name: round(one.completion_mean_s) for name, one in reports.items()},
        "completion_p99_s": {name: round(one.completion_p99_s) for name, one in reports.items()},
    }


def _tell(setting: Setting, one: Report) -> None:
    parts = (
        f"{setting.load_pct:.0f} % {one.policy}: mean {one.completion_mean_s:,.0f} s",
        f"p99 {one.completion_p99_s:,.0f} s",
        f"first 100 mini-batches {one.first_minibatches_mean_s:,.0f} s",
        f"owners slowed {one.owner_slowdown_mean_pct:.2f} %",
        f"{one.moves} moves, {one.parks} parks, {one.cpu_s:.0f} s of a core",
    )
    print(", ".join(parts), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
