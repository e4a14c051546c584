# SPDX-License-Identifier: Apache-2.0
"""What `why`, `report` and `jobs` say of jobs on a real cluster, over their end, moves, kills."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from run_rig import SCRIPT, losses
from sandbox.jobs import OURS, empty, sbatch, wait_for
from sandbox.trainings import TRAINING, seen, slipstream, story, trains, until
from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(240)]

HERE = Path(__file__).parent
EPOCHS = 40  # of five mini-batches


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Two nodes of one GPU whose coordinators enforce, with short turns."""
    shape = Shape(nodes=2, gpus_per_node=1, racks=1, cpus_per_node=8)
    home = tmp_path_factory.mktemp("f")
    with Sandbox.started(
        shape, name="figures", home=home, daemons=True, mode="enforce", turn_s=2.0
    ) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def _nobody_else(box: Sandbox) -> None:
    """Nodes are few."""
    box.revive()
    empty(box)


def told(box: Sandbox, job: str) -> dict[str, Any]:
    """What is known of the training."""
    return seen(box, job).get("training") or {}


def said(box: Sandbox, *words: str) -> str:
    """What a command says to people."""
    done = box.run(sys.executable, "-m", "slipstream.cli", *words, check=False)
    return done.stdout + done.stderr


def test_figures_stay_when_a_job_has_ended(box: Sandbox, tmp_path: Path) -> None:
    """To the mini-batch, in `why` and in `report`, also by a scheduler that was killed since."""
    words = [word for word in TRAINING if not word.startswith("--minibatches")]
    script = shlex.join([*words, "--minibatches=60"])
    job = sbatch(box, tmp_path / "out", OURS, "--gres=gpu:1", "-c1", script=script)
    wait_for(box, job)
    until(box, job, lambda: told(box, job).get("minibatch") == 60)
    until(box, job, lambda: seen(box, job)["phase"] == "ended")
    before = told(box, job)
    assert before["launch_s"] > 0
    assert before["train_s"] > 0
    text = said(box, "why", job)
    assert "ended: mini-batch 60" in text
    assert "launched in" in text
    report = said(box, "report", job)
    for row in ("mini-batches  60", "share         100 %", "times ", "waited        0 s"):
        assert row in report
    box.kill("scheduler")
    box.revive()
    until(box, job, lambda: told(box, job) == before)


def test_figures_of_a_job_that_ends_while_the_scheduler_is_dead_come_later(
    box: Sandbox, tmp_path: Path
) -> None:
    """Its node keeps them until a scheduler has had them."""
    words = [word for word in TRAINING if not word.startswith("--minibatches")]
    script = shlex.join([*words, "--minibatches=60"])
    job = sbatch(box, tmp_path / "out", OURS, "--gres=gpu:1", "-c1", script=script)
    until(box, job, lambda: told(box, job).get("minibatch"))
    box.kill("scheduler")
    wait_for(box, job)
    box.revive()
    until(box, job, lambda: told(box, job).get("minibatch") == 60)


def test_figures_add_up_over_a_move(box: Sandbox, tmp_path: Path) -> None:
    """All mini-batches that were done, and how many of them again: the checkpoint is older."""
    folder = tmp_path / "job"
    folder.mkdir()
    (folder / "slow").touch()
    words = [sys.executable, SCRIPT, f"--epochs={EPOCHS}", "--pause-ms=60"]
    script = f"export LOSSES={folder}/losses SLOW={folder}/slow; exec {shlex.join(words)}"
    flags = ("--slip-class=shared", "--gres=gpu:1")
    job = sbatch(box, folder / "out", *flags, script=script)
    until(box, job, lambda: told(box, job).get("restorable"))
    until(box, job, lambda: slipstream(box, "move", job))
    until(box, job, lambda: "moved, " in story(box, job))
    (folder / "slow").unlink()
    wait_for(box, job)
    done = len(losses(folder)) - 1  # the last line has the parameters
    again = done - 5 * EPOCHS
    until(box, job, lambda: told(box, job)["minibatch"] == done)
    found = told(box, job)
    assert (found["starts"], found["moves"]) == (2, 1)
    assert found["minibatches_again"] == again
    text = said(box, "why", job)
    assert f"mini-batch {done}" in text
    assert "started 2 times, moved 1 time" in text
    until(box, job, lambda: seen(box, job)["phase"] == "ended")
    parked = said(box, "park", job, "--yes")
    assert f"job {job} is not parked (training_over)" in parked


def test_children_that_exit_stay_in_the_total_over_a_killed_coordinator(
    box: Sandbox, tmp_path: Path
) -> None:
    """It never falls: neither when the first child exits nor when the node's daemon begins anew."""
    script = shlex.join([sys.executable, str(HERE / "hogwild_training.py"), "40", "120"])
    words = (OURS, "--gres=gpu:1", "-c1", "--nodelist=n1")
    job = sbatch(box, tmp_path / "out", *words, script=script)
    totals: list[int] = []

    def counted() -> int:
        totals.append(told(box, job).get("minibatch") or 0)
        return totals[-1]

    until(box, job, lambda: counted() > 100)
    box.kill("coordinator-n1")
    box.revive()
    until(box, job, lambda: counted() == 160)
    wait_for(box, job)
    until(box, job, lambda: seen(box, job)["phase"] == "ended")
    assert counted() == 160
    assert totals == sorted(totals)


def test_programs_of_one_script_add_up(box: Sandbox, tmp_path: Path) -> None:
    """The second one has the first one's page."""
    words = [word for word in TRAINING if not word.startswith("--minibatches")]
    one, two = (shlex.join([*words, f"--minibatches={count}"]) for count in (30, 20))
    script = f"{one}; {two}"
    job = sbatch(box, tmp_path / "out", OURS, "--gres=gpu:1", "-c1", script=script)
    wait_for(box, job)
    until(box, job, lambda: told(box, job).get("minibatch") == 50)


def test_jobs_shows_who_runs_who_waits_for_its_turn_and_who_is_parked(
    box: Sandbox, tmp_path: Path
) -> None:
    """Two shared jobs on one GPU, then one of them parked; `-t` finds each."""
    flags = ("--slip-class=shared", "--gres=slot:1", "--nodelist=n1", "-c1")
    jobs = [trains(box, tmp_path / f"{number}", *flags) for number in range(2)]

    def states() -> list[str]:
        return sorted(str(seen(box, job).get("state")) for job in jobs)

    until(box, jobs[0], lambda: states() == ["running", "waits_for_turn"])

    def listed(state: str) -> list[str]:
        return [one["job"] for one in (slipstream(box, "jobs", "-t", state) or {})["jobs"]]

    until(box, jobs[0], lambda: len(listed("waits_for_turn")) == 1)
    until(box, jobs[0], lambda: all(told(box, job).get("minibatch") for job in jobs))
    assert slipstream(box, "park", jobs[0])
    until(box, jobs[0], lambda: seen(box, jobs[0])["state"] == "parked")
    until(box, jobs[0], lambda: seen(box, jobs[1])["state"] == "running")
    assert listed("parked") == [jobs[0]]
    assert jobs[0] not in listed("running")
    text = said(box, "jobs")
    assert "parked" in text
    waited = told(box, jobs[0])["parked_s"]
    until(box, jobs[0], lambda: told(box, jobs[0])["parked_s"] > waited)


def test_a_training_that_has_ended_is_not_parked_though_its_script_goes_on(
    box: Sandbox, tmp_path: Path
) -> None:
    """Nothing is left to park: it says so, and not that it was done."""
    words = [word for word in TRAINING if not word.startswith("--minibatches")]
    script = f"{shlex.join([*words, '--minibatches=20'])}; sleep 100"
    job = sbatch(box, tmp_path / "out", OURS, "--gres=gpu:1", "-c1", script=script)
    until(box, job, lambda: told(box, job).get("phase") == "ended")
    assert "Its training has ended" in said(box, "park", job, "--yes")
    assert told(box, job)["minibatch"] == 20


def test_a_task_of_an_array_is_found_by_its_raw_number(box: Sandbox, tmp_path: Path) -> None:
    """By `why`, `report` and `park`, as sacct and the task itself know it."""
    output = tmp_path / "%a"
    words = ("--array=1-2", OURS, "--gres=gpu:1", "-c1")
    array = trains(box, output, *words)
    task = f"{array}_1"
    until(box, task, lambda: told(box, task).get("minibatch"))
    raw = box.run("squeue", "-h", "-r", "-j", task, "-o", "%A").stdout.strip()
    assert raw not in (array, task)
    assert seen(box, raw)["job"] == task
    assert said(box, "report", raw).startswith(f"job {task} ")
    assert f"job {task} on " in said(box, "park", raw, "--yes")
    assert f"job {task} on " in said(box, "release", raw, "--yes")
