# SPDX-License-Identifier: Apache-2.0
"""Moves on a real cluster: a training goes on on another node, to the bit, whatever is killed."""

from __future__ import annotations

import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from run_rig import SCRIPT, alone, losses
from sandbox.jobs import sbatch, wait_for
from sandbox.trainings import slipstream, why
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.sandbox

PATIENCE_S = 60.0
EPOCHS = 60  # of five mini-batches
WORDS = (f"--epochs={EPOCHS}", "--pause-ms=60")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Three nodes of one GPU."""
    shape = Shape(nodes=3, gpus_per_node=1, racks=1)
    with Sandbox.started(
        shape, name="moves", home=tmp_path_factory.mktemp("m"), daemons=True
    ) as sandbox:
        yield sandbox


def until(box: Sandbox, job: str, condition: Callable[[], object]) -> None:
    """Wait for something to be so of a job; not for ever."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{why(box, job)}"
        time.sleep(0.5)


def trains(box: Sandbox, folder: Path, *, slip_class: str = "shared", gres: str = "gpu:1") -> str:
    """The training with the two lines as a job; returns once it can be restored."""
    folder.mkdir()
    script = f"export LOSSES={folder}/losses; exec {shlex.join([sys.executable, SCRIPT, *WORDS])}"
    words = (f"--slip-class={slip_class}", f"--gres={gres}")
    job = sbatch(box, folder / "out", *words, script=script)
    until(box, job, lambda: told(box, job).get("restorable"))
    return job


def told(box: Sandbox, job: str) -> dict[str, Any]:
    """What its node says of the training."""
    return why(box, job).get("training") or {}


def node_of(box: Sandbox, job: str) -> str:
    """Where it runs."""
    return box.run("squeue", "-h", "-j", job, "-o", "%N").stdout.strip()


def story(box: Sandbox, job: str) -> str:
    """All that happened to it."""
    return "\n".join(str(line["text"]) for line in why(box, job).get("story", ()))


def assert_nothing_lost(folder: Path, undisturbed: list[str]) -> None:
    """Every mini-batch is there, each with the loss it would have had; a few may be there twice."""
    found = losses(folder)
    assert found[-1] == undisturbed[-1], "the parameters at the end, to the bit"
    assert set(found) == set(undisturbed)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The losses of a training that nobody moves."""
    return alone(tmp_path_factory.mktemp("alone") / "run", f"--epochs={EPOCHS}")


def test_a_training_goes_on_on_another_node(
    box: Sandbox, tmp_path: Path, undisturbed: list[str]
) -> None:
    """From the mini-batch it was saved at, in the same log, with everything it knew."""
    job = trains(box, tmp_path / "job")
    before = node_of(box, job)
    answer = slipstream(box, "move", job)
    assert answer is not None
    (target,) = answer["nodes"]
    assert target != before
    until(box, job, lambda: "moved, " in story(box, job))
    assert node_of(box, job) == target
    wait_for(box, job)
    assert_nothing_lost(tmp_path / "job", undisturbed)
    assert "requeued" in story(box, job)


def test_a_scheduler_killed_over_a_move_goes_on_with_it(
    box: Sandbox, tmp_path: Path, undisturbed: list[str]
) -> None:
    """Killed when the job had left: the next one finds it in the journal, and starts it."""
    job = trains(box, tmp_path / "job")
    assert slipstream(box, "move", job)
    until(box, job, lambda: "requeued" in story(box, job))
    box.kill("scheduler")
    box.revive()
    until(box, job, lambda: "moved, " in story(box, job))
    wait_for(box, job)
    assert_nothing_lost(tmp_path / "job", undisturbed)


def test_an_auto_guest_owns_the_gpu_it_moves_to(
    box: Sandbox, tmp_path: Path, undisturbed: list[str]
) -> None:
    """Its seat becomes a GPU while it waits for its start: nobody sits beside it any more."""
    job = trains(box, tmp_path / "job", slip_class="auto", gres="slot:1")
    assert why(box, job)["role"] == "guest"
    assert slipstream(box, "move", job)
    until(box, job, lambda: "moved, " in story(box, job))
    told = why(box, job)
    assert (told["role"], told["gpus"], told["slots"]) == ("owner", 1, 0)
    wait_for(box, job)
    assert_nothing_lost(tmp_path / "job", undisturbed)


def test_a_training_leaves_a_drained_node_by_itself(
    box: Sandbox, tmp_path: Path, undisturbed: list[str]
) -> None:
    """In mode enforce nobody has to ask; in any other nothing moves."""
    job = trains(box, tmp_path / "job")
    before = node_of(box, job)
    box.run("scontrol", "update", f"NodeName={before}", "State=DRAIN", "Reason=repair")
    try:
        assert slipstream(box, "mode", "enforce")
        until(box, job, lambda: "moved, " in story(box, job))
    finally:
        box.run("scontrol", "update", f"NodeName={before}", "State=RESUME")
        assert slipstream(box, "mode", "advise")
    assert node_of(box, job) != before
    assert "its node is to be empty" in story(box, job)
    wait_for(box, job)
    assert_nothing_lost(tmp_path / "job", undisturbed)


def test_a_job_that_cannot_be_moved_says_why(box: Sandbox, tmp_path: Path) -> None:
    """It trains on; exit code 1 and a sentence."""
    script = f"exec {shlex.join([sys.executable, '-c', 'import time; time.sleep(600)'])}"
    job = sbatch(box, tmp_path / "out", "--slip-class=shared", "--gres=gpu:1", script=script)
    until(box, job, lambda: why(box, job).get("phase") == "running")
    words = (sys.executable, "-m", "slipstream.cli", "move", job, "--yes")
    done = box.run(*words, check=False)
    assert done.returncode == 1
    assert "does not move (not_restorable)" in done.stderr
    assert node_of(box, job)
    box.run("scancel", job)
    wait_for(box, job)
