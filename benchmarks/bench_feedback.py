# SPDX-License-Identifier: Apache-2.0
"""How soon everybody sees something: 16 equal jobs at once on 4 GPUs, and on stock Slurm.

`make -s bench NAME=feedback`; `ARGS=ours` leaves stock Slurm out. A real Slurm node with simulated
GPUs; each job is a process of its own that imports torch, then 1,000 mini-batches of 20 ms. Stock:
four at a time, one for each GPU. Ours: class `shared`, all at once, in turns. The last line printed
is one JSON object:

* `time_to_100_minibatches_reduction_pct`: mean over the jobs of the time from submission to the end
  of the 100th mini-batch, against stock in the same run.
* `all_done_ratio`: from the first submission to the end of the last mini-batch, ours over stock.
* for each half: `to_100_s` (mean), `to_100_each_s`, `all_done_s`, `import_s` (mean time that the
  import of torch took), `launch_s` (mean from submission to the first mini-batch), `jain` (of the
  times from submission to the last mini-batch) and `minibatch_ms` (median).
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import TYPE_CHECKING, Any, Final

from timed_jobs import courses, tell

if TYPE_CHECKING:
    from timed_jobs import Course

JOBS: Final = 16
GPUS: Final = 4
MINIBATCHES: Final = 1000
FIRST: Final = 100


def main() -> None:
    """Measure both halves; the figures come last."""
    ours = _half(ours=True)
    if sys.argv[1:] == ["ours"]:
        print(json.dumps({"ours": ours}))
        return
    stock = _half(ours=False)
    figures = {
        "time_to_100_minibatches_reduction_pct": round(
            100 * (1 - ours["to_100_s"] / stock["to_100_s"]), 2
        ),
        "all_done_ratio": round(ours["all_done_s"] / stock["all_done_s"], 3),
        "ours": ours,
        "stock": stock,
    }
    print(json.dumps(figures))


def _half(*, ours: bool) -> dict[str, Any]:
    slots = JOBS // GPUS  # all of them have a seat
    told = _told(courses(ours=ours, jobs=JOBS, training=[MINIBATCHES], gpus=GPUS, slots=slots))
    tell(f"{'ours' if ours else 'stock'}: {told}")
    return told


def _told(jobs: list[Course]) -> dict[str, Any]:
    to_100_s = [one.ran[FIRST - 1][1] - one.submitted_s for one in jobs]
    whole_s = [one.ran[-1][1] - one.submitted_s for one in jobs]
    last_s = max(one.ran[-1][1] for one in jobs)
    long_ms = [1e3 * (end_s - began_s) for one in jobs for began_s, end_s in one.ran]
    return {
        "to_100_s": round(statistics.mean(to_100_s), 2),
        "to_100_each_s": sorted(round(one, 1) for one in to_100_s),
        "all_done_s": round(last_s - jobs[0].submitted_s, 2),
        "import_s": round(statistics.mean(one.imported_s - one.started_s for one in jobs), 2),
        "launch_s": round(statistics.mean(one.ran[0][0] - one.submitted_s for one in jobs), 2),
        "jain": round(sum(whole_s) ** 2 / (len(jobs) * sum(one * one for one in whole_s)), 4),
        "minibatch_ms": round(statistics.median(long_ms), 2),
    }


if __name__ == "__main__":
    main()
