# SPDX-License-Identifier: Apache-2.0
"""Every policy on a real trace, at 70 % and at 100 % offered load.

`make -s bench NAME=trace`. The first 20,000 jobs of the Philly trace in `../shared/data` (or in
$SLIPSTREAM_DATA), on clusters sized so that all their work would fill them to 70 % or 100 % from
the first submission to the last. The load comes in waves: in the second half of the time more is
asked for than there is. docs/simulator.md has the model and its assumptions. ARGS="--jobs 2000" for
a short run, "--seed 2" for another draw of what the trace does not tell (kinds of training and so
the GPUs' use, classes, errors of prediction), "--plots FOLDER" for a page and a picture per load.

The last line printed is one JSON object, with the figures of each load under `70` and `100`:

* `completion_vs_srtf_oracle`: our mean completion over that of the policy that knows all times
  (goal: at most 1.5). `completion_gain_vs_tiresias`: how many times longer Tiresias takes (1.3).
* `gain_vs`: the same for every policy that does not know the future (each above 1);
  `best_rival`, `gain_vs_best_rival`: the least of them.
* `p99_vs_backfill`: 99th percentile of completion over that of backfill (at most 1).
* `owner_slowdown_mean_pct`: of guaranteed jobs while they own GPUs, by the node machine (1).
* `first_minibatches_sooner_pct`: than with backfill, to the first 100 mini-batches (77).
* `cpu_s_worst`: of one policy on one core (300).
* `missed`: the goals that were not reached.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slipstream.simulator import html, names, simulate
from slipstream.simulator.simulate import Setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.simulator.report import Report

DATA: Final = Path(os.environ.get("SLIPSTREAM_DATA", "../shared/data"))
LOADS_PCT: Final = (70, 100)
AT_MOST: Final = {
    "completion_vs_srtf_oracle": 1.5,
    "p99_vs_backfill": 1.0,
    "owner_slowdown_mean_pct": 1.0,
    "cpu_s_worst": 300.0,
}
AT_LEAST: Final = {
    "completion_gain_vs_tiresias": 1.3,
    "gain_vs_best_rival": 1.0,
    "first_minibatches_sooner_pct": 77.0,
}


def main() -> None:
    """Both loads, all policies, on all cores; the figures come last."""
    options = argparse.ArgumentParser()
    options.add_argument("--jobs", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--data", type=Path, default=DATA)
    options.add_argument("--plots", type=Path)
    options.add_argument("--only", action="append", choices=names.NAMES)
    given = options.parse_args()
    trace = given.data / simulate.PHILLY
    if not trace.is_file():
        print(f"skipped: no data in {given.data}", file=sys.stderr)
        print(json.dumps({"skipped": "no data"}))
        return
    settings = [
        Setting(
            data=given.data,
            trace=trace,
            policy=name,
            most_jobs=given.jobs,
            load_pct=load,
            seed=given.seed,
        )
        for load in LOADS_PCT
        for name in given.only or names.NAMES
    ]
    found: dict[float, dict[str, Report]] = {load: {} for load in LOADS_PCT}
    for setting, report in simulate.compare(settings):
        found[setting.load_pct][report.policy] = report
        _tell(setting, report)
    if given.plots:
        _draw(found, given.plots)
    if not given.only:
        loads = {str(load): _figures(found[load]) for load in LOADS_PCT}
        print(json.dumps({"jobs": given.jobs, "seed": given.seed, **loads}))


def _figures(reports: Mapping[str, Report]) -> dict[str, Any]:
    ours, oracle = reports[names.OURS], reports[names.ORACLE]
    backfill = reports["backfill"]
    mean_s = ours.completion_mean_s
    rivals = {name for name in names.NAMES if name not in (names.OURS, names.ORACLE)}
    gain = {name: reports[name].completion_mean_s / mean_s for name in sorted(rivals)}
    best = min(gain, key=lambda name: (gain[name], name))
    sooner = 1.0 - ours.first_minibatches_mean_s / backfill.first_minibatches_mean_s
    figures: dict[str, Any] = {
        "gpus": ours.gpus,
        "completion_vs_srtf_oracle": round(mean_s / oracle.completion_mean_s, 3),
        "completion_gain_vs_tiresias": round(gain["tiresias"], 2),
        "best_rival": best,
        "gain_vs_best_rival": round(gain[best], 2),
        "p99_vs_backfill": round(ours.completion_p99_s / backfill.completion_p99_s, 3),
        "owner_slowdown_mean_pct": round(ours.owner_slowdown_mean_pct, 2),
        "first_minibatches_sooner_pct": round(100.0 * sooner, 1),
        "cpu_s_worst": round(max(one.cpu_s for one in reports.values())),
    }
    missed = [name for name, most in AT_MOST.items() if figures[name] > most]
    missed += [name for name, least in AT_LEAST.items() if figures[name] < least]
    return figures | {
        "missed": missed,
        "gain_vs": {name: round(times, 2) for name, times in gain.items()},
        "completion_mean_s": _each(reports, "completion_mean_s"),
        "completion_p99_s": _each(reports, "completion_p99_s"),
        "first_minibatches_mean_s": _each(reports, "first_minibatches_mean_s"),
        "cpu_s": _each(reports, "cpu_s"),
    }


def _each(reports: Mapping[str, Report], name: str) -> dict[str, int]:
    return {policy: round(getattr(reports[policy], name)) for policy in names.NAMES}


def _draw(found: Mapping[float, Mapping[str, Report]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for load, reports in found.items():
        ordered = sorted(reports.values(), key=lambda one: (one.completion_mean_s, one.policy))
        about = f"{ordered[0].jobs:,} jobs of the Philly trace on {ordered[0].gpus:,} GPUs"
        page = html.page(ordered, f"All policies at {load} % offered load", about)
        (folder / f"trace-{load}.html").write_text(page)
        (folder / f"trace-{load}.svg").write_text(html.plots(ordered))


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
