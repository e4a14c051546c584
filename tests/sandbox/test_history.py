# SPDX-License-Identifier: Apache-2.0
"""Runs become history on a real cluster, and the next submission knows of them."""

from __future__ import annotations

import shlex
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from sandbox.jobs import LOOK, sbatch, seen, wait_for
from sandbox.trainings import TRAIN, why
from slipstream.estimator.history import FILE, History
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from slipstream.estimator.runs import Run

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = pytest.mark.sandbox

SHAPE = Shape(nodes=1, gpus_per_node=6, racks=1, gpu_memory_mib=4096)


@pytest.fixture
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A node with our daemons, for the tests of this file."""
    home = tmp_path_factory.mktemp("h")
    with Sandbox.started(SHAPE, name="h", home=home, daemons=True) as sandbox:
        yield sandbox


def training(memory_mib: int, minibatches: int = 40) -> str:
    """A short one that says all it needs on its command line."""
    return shlex.join(
        [
            *(sys.executable, str(TRAIN), "--device=occupancy", f"--minibatches={minibatches}"),
            *(f"--memory-mib={memory_mib}", "--kernel-ms=5", "--kernels-per-minibatch=4"),
        ]
    )


def runs(box: Sandbox) -> list[Run]:
    """The history, the newest first."""
    with closing(History(box.layout.state / FILE)) as history:
        return list(history.runs())


def estimate_of(box: Sandbox, job: str) -> dict[str, Any]:
    """What a job was thought to need when it was submitted."""
    found: dict[str, Any] = why(box, job)["estimate"]
    return found


def test_the_second_submission_is_estimated_better(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Other hyper-parameters: the first is not known, the second is, and near to the truth."""
    words = ("--slip-class=shared", "--gres=gpu:1", "--time=5")
    first = sbatch(box, tmp_path / "1.out", *words, script=training(300))
    assert eventually(lambda: bool(why(box, first).get("estimate")))
    before = estimate_of(box, first)
    wait_for(box, first)
    assert eventually(lambda: len(runs(box)) == 1), (tmp_path / "1.out").read_text()
    (run,) = runs(box)
    assert run.family.endswith("/train.py")
    assert (run.gpus, run.ranks, run.alone, run.minibatches) == (1, 1, True, 40)
    assert run.gpu_memory_mib == 300
    assert run.numbers["arg.memory_mib"] == 300
    assert run.gpu_use_pct
    assert run.minibatch_ms
    assert run.run_s
    assert run.run_s > (run.launch_s or 0) > 0
    assert (run.cpu_s or 0) > 0.5
    assert (run.host_memory_mib or 0) > 100

    done = box.run(
        *("sbatch", f"--output={tmp_path / '2.out'}", *words, f"--wrap={training(280, 50)}")
    )
    second = done.stdout.split()[-1]
    assert "estimated 330 MiB GPU memory (like 1 run of yours), starts as owner, ~" in done.stderr
    assert eventually(lambda: bool(why(box, second).get("estimate")))
    after = estimate_of(box, second)
    assert (before["basis"], before["gpu_memory_mib"], before["run_s"]) == ("default", None, None)
    assert (after["basis"], after["gpu_memory_mib"]) == ("family", 330)
    wait_for(box, second)
    assert eventually(lambda: len(runs(box)) == 2)
    told = box.run(sys.executable, "-m", "slipstream.cli", "history", "export", *state(box)).stdout
    assert told.count("/train.py") == 2


def state(box: Sandbox) -> tuple[str, ...]:
    """Where its history is."""
    return ("--state-dir", str(box.layout.state))


def test_auto_without_gres_gets_its_gpus_from_the_estimate(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """One for a program nobody knows; for a known one what its runs had; an explicit one wins."""
    program = tmp_path / "two.py"
    program.write_text(
        f"import runpy, sys\nsys.path.insert(0, {str(TRAIN.parent)!r})\n"
        f"runpy.run_path({str(TRAIN)!r}, run_name='__main__')\n"
    )
    script = f"{LOOK}\nexec {training(50, 5).replace(str(TRAIN), str(program))}"

    def submitted(name: str, *words: str) -> tuple[str, Path]:
        """A job of it, and what it says."""
        output = tmp_path / name
        return sbatch(box, output, "--time=5", *words, script=script), output

    def gres(output: Path) -> str:
        """What a job holds; nothing before it runs."""
        return seen(output.read_text()).gres if output.exists() else ""

    two = ("--slip-class=shared", "--gres=gpu:2")
    known = [submitted("a", "--slip-class=auto"), submitted("b", *two), submitted("c", *two)]
    wait_for(box, *(job for job, _ in known))
    assert eventually(lambda: len(runs(box)) == len(known))
    assert [gres(output) for _, output in known] == ["gpu:1", "gpu:2", "gpu:2"]
    auto, outcome = submitted("d", "--slip-class=auto")
    named, explicit = submitted("e", "--slip-class=auto", "--gres=gpu:1")
    assert eventually(lambda: bool(gres(outcome) and gres(explicit)))
    assert (gres(outcome), gres(explicit)) == ("gpu:2", "gpu:1")
    box.run("scancel", auto, named)


def test_a_run_survives_both_daemons(box: Sandbox, tmp_path: Path, eventually: Eventually) -> None:
    """Coordinator and scheduler killed while it trains: the run is in the history all the same."""
    known = {run.key for run in runs(box)}
    output = tmp_path / "killed.out"
    words = ("--slip-class=shared", "--gres=gpu:1", "--time=5")
    job = sbatch(box, output, *words, script=training(222, 400))
    assert eventually(lambda: output.exists() and "mini-batch 20/" in output.read_text())
    box.kill("coordinator-n1")
    box.kill("scheduler")
    box.revive()
    wait_for(box, job)
    assert eventually(lambda: len(runs(box)) == len(known) + 1), output.read_text()
    (run,) = (run for run in runs(box) if run.key not in known)
    assert (run.gpu_memory_mib, run.minibatches) == (222, 400)
