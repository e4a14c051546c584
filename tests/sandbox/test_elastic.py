# SPDX-License-Identifier: Apache-2.0
"""Grow-shrink on a real cluster: a training takes a GPU that nobody wants, and gives it back."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import progress
from sandbox.jobs import sbatch
from sandbox.trainings import slipstream, why
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.sandbox

PATIENCE_S = 90.0
EXAMPLES = Path(progress.__file__).parent
BEGINS = re.compile(r"training on (\d+) GPUs after (\d+)")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """One node of two GPUs, on which everything is carried out, and sooner than elsewhere."""
    soon = {"mode": "enforce", "grow_after_s": "2", "requeue_pause_s": "1"}
    home = tmp_path_factory.mktemp("e")
    shape = Shape(nodes=1, gpus_per_node=2, racks=1)
    with Sandbox.started(shape, name="elastic", home=home, daemons=True, scheduler=soon) as sandbox:
        yield sandbox


def until(box: Sandbox, job: str, condition: Callable[[], object]) -> None:
    """Wait for something to be so; not for ever."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{why(box, job)}"
        time.sleep(0.5)


def story(box: Sandbox, job: str) -> str:
    """All that happened to it."""
    return "\n".join(str(line["text"]) for line in why(box, job).get("story", ()))


def begun(output: Path) -> list[tuple[int, int]]:
    """With how many GPUs each of its runs began, and after how many mini-batches."""
    text = output.read_text() if output.exists() else ""
    return [(int(gpus), int(done)) for gpus, done in BEGINS.findall(text)]


def test_an_elastic_training_takes_a_gpu_nobody_wants_and_gives_it_back(
    box: Sandbox, tmp_path: Path
) -> None:
    """From one GPU to two when nobody waits, back to one for a job that then starts.

    Each time it goes on from where it was saved, in the same log; its story tells each step.
    """
    output = tmp_path / "out"
    words = ("--device=occupancy", "--minibatches=100000", "--host-ms=20", "--report-every=1")
    script = f"cd {EXAMPLES}; PYTHON={sys.executable} bash ./elastic.sh {' '.join(words)}"
    flags = ("--slip-class=shared", "--slip-elastic=1-2", "--gres=gpu:1", "--cpus-per-task=2")
    job = sbatch(box, output, *flags, script=script)
    until(box, job, lambda: "trains with 2 GPUs" in story(box, job))
    owner = sbatch(box, tmp_path / "owner", "--gres=gpu:1", script="sleep 600")
    until(box, job, lambda: why(box, owner).get("phase") == "running")
    until(box, job, lambda: "trains with 1 GPUs" in story(box, job))
    told = why(box, job)
    assert (told["gpus"], told["gpus_asked"]) == (1, "node:1")
    runs = begun(output)
    assert [gpus for gpus, _ in runs] == [1, 2, 1], output.read_text()[-2000:]
    assert 0 == runs[0][1] < runs[1][1] < runs[2][1], "each goes on from a checkpoint"
    lines = output.read_text()
    for gpus, after in runs[1:]:
        before, _, then = lines.partition(f"training on {gpus} GPUs after {after}\n")
        seen = [one.minibatch for line in before.splitlines() if (one := progress.parse(line))]
        assert max(seen) >= after, "nothing was skipped"
        first = next(one.minibatch for line in then.splitlines() if (one := progress.parse(line)))
        assert first == after + 1, "nor done anew that was saved"
    text = story(box, job)
    for step in (
        "is to train with 2 GPUs instead of 1, on n1: nobody waits for these GPUs",
        "is to train with 1 GPUs instead of 2, on n1: another job needs the GPUs",
        "saved, ",
        "requeued",
    ):
        assert step in text, text


def test_an_operator_is_told_what_cannot_be(box: Sandbox, tmp_path: Path) -> None:
    """Exit code 1 and a sentence; nothing happens."""
    job = sbatch(box, tmp_path / "out", "--slip-class=shared", script="sleep 600")
    until(box, job, lambda: why(box, job).get("phase"))
    assert slipstream(box, "resize", job, "2") is None
