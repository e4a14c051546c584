# SPDX-License-Identifier: Apache-2.0
"""What a submission costs with Slipstream, on real Slurm: in the plugin and at the client.

`make -s bench NAME=submit`. 500 held jobs from 8 parallel clients, three times in each round: to
plain Slurm, to Slurm with all of Slipstream, and to the same with the scheduler killed -9. Every
phase has a fresh cluster to itself, so that no queue is longer than another and nobody's daemons
burden somebody else; the order turns from round to round and drift of the machine cancels. Plain
Slurm gets `SchedulerParameters=defer` too, which Slipstream needs: what is compared is Slipstream.

The last line printed is one JSON object:

* `added_ms_p50`, `added_ms_p99`: time inside our job_submit, from its first line to its line in the
  log, over all submissions with the daemon alive. The plugin itself measures it (`took_us` in the
  log of slurmctld).
* `throughput_ratio`, `dead_daemon_ratio`: jobs per second with us, and with the daemon dead,
  over jobs per second of plain Slurm; the median of the rounds, each against its own.
* `answered_pct`: submissions that got the daemon's answer within the plugin's deadline.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from slipstream.sandbox import Sandbox, Shape, select_plugin
from slipstream.sandbox.sandbox import Options

SUBMISSIONS: Final = 500
CLIENTS: Final = 8
ROUNDS: Final = 3
SHAPE: Final = Shape(nodes=2, gpus_per_node=4, racks=1)
SETTLES_S: Final = 2.0
"""From the daemons' start until they have seen the cluster and are quiet."""
TOOK: Final = re.compile(r"slipstream: token=\S+ .* took_us=(\d+) daemon: (.*)")


class Phase(StrEnum):
    """Whom the submissions meet."""

    STOCK = "without us"
    OURS = "with us"
    DEAD = "daemon dead"


@dataclass(frozen=True, slots=True)
class Seen:
    """One phase of one round."""

    per_s: float
    inside_ms: tuple[float, ...]
    answered: int


def main() -> None:
    """Measure everything, telling what goes on; the figures come last."""
    plugin_dir = select_plugin.plugin_dir()
    rounds: list[dict[Phase, Seen]] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        for number in range(ROUNDS):
            order = list(Phase)[number % 3 :] + list(Phase)[: number % 3]
            rounds.append({phase: measure(phase, Path(folder), plugin_dir) for phase in order})
    print(json.dumps(figures(rounds)))


def figures(rounds: list[dict[Phase, Seen]]) -> dict[str, object]:
    """What the rounds say together."""
    inside_ms = sorted(ms for one in rounds for ms in one[Phase.OURS].inside_ms)
    dead_ms = sorted(ms for one in rounds for ms in one[Phase.DEAD].inside_ms)
    ours = [one[Phase.OURS].per_s / one[Phase.STOCK].per_s for one in rounds]
    dead = [one[Phase.DEAD].per_s / one[Phase.STOCK].per_s for one in rounds]
    answered = sum(one[Phase.OURS].answered for one in rounds)
    return {
        "added_ms_p50": round(statistics.median(inside_ms), 3),
        "added_ms_p99": round(_percentile(inside_ms, 99), 3),
        "added_ms_max": round(inside_ms[-1], 3),
        "throughput_ratio": round(statistics.median(ours), 3),
        "throughput_ratios": [round(one, 3) for one in ours],
        "dead_daemon_ratio": round(statistics.median(dead), 3),
        "dead_daemon_ratios": [round(one, 3) for one in dead],
        "answered_pct": round(100 * answered / (SUBMISSIONS * len(rounds)), 2),
        "dead_added_ms_p50": round(statistics.median(dead_ms), 3),
        "dead_added_ms_p99": round(_percentile(dead_ms, 99), 3),
        "per_s": {
            phase.name.lower(): [round(one[phase].per_s, 1) for one in rounds] for phase in Phase
        },
        "submissions": SUBMISSIONS,
        "clients": CLIENTS,
        "rounds": len(rounds),
    }


def measure(phase: Phase, home: Path, plugin_dir: str) -> Seen:
    """A fresh cluster, all submissions, and what its controller's log says of them."""
    stock = phase is Phase.STOCK
    options = Options(stock=True) if stock else Options(daemons=True, plugin_dir=plugin_dir)
    with Sandbox.started(SHAPE, name="submit", home=home, **options) as sandbox:
        if stock:
            _defer(sandbox)
        if phase is Phase.DEAD:
            sandbox.kill("scheduler")
        flags = [] if stock else ["--slip-class=opportunistic"]
        time.sleep(SETTLES_S)
        took_s = _submit_all(sandbox, flags)
        queued = len(sandbox.run("squeue", "-h", "-o", "%i").stdout.split())
        log = (sandbox.layout.log / "slurmctld.log").read_text()
    if queued != SUBMISSIONS:
        sys.exit(f"{phase}: {queued} of {SUBMISSIONS} jobs are in the queue")
    found = [(int(us) / 1e3, said.strip()) for us, said in TOOK.findall(log)]
    if len(found) != (0 if stock else SUBMISSIONS):
        sys.exit(f"{phase}: job_submit told of {len(found)} of {SUBMISSIONS} submissions")
    answered = sum(said == "answered" for _, said in found)
    seen = Seen(SUBMISSIONS / took_s, tuple(ms for ms, _ in found), answered)
    inside = f", {statistics.median(seen.inside_ms):.2f} ms inside" if found else ""
    _tell(f"{phase}: {seen.per_s:.1f} submissions/s{inside}, {answered} answered")
    return seen


def _defer(sandbox: Sandbox) -> None:
    """The one setting of Slurm's own scheduler that Slipstream asks for, without Slipstream."""
    text = sandbox.layout.slurm_conf.read_text()
    changed = re.sub(r"^(SchedulerParameters=.*)$", r"\1,defer", text, flags=re.MULTILINE)
    sandbox.layout.slurm_conf.write_text(changed)
    sandbox.run("scontrol", "reconfigure")
    if "defer" not in sandbox.run("scontrol", "show", "config").stdout:
        sys.exit("plain Slurm did not take SchedulerParameters=defer")


def _submit_all(sandbox: Sandbox, flags: list[str]) -> float:
    """All clients at once, each a shell that submits one job after the other."""
    sbatch = ["sbatch", "--quiet", "--hold", "--output=/dev/null", "--gres=gpu:1", *flags]
    loop = 'n=$1; shift; while [ "$n" -gt 0 ]; do "$@" >/dev/null 2>&1 || exit; n=$((n - 1)); done'
    shares = [len(range(client, SUBMISSIONS, CLIENTS)) for client in range(CLIENTS)]
    begun_s = time.monotonic()
    clients = [
        subprocess.Popen(
            sandbox.argv(["sh", "-c", loop, "client", str(share), *sbatch, "--wrap=true"]),
            env=sandbox.environment,
        )
        for share in shares
    ]
    codes = [client.wait() for client in clients]
    took_s = time.monotonic() - begun_s
    if any(codes):
        sys.exit(f"a submission failed: the clients ended with {codes}")
    return took_s


def _percentile(ordered: list[float], percent: int) -> float:
    """The smallest value that so many percent do not exceed."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
