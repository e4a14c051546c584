# SPDX-License-Identifier: Apache-2.0
"""Small traces and a small table of measured speeds, for tests without the shared data."""

from __future__ import annotations

from slipstream.simulator.measured import Kind, Measured
from slipstream.simulator.traces import TraceJob

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
