# SPDX-License-Identifier: Apache-2.0
"""Shared jobs that reach no boundary, on a real cluster: others have the GPU all the same."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import sbatch, wait_for
from sandbox.trainings import seen
from slipstream.coordinator import blocks
from slipstream.sandbox import Sandbox, Shape
from slipstream.wire.control_block import Held, Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = pytest.mark.sandbox

TESTS = Path(__file__).parents[1]
WITHOUT_BOUNDARY = TESTS / "held_training.py"
TRAINING = TESTS.parent / "benchmarks" / "timed_training.py"
SHARED = ("--slip-class=shared", "--gres=slot:1")
TURN_S = 6.0
TRAINED = 3
ENOUGH = 150
"""More than a new job's first mini-batches."""
LONG = 100_000


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One node of one GPU with short turns."""
    shape = Shape(nodes=1, gpus_per_node=1, slots_per_gpu=3, racks=1)
    home = tmp_path_factory.mktemp("h")
    with Sandbox.started(
        shape, name="holds", home=home, daemons=True, mode="enforce", turn_s=TURN_S
    ) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def undisturbed() -> str:
    """What the training comes to without Slipstream."""
    program = (
        f"import sys; sys.path.insert(0, {str(TESTS)!r}); import held_training as one;"
        "made = one.Training(lambda: None); made.minibatches(2 * one.FIRST);"
        "print(made.fingerprint())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout


def without_boundary(box: Sandbox, folder: Path, how: str) -> str:
    """A job that trains a little and then reaches no boundary until it is told."""
    words = [sys.executable, str(WITHOUT_BOUNDARY), f"gpu-{how}", str(folder / "counts")]
    return sbatch(box, folder / "first.out", *SHARED, script=f"exec {shlex.join(words)}")


def training(box: Sandbox, folder: Path, minibatches: int = LONG) -> str:
    """A job that does nothing else."""
    words = [sys.executable, str(TRAINING), str(folder / "times"), str(minibatches)]
    return sbatch(box, folder / "second.out", *SHARED, script=f"exec {shlex.join(words)}")


def progress(box: Sandbox, job: str) -> Progress:
    """What a job's page says."""
    for page in blocks.found(box.layout.run / "n1" / "blocks"):
        page.forget()
        if str(page.identity.job_id) == job and page.progress.pid:
            return page.progress
    return Progress()


def turn_holder(box: Sandbox, job: str) -> str:
    """Who has the turn that a job waits for, as `why` says."""
    return str((seen(box, job).get("training") or {}).get("turn_holder"))


def count(folder: Path) -> int:
    """How many device operations the first job has begun without a boundary."""
    counts = folder / "counts"
    return counts.stat().st_size if counts.exists() else 0


def test_a_job_at_rest_passes_its_turn_on_and_goes_on_when_it_uses_the_gpu(
    box: Sandbox, tmp_path: Path, undisturbed: str, eventually: Eventually
) -> None:
    """The second has its mini-batches while the first rests, which then has its turn again."""
    first = without_boundary(box, tmp_path, "sleep")
    assert eventually(lambda: progress(box, first).minibatches == TRAINED)
    second = training(box, tmp_path)
    assert eventually(lambda: progress(box, second).minibatches >= ENOUGH)
    told = progress(box, first)
    assert (told.minibatches, told.held) == (TRAINED, Held.YES), "the first is still at rest"
    assert eventually(lambda: turn_holder(box, first) == second)
    text = box.run(sys.executable, "-m", "slipstream.cli", "why", first).stdout
    assert f"waits for its turn: job {second} has had it since" in text
    (tmp_path / "counts.ask").touch()
    assert eventually(lambda: count(tmp_path) == 1), "it wants the GPU, and has its turn"
    box.run("scancel", second)
    (tmp_path / "counts.enough").touch()
    wait_for(box, first, second)
    assert (tmp_path / "first.out").read_text() == undisturbed


def test_a_validation_is_stopped_at_an_operator_and_both_have_turns(
    box: Sandbox, tmp_path: Path, undisturbed: str, eventually: Eventually
) -> None:
    """Two turns without a boundary; `why` says meanwhile who has the turn and since when."""
    first = without_boundary(box, tmp_path, "validation")
    assert eventually(lambda: count(tmp_path) > 0)
    second = training(box, tmp_path)
    assert eventually(lambda: turn_holder(box, second) == first)
    assert progress(box, second).minibatches == 0
    assert eventually(lambda: progress(box, first).held == Held.WAITED_FOR)
    assert eventually(lambda: progress(box, second).minibatches >= ENOUGH)
    stood = count(tmp_path)
    assert eventually(lambda: count(tmp_path) > stood), "it has its turns, too"
    done = progress(box, second).minibatches
    assert eventually(lambda: progress(box, second).minibatches > done)
    box.run("scancel", second)
    (tmp_path / "counts.enough").touch()
    wait_for(box, first, second)
    assert (tmp_path / "first.out").read_text() == undisturbed


def test_a_held_job_goes_on_when_the_coordinator_is_killed(
    box: Sandbox, tmp_path: Path, undisturbed: str, eventually: Eventually
) -> None:
    """Nobody could say when to end the hold: it ends with the lease."""
    first = without_boundary(box, tmp_path, "validation")
    assert eventually(lambda: count(tmp_path) > 0)
    second = training(box, tmp_path)
    assert eventually(lambda: progress(box, first).held == Held.WAITED_FOR)
    box.kill("coordinator-n1")
    stood = count(tmp_path)
    assert eventually(lambda: count(tmp_path) > stood)
    (tmp_path / "counts.enough").touch()
    box.run("scancel", second)
    wait_for(box, first, second)
    assert (tmp_path / "first.out").read_text() == undisturbed
