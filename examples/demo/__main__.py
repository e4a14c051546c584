# SPDX-License-Identifier: Apache-2.0
"""`make demo`: the same PyTorch jobs on stock Slurm and with Slipstream, turns and a move live."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from demo import report, scene
from demo.comparison import THROTTLED, Comparison
from demo.live import display, summary
from demo.watch import Watch
from demo.workload import JOBS, SHAPE
from slipstream.sandbox import Sandbox, SandboxError
from slipstream.sandbox.select_plugin import plugin_dir
from slipstream.slurm_plugin import CliSlurm
from slipstream.slurm_plugin.run import SubprocessRunner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from demo.results import Results
    from demo.scene import SceneResult
    from demo.workload import DemoJob


def main() -> int:
    """Run the demo; 0 if every job completed, both times."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder of the report")
    parser.add_argument("--jobs", type=int, default=len(JOBS), help="only the first N jobs")
    parser.add_argument("--json", action="store_true", help="print results.json at the end")
    asked = parser.parse_args()
    console = Console(stderr=asked.json)
    console.width = max(console.width, 118)  # the table at the end, also into a log
    out: Path = asked.out.absolute()
    jobs = JOBS[: asked.jobs]
    console.print(
        f"{len(jobs)} PyTorch jobs ask for {sum(job.gpus for job in jobs)} GPUs of a cluster with "
        f"{SHAPE.sentence()}: first on stock Slurm, then with Slipstream (four minutes)"
    )
    wrapper = _wrapper(console)
    stock = _run(jobs, out, console)
    comparison = Comparison(stock, _run(jobs, out, console, ours=True, wrapper=wrapper))
    seen = _live(out, console)
    told = {**comparison.to_dict(), "live": seen.to_dict()}
    (out / "results.json").write_text(json.dumps(told, indent=1) + "\n")
    report.write(comparison, out / "report.html", seen)
    console.print(summary(comparison))
    for price in comparison.prices():
        console.print(f"  {price.sentence}", style="bold")
    console.print(f"  {THROTTLED}")
    if seen.move_s is not None:
        console.print(f"  live: {seen.turns} turns on one GPU, then a move in {seen.move_s:.1f} s")
    console.print(f"report with plots: {asked.out}/report.html")
    if asked.json:
        sys.stdout.write(json.dumps(told) + "\n")
    return 0 if comparison.all_completed and seen.is_complete else 1


def _wrapper(console: Console) -> str:
    """PluginDir with the select wrapper; without one Slurm itself chooses the nodes."""
    try:
        return plugin_dir()
    except SandboxError as error:
        console.print(f"without the select wrapper, so without advice on nodes: {error}")
        return ""


def _live(out: Path, console: Console) -> SceneResult:
    """Turns and a move, on a small cluster that enforces."""
    outputs = out / "live"
    outputs.mkdir(parents=True, exist_ok=True)
    for old in outputs.glob("*.out"):
        old.unlink()
    console.print("live: turns on one GPU, then a move", style="bold")
    begun_s = time.monotonic()

    def say(line: str) -> None:
        console.print(
            f"  {time.monotonic() - begun_s:4.0f} s  {line}", highlight=False, markup=False
        )

    with Sandbox.started(
        scene.SHAPE,
        name="demo",
        home=out / "sandbox",
        daemons=True,
        mode="enforce",
        turn_s=scene.TURN_S,
    ) as sandbox:
        return scene.Scene(sandbox, outputs, say).run()


def _run(
    jobs: Sequence[DemoJob], out: Path, console: Console, *, ours: bool = False, wrapper: str = ""
) -> Results:
    kind = "slipstream" if ours else "stock"
    outputs = out / kind
    outputs.mkdir(parents=True, exist_ok=True)
    for old in outputs.glob("*.out"):  # Slurm appends, and an old log is not this run's
        old.unlink()
    console.print(f"{kind}:", style="bold")
    with (
        Sandbox.started(
            SHAPE,
            name="demo",
            home=out / "sandbox",
            stock=not ours,
            daemons=ours,
            mode="enforce",
            plugin_dir=wrapper,
        ) as sandbox,
        display(console) as show,
    ):
        slurm = CliSlurm(SubprocessRunner(sandbox.environment))
        return Watch(sandbox, slurm, outputs).run(jobs, show)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SandboxError as error:
        sys.exit(f"demo: {error}")
