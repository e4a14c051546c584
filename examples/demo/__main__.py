# SPDX-License-Identifier: Apache-2.0
"""`make demo`: a stock sandbox, a mix of PyTorch jobs, a table and a report with plots."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from rich.console import Console

from demo import report
from demo.live import display, summary
from demo.watch import Watch
from demo.workload import JOBS, SHAPE
from slipstream.sandbox import Sandbox, SandboxError
from slipstream.slurm_plugin import CliSlurm
from slipstream.slurm_plugin.run import SubprocessRunner


def main() -> int:
    """Run the demo; 0 if every job completed."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="folder of the report")
    parser.add_argument("--jobs", type=int, default=len(JOBS), help="only the first N jobs")
    parser.add_argument("--json", action="store_true", help="print results.json at the end")
    asked = parser.parse_args()
    console = Console(stderr=asked.json)
    console.width = max(console.width, 96)  # the table at the end, also into a log
    out: Path = asked.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    jobs = JOBS[: asked.jobs]
    total = sum(job.gpus for job in jobs)
    console.print(
        f"starting a stock Slurm sandbox: {SHAPE.sentence()}; "
        f"then {len(jobs)} PyTorch jobs that ask for {total} GPUs (about two minutes)"
    )
    with Sandbox.started(SHAPE, name="demo", home=out / "sandbox", stock=True) as sandbox:
        watch = Watch(sandbox, CliSlurm(SubprocessRunner(sandbox.environment)), out)
        with display(console) as show:
            results = watch.run(jobs, show)
    (out / "results.json").write_text(json.dumps(results.to_dict(), indent=1) + "\n")
    report.write(results, out / "report.html")
    console.print(summary(results))
    console.print(f"report with plots: {asked.out}/report.html")
    if asked.json:
        sys.stdout.write(json.dumps(results.to_dict()) + "\n")
    return 0 if results.all_completed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except SandboxError as error:
        sys.exit(f"demo: {error}")
