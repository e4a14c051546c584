# SPDX-License-Identifier: Apache-2.0
"""Mode observe on a cluster whose users have never heard of us: nothing changes, and it is told."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import sbatch
from sandbox.trainings import slipstream
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(180)]

MOVING = re.compile(
    r"\b(RunTime|EndTime|Deadline|LastSchedEval|Reason|Scheduler|StartTime|SuspendTime)=\S*"
)
"""What Slurm itself changes on a job that runs or waits."""


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    """One node of two GPUs, observed."""
    shape = Shape(nodes=1, gpus_per_node=2, racks=1, gpu_memory_mib=1024)
    with Sandbox.started(shape, name="o", home=tmp_path, daemons=True, mode="observe") as one:
        yield one


def shown(box: Sandbox, *jobs: str) -> list[str]:
    """All that Slurm knows of these jobs, but for what it changes itself."""
    return [MOVING.sub("", box.run("scontrol", "show", "job", job).stdout) for job in jobs]


def test_nothing_changes_and_the_report_says_what_could(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Owners that leave their GPUs idle, and jobs in line behind them."""
    owners = [sbatch(box, tmp_path / "a", "--gres=gpu:1", script="sleep 300") for _ in range(2)]
    waits = [sbatch(box, tmp_path / "b", "--gres=gpu:1", script="sleep 300") for _ in range(3)]

    def in_line() -> bool:
        told = box.run("squeue", "-h", "-t", "PD", "-o", "%r").stdout.split()
        return len(told) == len(waits) and set(told) <= {"Resources", "Priority"}

    assert eventually(in_line)
    before = shown(box, *owners, *waits)

    def could() -> float:
        told = slipstream(box, "report", "--cluster")
        return float(told["report"]["if_all_were_guests"]["seated_hours"]) if told else 0.0

    assert eventually(lambda: could() > 0)
    told = (slipstream(box, "report", "--cluster") or {})["report"]["if_all_were_guests"]
    assert told["line_hours"] >= told["seated_hours"] > 0
    assert (slipstream(box, "report", "--cluster") or {})["report"]["owned_idle_gpu_hours"] > 0
    assert shown(box, *owners, *waits) == before
    assert any(box.layout.root.rglob("hours.json"))
    for found in (slipstream(box, "jobs") or {"jobs": []})["jobs"]:
        assert (found["class"], found["advised_nodes"]) == (None, [])
