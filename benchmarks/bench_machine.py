# SPDX-License-Identifier: Apache-2.0
"""How many events per second the cluster's brain decides about, and how that grows.

`make -s bench NAME=machine`. Clusters of 1,000, 5,000 and 20,000 GPUs are filled with jobs, and
1,000 to 50,000 more wait. Then the cluster lives: a job ends, another comes, jobs and pairs are
measured a minute after they start, turns end when the brain said they would. Sizes of jobs are as
in the Philly trace (94 % of one GPU, up to 32), classes as in the simulator's workload.

Speed is by processor time of this process, which others on the machine do not take part in.

The last line printed is one JSON object:

* `events_per_s`: at the largest cluster and queue (goal 5,000).
* `growth`: time per event at the largest over that at the smallest; `log_growth`: the same for
  the logarithms of GPUs plus waiting jobs, which it must not pass.
* `rss_mib`: the most memory the process had (goal 1,024).
* `sizes`: all of them, with commands per event.
"""

from __future__ import annotations

import heapq
import json
import math
import resource
import sys
import time
from typing import TYPE_CHECKING, Final

import numpy as np

from slipstream.core.classes import JobClass
from slipstream.core.cluster.asks import Ask
from slipstream.core.cluster.brain import Brain
from slipstream.core.cluster.commands import Park, Start
from slipstream.core.cluster.events import JobCame, JobLeft, JobProfiled, NodeCame, TimerFired
from slipstream.core.cluster.rules import ClusterRules

if TYPE_CHECKING:
    from slipstream.core.cluster.commands import ClusterCommand
    from slipstream.core.cluster.events import ClusterEvent

SIZES: Final = ((1_000, 1_000), (1_000, 50_000), (5_000, 10_000), (20_000, 1_000), (20_000, 50_000))
GPUS_PER_NODE: Final = 8
EVENTS: Final = 20_000
TENANTS: Final = 20
FAMILIES: Final = 200
GPU_MIB: Final = 16_384
WIDTHS: Final = ((1, 0.944), (2, 0.021), (4, 0.014), (8, 0.018), (16, 0.002), (32, 0.001))
PROFILE_S: Final = 60.0


class Cluster:
    """Makes the events of a living cluster from the commands it is given."""

    def __init__(self, gpus: int, seed: int = 1) -> None:
        shares = tuple((f"tenant{at:02}", 1.0 + at % 4) for at in range(TENANTS))
        self.brain = Brain(ClusterRules(shares=shares))
        self.now_s = 0.0
        self.cpu_s = 0.0
        self.events = 0
        self.commands = 0
        self.seated: dict[str, None] = {}
        self._rng = np.random.default_rng(seed)
        self._jobs = 0
        self._due: list[tuple[float, int, str]] = []
        for at in range(gpus // GPUS_PER_NODE):
            node = NodeCame(at_s=0.0, node=f"n{at:05}", gpus=GPUS_PER_NODE, memory_mib=GPU_MIB)
            self.tell(node)

    def tell(self, event: ClusterEvent) -> None:
        """One event, timed."""
        began_s = time.process_time()
        commands = self.brain.handle(event)
        self.cpu_s += time.process_time() - began_s
        self.events += 1
        self.commands += len(commands)
        for command in commands:
            self._done(command)

    def submit(self) -> None:
        """One more job."""
        self._jobs += 1
        rng, number = self._rng, self._jobs
        widths, parts = zip(*WIDTHS, strict=True)
        ask = Ask(
            ref=str(number),
            tenant=f"tenant{int(rng.integers(TENANTS)):02}",
            gpus=int(rng.choice(widths, p=parts)),
            submitted_at_s=self.now_s,
            job_class=JobClass(rng.choice(["guaranteed", "shared", "auto"], p=[0.2, 0.6, 0.2])),
            use_pct=float(rng.uniform(10, 95)),
            memory_mib=int(rng.integers(2_000, 10_000)),
            family=f"family{int(rng.integers(FAMILIES))}",
        )
        self.tell(JobCame(self.now_s, ask))

    def end_one(self) -> None:
        """Some running job ends: the one that has been on its GPUs for longest, or a young one."""
        oldest = self._rng.random() < 0.5  # noqa: PLR2004 (a coin)
        ref = next(iter(self.seated) if oldest else reversed(self.seated))
        del self.seated[ref]
        self.tell(JobLeft(self.now_s, ref))

    def live(self, events: int) -> None:
        """Jobs come and end, and what time brings in between."""
        until = self.events + events
        while self.events < until:
            self.now_s += 1.0
            self.end_one()
            self.submit()
            self.profile(self.now_s)
            while (wake_s := self.brain.wakes_at_s()) is not None and wake_s <= self.now_s:
                self.tell(TimerFired(self.now_s))

    def profile(self, until_s: float) -> None:
        """Measurements that are due by then."""
        self.now_s = until_s
        while self._due and self._due[0][0] <= until_s:
            _, _, ref = heapq.heappop(self._due)
            if ref in self.seated:
                use = float(self._rng.uniform(10, 95))
                self.tell(JobProfiled(until_s, ref, use, 5_000))

    def _done(self, command: ClusterCommand) -> None:
        if isinstance(command, Park):
            self.seated.pop(command.ref, None)
        else:
            self.seated[command.ref] = None
        if isinstance(command, Start):
            heapq.heappush(self._due, (self.now_s + PROFILE_S, len(self._due), command.ref))


def main() -> None:
    """Each size in turn, telling what goes on; the figures come last."""
    sizes = [measured(gpus, queue) for gpus, queue in SIZES]
    first, last = sizes[0], sizes[-1]
    growth = first["events_per_s"] / last["events_per_s"]
    log_growth = math.log(last["gpus"] + last["waiting"]) / math.log(
        first["gpus"] + first["waiting"]
    )
    figures = {
        "events_per_s": last["events_per_s"],
        "growth": round(growth, 2),
        "log_growth": round(log_growth, 2),
        "rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "sizes": sizes,
    }
    print(json.dumps(figures))


def measured(gpus: int, queue: int) -> dict[str, float]:
    """Fill a cluster, then let it live."""
    cluster = Cluster(gpus)
    while len(cluster.brain.queues) < queue:
        cluster.now_s += 0.01
        cluster.submit()
    cluster.profile(cluster.now_s + 2 * PROFILE_S)  # all that were started to fill it
    filled, cluster.cpu_s, cluster.commands = cluster.events, 0.0, 0
    cluster.live(EVENTS)
    events = cluster.events - filled
    figures = {
        "gpus": gpus,
        "waiting": len(cluster.brain.queues),
        "events_per_s": round(events / cluster.cpu_s),
        "commands_per_event": round(cluster.commands / events, 2),
    }
    print(f"machine: {figures}", file=sys.stderr, flush=True)
    return figures


if __name__ == "__main__":
    main()
