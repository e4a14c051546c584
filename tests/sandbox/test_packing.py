# SPDX-License-Identifier: Apache-2.0
"""Two guests on one GPU that nobody owns: tried, measured, kept together or taken apart."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import OURS, sbatch
from sandbox.trainings import story, until, why
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = pytest.mark.sandbox

TRAINING = Path(__file__).with_name("paired_training.py")
HURTS = ("10", "150", "0")
"""Alone 10 ms of the GPU, beside its like 150: far worse than in turns."""
FITS = ("2", "2", "30")
"""Elsewhere most of the time."""


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One node of one GPU, with short turns."""
    shape = Shape(nodes=1, gpus_per_node=1, racks=1, cpus_per_node=8)
    home = tmp_path_factory.mktemp("p")
    with Sandbox.started(
        shape, name="packing", home=home, daemons=True, mode="enforce", turn_s=3.0
    ) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def _empty(box: Sandbox, eventually: Eventually) -> Iterator[None]:
    """Nothing is left, after each test."""
    yield
    box.run("scancel", "--user=root", check=False)
    assert eventually(lambda: not box.run("squeue", "-h").stdout.strip())


def two(box: Sandbox, folder: Path, how: tuple[str, ...]) -> list[str]:
    """Two guests of one family, until they are told what they do together."""
    script = f"exec {shlex.join([sys.executable, str(TRAINING), str(folder), *how])}"
    words = (OURS, "--gres=gpu:1", f"--job-name={folder.name}")
    jobs = [sbatch(box, folder / name, *words, script=script) for name in ("one", "two")]
    for job in jobs:  # beside one that is busy nobody would be seated: they begin together
        until(box, job, lambda job=job: why(box, job).get("phase") == "running")  # type: ignore[misc]
    (folder / "both").touch()
    until(box, jobs[0], lambda: "of its speed alone" in story(box, jobs[0]))
    return jobs


def training(box: Sandbox, job: str) -> tuple[str, int]:
    """Why it has what it has, and how far it is."""
    told = why(box, job).get("training") or {}
    return str(told.get("node_reason")), int(told.get("minibatch") or 0)


def test_two_that_hurt_each_other_take_turns(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Packing is undone: one trains, the other is parked, and both get on by turns."""
    jobs = two(box, tmp_path, HURTS)
    assert "they take turns" in story(box, jobs[0])
    assert eventually(lambda: "taken_apart" in {training(box, job)[0] for job in jobs})
    before = {job: training(box, job)[1] for job in jobs}
    assert eventually(lambda: all(training(box, job)[1] > before[job] for job in jobs))


def test_two_that_do_not_stay_together(box: Sandbox, tmp_path: Path) -> None:
    """Nobody waits for the other."""
    jobs = two(box, tmp_path, FITS)
    assert "they stay together" in story(box, jobs[0])
    assert {training(box, job)[0] for job in jobs} == {"no_owner"}
