# SPDX-License-Identifier: Apache-2.0
"""Small traces and a small table of measured speeds, for tests without the shared data."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from slipstream.simulator.measured import Kind, Measured
from slipstream.simulator.traces import TraceJob

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

KINDS = Measured(
    kinds=(
        Kind(name="quiet", minibatches_per_s=10.0, use_pct=20.0, memory_mib=4_000),
        Kind(name="busy", minibatches_per_s=5.0, use_pct=90.0, memory_mib=9_000),
    ),
    beside=((0.95, 0.6), (0.8, 0.4)),
    spread=0.75,
)


def trace(count: int = 60, *, every_s: float = 100.0) -> list[TraceJob]:
    """Many short jobs, some long ones, some gangs; three tenants."""
    return [
        TraceJob(
            ref=str(at),
            tenant="abc"[at % 3],
            submitted_at_s=at * every_s,
            run_s=20_000.0 if at % 10 == 0 else 300.0 + 7 * at,
            gpus=(1, 1, 1, 2, 1, 4, 1, 1, 8, 1)[at % 10],
        )
        for at in range(count)
    ]


def simple_csv(path: Path, jobs: Sequence[TraceJob]) -> Path:
    """A trace as a file of our own format."""
    rows = [f"{job.submitted_at_s},{job.run_s},{job.gpus},{job.tenant}" for job in jobs]
    path.write_text("submitted_at_s,run_s,gpus,tenant\n" + "\n".join(rows) + "\n")
    return path


def data_folder(path: Path) -> Path:
    """A folder laid out as the shared data are, with two kinds and one placement in it."""
    (path / "throughputs").mkdir(parents=True)
    (path / "placements").mkdir()
    quiet, busy = "('quiet', 1)", "('busy', 1)"
    table = {
        quiet: {"null": 10.0, quiet: [9.5, 9.5], busy: [6.0, 4.0]},
        busy: {"null": 5.0, quiet: [4.0, 6.0], busy: [0.0, 0.0]},
    }
    text = json.dumps({"v100": table})
    (path / "throughputs/gavel-simulation-throughputs.json").write_text(text)
    rows = "placement,local_bsz,step_time,sync_time\n2,32,0.3,0.1\n11,32,0.4,0.2\n"
    (path / "placements/model.csv").write_text(rows)
    return path
