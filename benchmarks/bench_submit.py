# SPDX-License-Identifier: Apache-2.0
"""What a submission costs with Slipstream, on real Slurm: in the plugin and at the client.

`make -s bench NAME=submit`. 500 held jobs from 8 parallel clients to each of five fresh clusters:
plain Slurm, Slurm with Slipstream, that with the scheduler killed -9, and two that show what the
optional cli_filter costs (docs/submit-path.md): Slipstream with it, and Slurm with Lua that does
nothing. They take turns, 100 submissions each, in an order that changes, so that drift of the
machine cancels; who does not have its turn is stopped (SIGSTOP) and burdens nobody. Plain Slurm
gets `SchedulerParameters=defer` too, which Slipstream needs: what is compared is Slipstream.
Clients, controller and daemons share the machine: where it has few cores, the ratios are those of
CPU time.

The last line printed is one JSON object:

* `added_ms_p50`, `added_ms_p99`: time inside our job_submit, from its first line to its line in the
  log, over all submissions with the daemon alive. The plugin itself measures it (`took_us` in the
  log of slurmctld).
* `throughput_ratio`, `dead_daemon_ratio`: jobs per second with us, and with the daemon dead,
  over jobs per second of plain Slurm; the median of the rounds, each against its own.
* `cli_filter_ratio`: the same with us and `CliFilterPlugins=lua`, which only guests need that are
  started by srun or ask for GPUs again in their steps.
* `empty_lua_ratio`: the same for Slurm with a job_submit.lua and a cli_filter.lua that do nothing:
  what Slurm itself takes for having them. Most of it is CPU time of every sbatch, which sets up Lua
  and a JSON serializer for cli_filter.
* `answered_pct`: submissions that got the daemon's answer within the plugin's deadline.
"""

from __future__ import annotations

import contextlib
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.sandbox import Sandbox, Shape, select_plugin
from slipstream.sandbox.sandbox import Options

if TYPE_CHECKING:
    from collections.abc import Iterator

SUBMISSIONS: Final = 500
CLIENTS: Final = 8
BLOCK: Final = 100
"""Submissions of one turn."""
ROUNDS: Final = 2
SHAPE: Final = Shape(nodes=2, gpus_per_node=4, racks=1)
SETTLES_S: Final = 2.0
"""From the daemons' start until they have seen the cluster and are quiet."""
WAKES_S: Final = 0.3
"""From SIGCONT until timers that were due meanwhile have fired."""
TOOK: Final = re.compile(r"slipstream: token=\S+ .* took_us=(\d+) daemon: (.*)")


class Phase(StrEnum):
    """Whom the submissions meet."""

    STOCK = "without us"
    LUA = "without us, with empty job_submit.lua and cli_filter.lua"
    OURS = "with us"
    DEAD = "daemon dead"
    FILTER = "with us and cli_filter"


WITHOUT_US: Final = (Phase.STOCK, Phase.LUA)
EMPTY_LUA: Final = {
    "job_submit.lua": ("slurm_job_submit", "slurm_job_modify"),
    "cli_filter.lua": (
        "slurm_cli_setup_defaults",
        "slurm_cli_pre_submit",
        "slurm_cli_post_submit",
    ),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """One phase of one round."""

    per_s: float
    inside_ms: tuple[float, ...]
    answered: int


def main() -> None:
    """Measure everything, telling what goes on; the figures come last."""
    plugin_dir = select_plugin.plugin_dir()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        rounds = [measure(Path(folder), plugin_dir) for _ in range(ROUNDS)]
    print(json.dumps(figures(rounds)))


def figures(rounds: list[dict[Phase, Seen]]) -> dict[str, object]:
    """What the rounds say together."""
    inside_ms = sorted(ms for one in rounds for ms in one[Phase.OURS].inside_ms)
    dead_ms = sorted(ms for one in rounds for ms in one[Phase.DEAD].inside_ms)
    ours, dead, filtered, lua = (
        [one[phase].per_s / one[Phase.STOCK].per_s for one in rounds]
        for phase in (Phase.OURS, Phase.DEAD, Phase.FILTER, Phase.LUA)
    )
    answered = sum(one[Phase.OURS].answered for one in rounds)
    return {
        "added_ms_p50": round(statistics.median(inside_ms), 3),
        "added_ms_p99": round(_percentile(inside_ms, 99), 3),
        "added_ms_max": round(inside_ms[-1], 3),
        "throughput_ratio": round(statistics.median(ours), 3),
        "throughput_ratios": [round(one, 3) for one in ours],
        "dead_daemon_ratio": round(statistics.median(dead), 3),
        "dead_daemon_ratios": [round(one, 3) for one in dead],
        "cli_filter_ratio": round(statistics.median(filtered), 3),
        "empty_lua_ratio": round(statistics.median(lua), 3),
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


def measure(home: Path, plugin_dir: str) -> dict[Phase, Seen]:
    """One round: the clusters take turns until each has had all submissions."""
    took_s = dict.fromkeys(Phase, 0.0)
    with contextlib.ExitStack() as stack:
        clusters = {
            phase: stack.enter_context(_cluster(phase, home, plugin_dir)) for phase in Phase
        }
        time.sleep(SETTLES_S)
        for sandbox in clusters.values():
            _signal(sandbox, signal.SIGSTOP)
        for turn in range(SUBMISSIONS // BLOCK):
            for phase in (*Phase, *Phase)[turn % len(Phase) :][: len(Phase)]:
                took_s[phase] += _turn(clusters[phase], phase)
        for sandbox in clusters.values():
            _signal(sandbox, signal.SIGCONT)
        return {phase: _seen(phase, clusters[phase], took_s[phase]) for phase in Phase}


@contextlib.contextmanager
def _cluster(phase: Phase, home: Path, plugin_dir: str) -> Iterator[Sandbox]:
    stock = phase in WITHOUT_US
    options = Options(stock=True) if stock else Options(daemons=True, plugin_dir=plugin_dir)
    with Sandbox.started(SHAPE, name=phase.name.lower(), home=home, **options) as sandbox:
        if stock:
            _prepare(sandbox, lua=phase is Phase.LUA)
        elif phase is not Phase.FILTER:
            _without_cli_filter(sandbox)
        if phase is Phase.DEAD:
            sandbox.kill("scheduler")
        try:
            yield sandbox
        finally:
            _signal(sandbox, signal.SIGCONT)


def _signal(sandbox: Sandbox, number: signal.Signals) -> None:
    for name, daemon in sandbox.daemons().items():
        if name != "keeper" and daemon.alive:
            daemon.send(number)


def _turn(sandbox: Sandbox, phase: Phase) -> float:
    """Wake a cluster, submit a block of jobs, put it to sleep again; how long the block took."""
    _signal(sandbox, signal.SIGCONT)
    time.sleep(WAKES_S)
    took_s = _submit_block(sandbox, [] if phase in WITHOUT_US else ["--slip-class=opportunistic"])
    _signal(sandbox, signal.SIGSTOP)
    return took_s


def _seen(phase: Phase, sandbox: Sandbox, took_s: float) -> Seen:
    """What a cluster's queue and its controller's log say, once it has had all submissions."""
    queued = len(sandbox.run("squeue", "-h", "-o", "%i").stdout.split())
    if queued != SUBMISSIONS:
        sys.exit(f"{phase}: {queued} of {SUBMISSIONS} jobs are in the queue")
    log = (sandbox.layout.log / "slurmctld.log").read_text()
    found = [(int(us) / 1e3, said.strip()) for us, said in TOOK.findall(log)]
    if len(found) != (0 if phase in WITHOUT_US else SUBMISSIONS):
        sys.exit(f"{phase}: job_submit told of {len(found)} of {SUBMISSIONS} submissions")
    answered = sum(said == "answered" for _, said in found)
    seen = Seen(SUBMISSIONS / took_s, tuple(ms for ms, _ in found), answered)
    inside = f", {statistics.median(seen.inside_ms):.2f} ms inside" if found else ""
    _tell(f"{phase}: {seen.per_s:.1f} submissions/s{inside}, {answered} answered")
    return seen


def _prepare(sandbox: Sandbox, *, lua: bool) -> None:
    """Set what Slipstream asks of Slurm's scheduler, without Slipstream; and empty Lua filters."""
    layout = sandbox.layout
    text = layout.slurm_conf.read_text()
    text = re.sub(r"^(SchedulerParameters=.*)$", r"\1,defer", text, flags=re.MULTILINE)
    if lua:
        text = f"JobSubmitPlugins=lua\nCliFilterPlugins=lua\n{text}"
        for name, functions in EMPTY_LUA.items():
            lines = (f"function {one}() return slurm.SUCCESS end\n" for one in functions)
            (layout.etc / name).write_text("".join(lines))
    layout.slurm_conf.write_text(text)
    sandbox.run("scontrol", "reconfigure")
    shown = sandbox.run("scontrol", "show", "config").stdout
    if "defer" not in shown or lua != bool(re.search(r"JobSubmitPlugins\s*= lua", shown)):
        sys.exit(f"plain Slurm did not take its settings:\n{shown}")


def _without_cli_filter(sandbox: Sandbox) -> None:
    """As a site whose guests come by sbatch."""
    conf = sandbox.layout.slurm_conf
    conf.write_text(re.sub(r"^CliFilterPlugins=.*\n", "", conf.read_text(), flags=re.MULTILINE))
    sandbox.run("scontrol", "reconfigure")


def _submit_block(sandbox: Sandbox, flags: list[str]) -> float:
    """All clients at once, each a shell that submits one job after the other."""
    sbatch = ["sbatch", "--quiet", "--hold", "--output=/dev/null", "--gres=gpu:1", *flags]
    loop = 'n=$1; shift; while [ "$n" -gt 0 ]; do "$@" >/dev/null 2>&1 || exit; n=$((n - 1)); done'
    shares = [len(range(client, BLOCK, CLIENTS)) for client in range(CLIENTS)]
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
