# SPDX-License-Identifier: Apache-2.0
"""Shared jobs of one GPU on a real cluster: all soon have something to show, and load ahead."""

from __future__ import annotations

import itertools
import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import sbatch, wait_for
from slipstream.coordinator import blocks
from slipstream.sandbox import Sandbox, Shape
from slipstream.wire import gpu_state
from slipstream.wire.control_block import Phase, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.sandbox

TRAINING = Path(__file__).parents[2] / "benchmarks" / "timed_training.py"
SHARED = ("--slip-class=shared", "--gres=slot:1")
FIRST = 100
LONG = 3000
"""A minute's worth: nobody ends while the others have their first ones."""
SHORT = 90
"""All of them are first ones: nobody makes room before it has ended."""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One node of one GPU with four seats."""
    shape = Shape(nodes=1, gpus_per_node=1, slots_per_gpu=4, racks=1)
    home = tmp_path_factory.mktemp("f")
    with Sandbox.started(shape, name="first", home=home, daemons=True, mode="enforce") as sandbox:
        yield sandbox


def trainings(box: Sandbox, folder: Path, count: int, minibatches: int) -> list[str]:
    """So many that wait for their data; each tells when what was, once it has ended."""
    jobs = []
    for number in range(count):
        times, data = folder / str(number), folder / "data"
        words = [sys.executable, str(TRAINING), str(times), str(minibatches), str(data)]
        script = f"exec {shlex.join(words)}"
        jobs.append(sbatch(box, times.with_suffix(".out"), *SHARED, script=script))
    return jobs


def progress(box: Sandbox, job: str) -> Progress:
    """What a job's page says."""
    for page in blocks.found(box.layout.run / "n1" / "blocks"):
        page.forget()
        if str(page.identity.job_id) == job and page.progress.pid:
            return page.progress
    return Progress()


def memory_bytes(box: Sandbox, pid: int) -> int:
    """What a process holds, by the book of the GPU."""
    (gpu,) = gpu_state.map_node(box.layout.gpu_state("n1")).gpus
    return sum(one.memory_bytes for one in gpu.processes if one.pid == pid)


def test_everybody_has_its_first_minibatches_before_anybody_has_ended(
    box: Sandbox, tmp_path: Path, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """Four jobs on a GPU, one at a time; who has had its first hundred makes room."""
    jobs = trainings(box, tmp_path, 4, LONG)

    def phases() -> list[Phase]:
        return sorted(progress(box, job).phase for job in jobs)

    assert eventually(lambda: phases() == [Phase.LOADING] * 4)
    (tmp_path / "data").touch()
    assert eventually(lambda: phases() == [Phase.TRAINING, *[Phase.PAUSED] * 3])
    told = [progress(box, job) for job in jobs]
    held = [memory_bytes(box, one.pid) for one in told if one.phase == Phase.PAUSED]
    assert held == [0, 0, 0], "they have loaded, and nothing is on the GPU"
    assert eventually(lambda: all(progress(box, job).minibatches >= FIRST for job in jobs))
    assert max(progress(box, job).minibatches for job in jobs) < LONG
    assert eventually(lambda: phases() == [Phase.TRAINING, *[Phase.PARKED] * 3])
    box.run("scancel", *jobs)
    wait_for(box, *jobs)


def test_the_next_job_has_loaded_when_the_one_before_ends(
    box: Sandbox, tmp_path: Path, eventually: Callable[[Callable[[], bool]], bool]
) -> None:
    """A queue of short jobs: each begins when the one before is through, and not before."""
    jobs = trainings(box, tmp_path, 3, SHORT)
    assert eventually(lambda: all(progress(box, job).phase == Phase.LOADING for job in jobs))
    (tmp_path / "data").touch()
    wait_for(box, *jobs)
    told = [json.loads((tmp_path / str(number)).read_text()) for number in range(3)]
    told.sort(key=lambda one: one["ran"][0])
    for before, after in itertools.pairwise(told):
        assert after["loaded_s"] < before["ran"][-1][1] < after["ran"][0][0]
