# SPDX-License-Identifier: Apache-2.0
"""The same jobs at once on stock Slurm and with Slipstream; for `feedback` and `preschedule`."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Sequence

_TRAINING: Final = Path(__file__).with_name("timed_training.py")
_WITHIN_S: Final = 400.0
_STOCK: Final = ("--gres=gpu:1",)
_OURS: Final = ("--slip-class=shared", "--gres=slot:1")


@dataclass(frozen=True)
class Course:
    """When what was in one job, on one clock for all."""

    submitted_s: float
    started_s: float
    imported_s: float
    loaded_s: float
    ran: Sequence[tuple[float, float]]
    """Each mini-batch."""


def courses(
    *, ours: bool, jobs: int, training: Sequence[object], gpus: int = 1, slots: int = 3
) -> list[Course]:
    """Run so many of a training, submitted at once, on one node of so many GPUs."""
    shape = Shape(nodes=1, gpus_per_node=gpus, slots_per_gpu=slots, racks=1)
    options: dict[str, Any] = {"daemons": True, "mode": "enforce"} if ours else {"stock": True}
    with (
        tempfile.TemporaryDirectory(prefix="bf-") as folder,
        Sandbox.started(shape, name="timed", home=Path(folder), **options) as box,
    ):
        (told := Path(folder) / "times").mkdir(mode=0o777)
        submitted_s = [
            _submit(box, told / f"{number}", _OURS if ours else _STOCK, training)
            for number in range(jobs)
        ]
        _wait(box, told, jobs)
        times = [json.loads((told / f"{number}").read_text()) for number in range(jobs)]
    return [Course(at_s, **one) for at_s, one in zip(submitted_s, times, strict=True)]


def _submit(box: Sandbox, times: Path, words: Sequence[str], training: Sequence[object]) -> float:
    """Returns when."""
    at_s = time.monotonic()
    line = shlex.join([sys.executable, str(_TRAINING), str(times), *map(str, training)])
    box.run("sbatch", f"--output={times}.out", *words, f"--wrap=exec {line}")
    return at_s


def _wait(box: Sandbox, told: Path, jobs: int) -> None:
    deadline_s = time.monotonic() + _WITHIN_S
    while sum(not one.suffix for one in told.iterdir()) < jobs:
        if time.monotonic() > deadline_s:
            said = "\n".join(one.read_text() for one in sorted(told.glob("*.out")))
            raise TimeoutError(f"{box.run('squeue').stdout}\n{said}")
        time.sleep(0.5)
    time.sleep(0.5)  # for the last one to be written


def tell(line: str) -> None:
    """For whoever waits."""
    print(line, file=sys.stderr, flush=True)
