# SPDX-License-Identifier: Apache-2.0
"""What a GPU waits for between short jobs: a queue of eight, each with 3 s of loading.

`make -s bench NAME=preschedule`; `ARGS=ours` leaves stock Slurm out. A real Slurm node with one
simulated GPU; each job imports torch, loads (sleeps) 3 s and does 200 mini-batches of 20 ms. Stock:
one after the other. Ours: class `shared` and three seats, as is the default: those who are next
load while another trains, and wait before their first use of the GPU. The last line printed is one
JSON object:

* `idle_gap_reduction_pct`: time in which the GPU ran no mini-batch, between the first one of the
  first job and the last one of the last, against stock in the same run.
* for each half: `idle_s`, `idle_between_s` (each gap of more than 0.1 s), `all_done_s` (from the
  first submission), `completion_s` (mean) and `minibatch_ms` (median).
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import TYPE_CHECKING, Any, Final

from timed_jobs import courses, tell

if TYPE_CHECKING:
    from timed_jobs import Course

JOBS: Final = 8
MINIBATCHES: Final = 200
LOADING_S: Final = 3.0
LONG_S: Final = 0.1


def main() -> None:
    """Measure both halves; the figures come last."""
    ours = _half(ours=True)
    if sys.argv[1:] == ["ours"]:
        print(json.dumps({"ours": ours}))
        return
    stock = _half(ours=False)
    reduction_pct = round(100 * (1 - ours["idle_s"] / stock["idle_s"]), 2)
    print(json.dumps({"idle_gap_reduction_pct": reduction_pct, "ours": ours, "stock": stock}))


def _half(*, ours: bool) -> dict[str, Any]:
    told = _told(courses(ours=ours, jobs=JOBS, training=[MINIBATCHES, LOADING_S]))
    tell(f"{'ours' if ours else 'stock'}: {told}")
    return told


def _told(jobs: list[Course]) -> dict[str, Any]:
    ran = sorted(one for job in jobs for one in job.ran)
    gaps_s, until_s = [], ran[0][0]
    for began_s, ended_s in ran:
        gaps_s.append(max(0.0, began_s - until_s))
        until_s = max(until_s, ended_s)
    return {
        "idle_s": round(sum(gaps_s), 2),
        "idle_between_s": [round(one, 2) for one in gaps_s if one > LONG_S],
        "all_done_s": round(until_s - jobs[0].submitted_s, 2),
        "completion_s": round(statistics.mean(job.ran[-1][1] - job.submitted_s for job in jobs), 2),
        "minibatch_ms": round(statistics.median(1e3 * (end - began) for began, end in ran), 2),
    }


if __name__ == "__main__":
    main()
