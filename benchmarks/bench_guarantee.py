# SPDX-License-Identifier: Apache-2.0
"""What owners lose to guests on a real Slurm node with simulated GPUs, and what guests get.

`make -s bench NAME=guarantee`, or for some workloads only `ARGS="busy60 surge"`. For each workload:
a guest alone, then the owner arrives, then a second and a third guest; at last the owner alone.
Windows begin when the newest job has done its first mini-batches, so they contain the steps by
which shares are found. The last line printed is one JSON object:

* `owner_slowdown_pct`, `owner_slowdown_worst_pct`: mean and worst over workloads and 1, 2, 3
  guests of the owner's time by the clock for a mini-batch, against the same alone.
* `aggregate_throughput_ratio`: the 60 % owner and its guests, each in parts of what it does alone,
  added up; the least over 1, 2, 3 guests. One after the other is 1.
* `reaction_ticks`: from the owner's seat to the cut in its guest's page, in ticks of 100 ms.
* `null_pct`: the worst difference between the two halves of the windows alone.
* `workloads`: all of it, with what the coordinator itself reports.
"""

from __future__ import annotations

import json
import math
import shlex
import socket
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slipstream.coordinator import blocks
from slipstream.sandbox import Sandbox, Shape
from slipstream.wire.control_block import Progress, Role

if TYPE_CHECKING:
    from collections.abc import Callable

WORKLOADS: Final = ("busy60", "bursty", "surge", "saturated")
GUESTS: Final = 3
WINDOW_S: Final = 15.0
TICK_S: Final = 0.1
_TRAINING: Final = Path(__file__).with_name("shared_gpu_training.py")


def main() -> None:
    """Measure each workload, telling what goes on; the figures come last."""
    chosen = sys.argv[1:] or list(WORKLOADS)
    with tempfile.TemporaryDirectory(prefix="bg-") as folder:
        found = {name: _measured(name, Path(folder)) for name in chosen}
    slowdowns = [one for told in found.values() for one in told["owner_slowdown_pct"]]
    figures: dict[str, Any] = {
        "owner_slowdown_pct": round(statistics.mean(slowdowns), 2),
        "owner_slowdown_worst_pct": round(max(slowdowns), 2),
        "reaction_ticks": max(told["reaction_ticks"] for told in found.values()),
        "null_pct": max(told["null_pct"] for told in found.values()),
        "workloads": found,
    }
    if "busy60" in found:
        figures["aggregate_throughput_ratio"] = min(found["busy60"]["aggregate_ratio"])
    print(json.dumps(figures))


@dataclass(frozen=True)
class Node:
    """The one node of the sandbox, and its jobs."""

    box: Sandbox

    @property
    def run_dir(self) -> Path:
        return self.box.layout.run / "n1"

    def submit(self, kind: str, *words: str) -> int:
        """A training; its number."""
        script = shlex.join([sys.executable, str(_TRAINING), kind])
        argv = ("sbatch", "--parsable", "--output=/dev/null", *words, f"--wrap=exec {script}")
        return int(self.box.run(*argv).stdout)

    def progress(self, job: int) -> Progress:
        """How far it is."""
        for page in blocks.found(self.run_dir / "blocks"):
            page.forget()
            if page.identity.job_id == job and page.progress.pid:
                return page.progress
        return Progress()

    def cut(self, guest: int) -> tuple[bool, bool]:
        """Whether an owner has a seat, and whether the guest was told to make room."""
        pages = list(blocks.found(self.run_dir / "blocks"))
        for page in pages:
            page.forget()
        seated = any(page.identity.role == Role.OWNER for page in pages)
        told = [page.directive for page in pages if page.identity.job_id == guest]
        return seated, any(one.share_pct < 100 or one.request for one in told)  # noqa: PLR2004 (percent)

    def rates(self, jobs: list[int], seconds: float) -> dict[int, float]:
        """Mini-batches in a second by their own clock, all in one window."""
        before = {job: self.progress(job) for job in jobs}
        time.sleep(seconds)
        return {job: _rate(before[job], self.progress(job), seconds) for job in jobs}

    def waits_for(self, holds: Callable[[], bool], what: str) -> None:
        """At most a minute."""
        deadline_s = time.monotonic() + 60
        while not holds():
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{what}: {self.box.run('squeue').stdout}")
            time.sleep(0.01)

    def waits_for_training(self, job: int) -> None:
        """Until it has done its first mini-batches."""
        self.waits_for(lambda: self.progress(job).minibatches >= 2, f"job {job} trains")  # noqa: PLR2004 (the second)

    def report(self, job: int) -> dict[str, float]:
        """What the coordinator says of an owner."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(self.run_dir / "metrics.sock"))
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n")
            lines = connection.makefile().read().splitlines()
        names = ("slowdown_pct", "slowdown_error_pct")
        wanted = {f"slipstream_owner_{name}": name for name in names}
        return {
            wanted[line.partition("{")[0]]: round(float(line.rpartition(" ")[2]), 2)
            for line in lines
            if line.partition("{")[0] in wanted and f'job="{job}"' in line
        }


def _rate(before: Progress, after: Progress, seconds: float) -> float:
    """Of a job that stood still at either end of the window, its last boundary says little."""
    done = after.minibatches - before.minibatches
    took_s = (after.last_boundary_ns - before.last_boundary_ns) / 1e9
    steady = abs(took_s - seconds) < seconds / 20
    return done / (took_s if done and steady else seconds)


def _measured(workload: str, home: Path) -> dict[str, Any]:
    shape = Shape(nodes=1, gpus_per_node=1, slots_per_gpu=GUESTS, racks=1, gpu_memory_mib=16384)
    anywhere = {"guest_below_pct": "101"}  # beside a busy owner, too: that is what is measured
    options: dict[str, Any] = {"daemons": True, "mode": "enforce", "scheduler": anywhere}
    with Sandbox.started(shape, name=workload, home=home, **options) as box:
        return _on(Node(box), workload)


def _on(node: Node, workload: str) -> dict[str, Any]:
    guests = [_guest(node)]
    node.waits_for_training(guests[0])
    guest_alone = node.rates(guests, 4.0)[guests[0]]
    _tell(f"{workload}: guest alone {guest_alone:.1f}/s")
    owner = node.submit(workload, "--slip-class=guaranteed", "--gres=gpu:1")
    node.waits_for(lambda: node.cut(guests[0])[0], "the owner's seat")
    seated_s = time.monotonic()
    node.waits_for(lambda: node.cut(guests[0])[1], "the guest's cut")
    reaction_s = time.monotonic() - seated_s
    node.waits_for_training(owner)
    windows = []
    while True:
        windows.append(node.rates([owner, *guests], WINDOW_S))
        report = node.report(owner)
        _tell(f"{workload}, {len(guests)} guests: {_rounded(windows[-1])} {report}")
        if len(guests) == GUESTS:
            break
        guests.append(_guest(node))
        node.waits_for_training(guests[-1])
    node.box.run("scancel", *map(str, guests))
    node.waits_for(lambda: not node.progress(guests[0]).pid, "the end of the guests")
    time.sleep(1.0)
    halves = [node.rates([owner], WINDOW_S / 2)[owner] for _ in range(2)]
    alone = statistics.mean(halves)
    _tell(f"{workload}: owner alone {halves[0]:.2f}/s, {halves[1]:.2f}/s")
    return {
        "owner_slowdown_pct": [round(100 * (alone / one[owner] - 1), 2) for one in windows],
        "aggregate_ratio": [
            round(
                sum(rate / (alone if job == owner else guest_alone) for job, rate in one.items()), 3
            )
            for one in windows
        ],
        "reaction_ticks": math.ceil(reaction_s / TICK_S) if reaction_s > TICK_S / 10 else 0,
        "null_pct": round(100 * abs(halves[0] / halves[1] - 1), 2),
        "reported": report,
    }


def _guest(node: Node) -> int:
    return node.submit("guest", "--slip-class=opportunistic", "--gres=gpu:1")


def _rounded(rates: dict[int, float]) -> dict[int, float]:
    return {job: round(rate, 2) for job, rate in rates.items()}


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
