# SPDX-License-Identifier: Apache-2.0
"""What the advice board costs: a lookup in slurmctld, a change in the daemon, a scheduling cycle.

`make -s bench NAME=board`. The last line printed is one JSON object:

* `lookup_us_p99`: the slower of hit and miss, in C, one lookup in a board of 10,000 records.
* `put_us_p50`, `rewrite_ms`: one record changed, and all 10,000 written anew, by the Python writer.
* `cycle_cpu_us_stock`, `cycle_cpu_us_wrapper`: CPU time of slurmctld for each backfill cycle over
  the same queue of pending jobs with advice, without and with the wrapper and its 10,000 records;
  null where the wrapper cannot be built. CPU time, because others work on this machine too.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from slipstream.sandbox import Sandbox, SandboxError, Shape
from slipstream.sandbox.plan import Plan
from slipstream.sandbox.select_plugin import plugin_dir
from slipstream.slurm_plugin.advice import Advice, Binding, boot_s
from slipstream.slurm_plugin.advice_board import AdviceBoard

RECORDS = 10_000
LOOKUPS = 200_000
PUTS = 2_000
PENDING_JOBS = 400
CYCLES_S = 15.0
SELECT = Path(__file__).parents[1] / "slurm_plugin" / "select"
MIX = 0x9E3779B97F4A7C15


def main() -> None:
    """Measure everything, telling what goes on; the figures come last."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        home = Path(folder)
        lookups = measure_lookups(home)
        writer = measure_writer(home)
        cycles = measure_cycles(home)
    figures = {
        "lookup_us_p99": max(lookups["hit_us_p99"], lookups["miss_us_p99"]),
        **lookups,
        **writer,
        **cycles,
    }
    print(json.dumps(figures))


def measure_lookups(home: Path) -> dict[str, float]:
    """Hits and misses, each lookup timed by itself. The board is in memory, as /run is."""
    program = home / "board_lookup"
    sources = [Path(__file__).with_name("board_lookup.c"), SELECT / "advice_board.c"]
    argv = ["cc", "-std=c11", "-D_GNU_SOURCE", "-O2", f"-I{SELECT}", "-o", str(program)]
    subprocess.run([*argv, *map(str, sources)], check=True)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="bench-board-", dir="/dev/shm") as memory:
        path = Path(memory) / "advice.board"
        with AdviceBoard(path) as board:
            board.rewrite(_records())
        for name, first in (("hit", 0), ("miss", RECORDS)):
            took_us, found = _lookups(program, path, _tokens(first))
            if found != (LOOKUPS if name == "hit" else 0):
                sys.exit(f"{found} of {LOOKUPS} lookups found a record: this is no {name}")
            figures[f"{name}_us_p50"] = round(took_us[len(took_us) // 2], 3)
            figures[f"{name}_us_p99"] = round(took_us[len(took_us) * 99 // 100], 3)
            _tell(f"{name}: p50 {figures[f'{name}_us_p50']} us, p99 {figures[f'{name}_us_p99']} us")
    return figures


def measure_writer(home: Path) -> dict[str, float]:
    """Changes of single records, and the whole board anew."""
    records = _records()
    with AdviceBoard(home / "writer.board") as board:
        begun_s = time.monotonic()
        board.rewrite(records)
        rewrite_ms = (time.monotonic() - begun_s) * 1e3
        took_us = []
        for advice in records[:PUTS]:
            begun_s = time.monotonic()
            board.put(advice)
            took_us.append((time.monotonic() - begun_s) * 1e6)
    _tell(f"rewrite of {RECORDS}: {rewrite_ms:.0f} ms; put: {statistics.median(took_us):.1f} us")
    return {
        "put_us_p50": round(statistics.median(took_us), 1),
        "rewrite_ms": round(rewrite_ms, 1),
    }


def measure_cycles(home: Path) -> dict[str, float | None]:
    """Slurm's own figures for the same queue, stock and with the wrapper."""
    figures: dict[str, float | None] = {"cycle_cpu_us_stock": None, "cycle_cpu_us_wrapper": None}
    try:
        both = plugin_dir()
    except SandboxError as error:
        _tell(str(error))
        return figures
    for name, folders in (("stock", ""), ("wrapper", both)):
        took_us = figures[f"cycle_cpu_us_{name}"] = _cycle_cpu_us(home, folders)
        _tell(f"{PENDING_JOBS} pending jobs, {name}: {took_us} us of CPU a cycle")
    return figures


def _cycle_cpu_us(home: Path, folders: str) -> float:
    sandbox = Sandbox.named("cycles", home)
    # One partition whose every node is taken: each cycle asks about jobs that cannot start.
    plan = Plan(shape=Shape(nodes=8, gpus_per_node=1, racks=1), plugin_dir=folders)
    pipe = sandbox.begin(plan, lambda _name, _took_s: None)
    try:
        with AdviceBoard(sandbox.layout.run / "advice.board") as board:
            board.rewrite(_records("n[1-8]"))
            words = ("sbatch", "--output=/dev/null", "--gres=gpu:1")
            sandbox.run(*words, "-N8", "--wrap=sleep 3600")
            sandbox.run(*words, f"--array=1-{PENDING_JOBS}", "--hold", "--wrap=sleep 1")
            for task, token in enumerate(_tokens(0)[:PENDING_JOBS], start=1):
                comment = f"AdminComment=[slipstream v=1 token={token} class=auto]"
                sandbox.run("scontrol", "update", f"JobId=2_{task}", comment)
            sandbox.run("scontrol", "release", "2")
            time.sleep(2.0)  # until the backfill scheduler is in its stride
            controller = sandbox.daemons()["slurmctld"].pid
            begun = _cpu_us(controller), _backfill_cycles(sandbox)
            time.sleep(CYCLES_S)
            ended = _cpu_us(controller), _backfill_cycles(sandbox)
    finally:
        pipe.close()
        sandbox.down()
    return round((ended[0] - begun[0]) / (ended[1] - begun[1]))


def _cpu_us(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1e6


def _backfill_cycles(sandbox: Sandbox) -> int:
    """It looks at every pending job; the main scheduler stops at the first that has to wait."""
    shown = sandbox.run("sdiag").stdout
    found = re.search(r"Backfilling stats.*?Total cycles: *([0-9]+)", shown, re.DOTALL)
    if not found:
        sys.exit(f"sdiag counts no backfill cycles:\n{shown}")
    return int(found[1])


def _lookups(program: Path, path: Path, tokens: list[str]) -> tuple[list[float], int]:
    done = subprocess.run(
        [str(program), str(path), str(LOOKUPS)],
        input="\n".join(tokens),
        capture_output=True,
        text=True,
        check=True,
    )
    return sorted(int(line) / 1e3 for line in done.stdout.split()), int(done.stderr)


def _records(nodes: str = "") -> list[Advice]:
    until_boot_s = int(boot_s()) + 3000
    every = tuple(f"n{number}" for number in range(1, 9))
    return [
        Advice(
            token=token,
            nodes=every if nodes else (f"n{number % 500}", f"n{number % 500 + 1}"),
            binding=Binding.REQUIRE,
            until_boot_s=until_boot_s,
        )
        for number, token in enumerate(_tokens(0))
    ]


def _tokens(first: int) -> list[str]:
    return [f"{number * MIX & (1 << 64) - 1:016x}" for number in range(first, first + RECORDS)]


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
