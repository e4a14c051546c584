# SPDX-License-Identifier: Apache-2.0
"""Grow-shrink on a real cluster: a training takes a GPU that nobody wants, and gives it back."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import progress
from run_rig import SCRIPT
from sandbox.jobs import empty, sbatch
from sandbox.trainings import slipstream, story, until, why
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sandbox

PATIENCE_S = 180.0
EXAMPLES = Path(progress.__file__).parent
BEGINS = re.compile(r"training on (\d+) GPUs after (\d+)")


STORE = """
from torch.distributed import TCPStore
TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
"""


@pytest.fixture(scope="module")
def torchrun() -> None:
    """Debian's own torch is built without libuv, and its torchrun ends at once."""
    done = subprocess.run(
        [sys.executable, "-c", STORE], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"this torch's torchrun does not work: {done.stderr.splitlines()[-1]}")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Two nodes of two GPUs, on which everything is carried out, and sooner than elsewhere."""
    soon = {"grow_after_s": "2", "requeue_pause_s": "1"}
    home = tmp_path_factory.mktemp("e")
    shape = Shape(nodes=2, gpus_per_node=2, racks=1)
    with Sandbox.started(
        shape, name="elastic", home=home, daemons=True, mode="enforce", scheduler=soon
    ) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def _nobody_else(box: Sandbox) -> None:
    """No test finds the jobs of another one on the GPUs."""
    empty(box)


def begun(output: Path) -> list[tuple[int, int]]:
    """With how many GPUs each of its runs began, and after how many mini-batches."""
    text = output.read_text() if output.exists() else ""
    return [(int(gpus), int(done)) for gpus, done in BEGINS.findall(text)]


@pytest.mark.usefixtures("torchrun")
def test_an_elastic_training_takes_a_gpu_nobody_wants_and_gives_it_back(
    box: Sandbox, tmp_path: Path
) -> None:
    """From one GPU to two on the node that has them, back to one on that for who then starts.

    Each time it goes on from where it was saved, in the same log; its story tells each step.
    """
    output = tmp_path / "out"
    words = ("--device=occupancy", "--minibatches=100000", "--host-ms=20", "--report-every=1")
    script = f"cd {EXAMPLES}; PYTHON={sys.executable} bash ./elastic.sh {' '.join(words)}"
    flags = ("--slip-class=shared", "--slip-elastic=1-2", "--gres=gpu:1", "--cpus-per-task=2")
    job = sbatch(box, output, *flags, script=script)
    until(box, job, lambda: trains_with(box, job, 2), PATIENCE_S)
    (here,) = why(box, job)["nodes"]
    sbatch(box, tmp_path / "wide", "--gres=gpu:2", script="sleep 600")
    owner = sbatch(box, tmp_path / "owner", "--gres=gpu:1", script="sleep 600")
    until(box, job, lambda: why(box, owner).get("phase") == "running", PATIENCE_S)
    until(box, job, lambda: trains_with(box, job, 1), PATIENCE_S)
    told = why(box, job)
    assert (told["gpus"], told["gpus_asked"], told["nodes"]) == (1, "node:1", [here])
    assert_nothing_was_done_anew(output)
    text = story(box, job)
    for step in (
        "is to train with 2 GPUs instead of 1, on n",
        "nobody waits for these GPUs",
        f"is to train with 1 GPUs instead of 2, on {here}: another job needs the GPUs",
        "saved, ",
        "requeued",
    ):
        assert step in text, text


def trains_with(box: Sandbox, job: str, gpus: int) -> bool:
    """Whether it came to that; where Slurm was sooner than we, an operator asks again."""
    text = story(box, job)
    if f"trains with {gpus} GPUs" in text:
        return True
    if gpus > 1 and text.rstrip().endswith("instead") and "Slurm started it" in text:
        slipstream(box, "resize", job, str(gpus))
    return False


def assert_nothing_was_done_anew(output: Path) -> None:
    """Runs with one GPU, two and one, in one log, each from behind the last checkpoint."""
    runs, lines = begun(output), output.read_text()
    sizes = [gpus for gpus, _ in runs]
    assert [now for before, now in zip([0, *sizes], sizes, strict=False) if now != before] == [
        *(1, 2, 1)
    ], lines[-2000:]
    assert runs[0][1] == 0
    at = 0
    for gpus, after in runs[1:]:
        line = f"training on {gpus} GPUs after {after}\n"
        before, then = lines[: lines.index(line, at)], lines[lines.index(line, at) + len(line) :]
        at = len(before) + 1
        seen = [one.minibatch for text in before.splitlines() if (one := progress.parse(text))]
        assert max(seen) >= after > 0, "it goes on from what was done"
        first = next(one.minibatch for text in then.splitlines() if (one := progress.parse(text)))
        assert first == after + 1, "and no more than that"


def test_an_operator_is_told_what_cannot_be(box: Sandbox, tmp_path: Path) -> None:
    """Exit code 1 and a sentence; nothing happens."""
    job = sbatch(box, tmp_path / "out", "--slip-class=shared", script="sleep 600")
    until(box, job, lambda: why(box, job).get("phase"))
    assert slipstream(box, "resize", job, "2") is None


def test_a_node_is_emptied_for_a_job_that_fits_nowhere(box: Sandbox, tmp_path: Path) -> None:
    """One GPU of each node is free and two of one are wanted: a training moves to make room."""
    hole = sbatch(box, tmp_path / "hole", "--gres=gpu:1", "--nodelist=n1", script="sleep 600")
    until(box, hole, lambda: why(box, hole).get("phase") == "running")
    train = shlex.join([sys.executable, SCRIPT, "--epochs=100000", "--pause-ms=60"])
    jobs = []
    for name in ("one", "two"):  # the first fills n1, so that the second is on n2
        script = f"export LOSSES={tmp_path}/{name}.losses; exec {train}"
        jobs.append(
            sbatch(box, tmp_path / name, "--slip-class=shared", "--gres=gpu:1", script=script)
        )
        until(box, jobs[-1], lambda: (why(box, jobs[-1]).get("training") or {}).get("restorable"))
    assert [why(box, job)["nodes"] for job in jobs] == [["n1"], ["n2"]]
    box.run("scancel", hole)
    flags = ("--slip-class=guaranteed", "--gres=gpu:2")
    wide = sbatch(box, tmp_path / "wide", *flags, script="sleep 600")
    until(box, wide, lambda: why(box, wide).get("phase") == "running", PATIENCE_S)
    told = [story(box, job) for job in jobs]
    assert sum("moves to n" in text for text in told) == 1, told
    # The one that made room may still be on its way.
    until(box, jobs[0], lambda: all(why(box, job).get("nodes") for job in jobs), PATIENCE_S)
    assert why(box, jobs[0])["nodes"] == why(box, jobs[1])["nodes"] != why(box, wide)["nodes"]
