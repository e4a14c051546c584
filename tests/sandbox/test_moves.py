# SPDX-License-Identifier: Apache-2.0
"""Moves on a real cluster: a training goes on on another node, to the bit, whatever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from run_rig import SCRIPT, alone, losses
from sandbox.jobs import empty, sbatch, start_is_on_disk, wait_for
from sandbox.trainings import seen as why
from sandbox.trainings import slipstream, story, until
from slipstream.sandbox import Sandbox, SandboxError, Shape
from slipstream.sandbox.select_plugin import plugin_dir

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.sandbox

PATIENCE_S = 60.0
EPOCHS = 60  # of five mini-batches


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Three nodes of one GPU."""
    shape = Shape(nodes=3, gpus_per_node=1, racks=1)
    with Sandbox.started(
        shape, name="moves", home=tmp_path_factory.mktemp("m"), daemons=True
    ) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def _nobody_else(box: Sandbox) -> None:
    """Nodes are few: what a test left running would be in the way of the next one's moves."""
    empty(box)


def trains(
    box: Sandbox,
    folder: Path,
    pause_ms: int = 60,
    *,
    slip_class: str = "shared",
    gres: str = "gpu:1",
    epochs: int = EPOCHS,
) -> str:
    """The training with the two lines as a job; returns once it can be restored.

    It is slow as long as its file `slow` is there: see `ends`.
    """
    folder.mkdir()
    (folder / "slow").touch()
    words = [sys.executable, SCRIPT, f"--epochs={epochs}", f"--pause-ms={pause_ms}"]
    script = f"export LOSSES={folder}/losses SLOW={folder}/slow; echo $$ > {folder}/pid; "
    script += f'echo "begins ${{SLURM_RESTART_COUNT:-0}}"; exec {shlex.join(words)}'
    flags = (f"--slip-class={slip_class}", f"--gres={gres}")
    job = sbatch(box, folder / "out", *flags, script=script)
    until(box, job, lambda: told(box, job).get("restorable"))
    return job


def moved(box: Sandbox, job: str) -> dict[str, Any]:
    """Have it moved; as soon as the scheduler has seen that other nodes are free again."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not (answer := slipstream(box, "move", job)):
        assert time.monotonic() < deadline_s, json.dumps(slipstream(box, "gpus"))
        time.sleep(0.5)
    return answer


def ends(box: Sandbox, job: str, folder: Path, undisturbed: list[str]) -> None:
    """Nothing is to happen to it any more: the rest of it as quickly as it can; nothing is lost."""
    (folder / "slow").unlink()
    # Not its end in Slurm: that may take a job for ended, or not answer, and be told better.
    until(box, job, lambda: losses(folder)[-1] == undisturbed[-1], PATIENCE_S)
    wait_for(box, job)
    assert_nothing_lost(folder, undisturbed)


def told(box: Sandbox, job: str) -> dict[str, Any]:
    """What its node says of the training."""
    return why(box, job).get("training") or {}


def node_of(box: Sandbox, job: str) -> str:
    """Where it runs."""
    return box.run("squeue", "-h", "-j", job, "-o", "%N").stdout.strip()


def state_of(box: Sandbox, job: str) -> str:
    """What Slurm says of it; nothing while it does not answer."""
    return box.run("squeue", "-h", "-j", job, "-o", "%T", check=False).stdout.strip()


def refused(box: Sandbox, job: str) -> str:
    """What is said to who wants to move a job that does not move."""
    words = (sys.executable, "-m", "slipstream.cli", "move", job, "--yes")
    done = box.run(*words, check=False)
    assert done.returncode == 1
    return done.stderr


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """A filesystem in a folder's place that has no room for anything."""
    options = "size=4k,mode=1777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "full", folder], check=True)
    try:
        (folder / "full").write_bytes(b"x" * 4096)
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


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
    (target,) = moved(box, job)["nodes"]
    assert target != before
    assert "does not move (moving)" in refused(box, job), "one move at a time"
    until(box, job, lambda: "moved, " in story(box, job))
    assert node_of(box, job) == target
    ends(box, job, tmp_path / "job", undisturbed)
    assert "requeued" in story(box, job)
    copies = {one["job_id"]: one for one in (slipstream(box, "checkpoints") or {})["checkpoints"]}
    assert copies[job]["bytes_carried"] > 0
    assert copies[job]["goes_at_s"] is None, "Slurm still knows the job"
    told_there = (box.layout.log / f"coordinator-{target}.stderr").read_text()
    assert f"job {job} comes: 0 MB of it are here" in told_there, "before it was"
    printed = (tmp_path / "job" / "out").read_text().splitlines()
    assert [line for line in printed if line.startswith("begins")] == ["begins 0", "begins 1"]


def test_a_scheduler_killed_over_a_move_goes_on_with_it(
    box: Sandbox, tmp_path: Path, undisturbed: list[str]
) -> None:
    """Killed when the job had left: the next one finds it in the journal, and starts it."""
    job = trains(box, tmp_path / "job")
    assert moved(box, job)
    until(box, job, lambda: "requeued" in story(box, job))
    box.kill("scheduler")
    box.revive()
    until(box, job, lambda: "moved, " in story(box, job))
    ends(box, job, tmp_path / "job", undisturbed)


def test_what_goes_wrong_while_it_is_saved_leaves_it_training(
    box: Sandbox, tmp_path: Path, undisturbed: list[str]
) -> None:
    """No room on the shared filesystem; none on the ramdisk, and a coordinator killed over it.

    Without room for a durable copy it stays where it is. The next coordinator is asked again, the
    training saves itself where there is room, and the job moves.
    """
    job = trains(box, tmp_path / "job", pause_ms=120)
    before = node_of(box, job)
    (ramdisk,) = box.layout.run.glob(f"**/checkpoints/{job}-*")
    with full(box.layout.durable):
        assert moved(box, job)
        until(box, job, lambda: "No space left" in story(box, job))
    assert node_of(box, job) == before
    pid = int((tmp_path / "job" / "pid").read_text())
    with full(ramdisk):
        os.kill(pid, signal.SIGSTOP)
        try:
            assert moved(box, job)
            time.sleep(0.5)  # for its coordinator to ask for a checkpoint that cannot come yet
            box.kill(f"coordinator-{before}")
        finally:
            os.kill(pid, signal.SIGCONT)
        box.revive()
        until(box, job, lambda: "moved, " in story(box, job))
    assert "(no room on the ramdisk): requeued" in story(box, job)
    copies = {one["job_id"]: one for one in (slipstream(box, "checkpoints") or {})["checkpoints"]}
    assert copies[job]["spilled"]
    ends(box, job, tmp_path / "job", undisturbed)


def test_a_job_started_anew_waits_for_its_coordinator(
    box: Sandbox, tmp_path: Path, undisturbed: list[str]
) -> None:
    """Which alone knows where it was saved: killed, and back a little after the job."""
    job = trains(box, tmp_path / "job", pause_ms=100)
    assert moved(box, job)
    until(box, job, lambda: "moved, " in story(box, job))
    nodes = [f"coordinator-n{number}" for number in (1, 2, 3)]
    for name in nodes:
        box.kill(name)
    box.run("scontrol", "requeue", job)
    until(box, job, lambda: _runs_again(box, job))
    time.sleep(1.0)
    box.revive()
    ends(box, job, tmp_path / "job", undisturbed)
    begun = [line for line in losses(tmp_path / "job") if line.startswith("1 ")]
    assert len(begun) == 1, "it did not begin from nothing"


def _runs_again(box: Sandbox, job: str) -> bool:
    shown = box.run("scontrol", "show", "job", job).stdout
    return "JobState=RUNNING" in shown and "Restarts=2" in shown


@pytest.fixture
def wrapped(box: Sandbox) -> Iterator[Sandbox]:
    """With the select wrapper in slurmctld for the length of a test."""
    try:
        folders = plugin_dir()
    except SandboxError as error:
        pytest.skip(str(error))
    before = box.layout.slurm_conf.read_text()
    _with_conf(box, f"{before}\nPluginDir={folders}\n")
    yield box
    _with_conf(box, before)


def _with_conf(box: Sandbox, text: str) -> None:
    """In good order: killed, Slurm would forget which jobs of earlier tests have ended."""
    box.layout.slurm_conf.write_text(text)
    controller = box.daemons()["slurmctld"]
    controller.send(signal.SIGTERM)
    deadline_s = time.monotonic() + PATIENCE_S
    while controller.alive:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
    _controller_back(box)


def _controller_back(box: Sandbox) -> None:
    box.revive()
    deadline_s = time.monotonic() + PATIENCE_S
    while box.run("scontrol", "ping", check=False).returncode:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.parametrize("at_once", [False, True])
def test_a_controller_killed_when_the_job_has_left(
    wrapped: Sandbox, tmp_path: Path, undisturbed: list[str], *, at_once: bool
) -> None:
    """With the wrapper loaded: slurmctld dies between requeue and start, and is back a bit later.

    Whether it remembers the requeue, forgets it or takes the job for failed is its own business;
    the job goes on from its copy.
    """
    box = wrapped
    job = trains(box, tmp_path / "job", pause_ms=150)
    start_is_on_disk(box, job)
    maps = Path(f"/proc/{box.daemons()['slurmctld'].pid}/maps").read_text()
    assert "select_cons_tres.so" in maps.replace(plugin_dir().split(":")[1], "")
    assert moved(box, job)
    if at_once:
        until(box, job, lambda: state_of(box, job) != "RUNNING")
    else:
        until(box, job, lambda: "requeued" in story(box, job))
    box.kill("slurmctld")
    time.sleep(1.0)
    _controller_back(box)
    ends(box, job, tmp_path / "job", undisturbed)


def test_an_auto_guest_owns_the_gpu_it_sits_on(box: Sandbox, tmp_path: Path) -> None:
    """In mode enforce a placeholder holds it, and nobody else gets it.

    It ends by itself when the guest does, with the scheduler dead.
    """
    job = trains(box, tmp_path / "job", slip_class="auto", gres="slot:1")
    with enforced(box):
        until(box, job, lambda: why(box, job)["role"] == "owner")
    here = node_of(box, job)
    assert placeholders(box) == [f"slipstream-owner-{job} {here}"]
    assert "a placeholder is asked for" in story(box, job)
    gpus = {one["node"]: one for one in (slipstream(box, "gpus") or {})["nodes"]}
    until(box, job, lambda: _seats(box, here) == [(job, [])])
    assert gpus[here]["gpus_used"] == 1
    box.kill("scheduler")
    try:
        box.run("scancel", job)
        deadline_s = time.monotonic() + PATIENCE_S
        while placeholders(box):
            assert time.monotonic() < deadline_s, box.run("squeue").stdout
            time.sleep(0.5)
    finally:
        box.revive()


def _seats(box: Sandbox, node: str) -> list[tuple[str | None, list[str]]]:
    nodes = {one["node"]: one for one in (slipstream(box, "gpus") or {"nodes": []})["nodes"]}
    return [(one["owner_job"], one["guest_jobs"]) for one in nodes[node]["devices"]]


def placeholders(box: Sandbox) -> list[str]:
    """Jobs that hold GPUs for others, and where."""
    lines = box.run("squeue", "-h", "--states=running", "-o", "%j %N").stdout.splitlines()
    return [line.strip() for line in lines if line.startswith("slipstream-owner-")]


@contextlib.contextmanager
def enforced(box: Sandbox) -> Iterator[None]:
    """Everything is carried out, for a while."""
    assert slipstream(box, "mode", "enforce")
    try:
        yield
    finally:
        assert slipstream(box, "mode", "advise")


def test_an_auto_guest_owns_the_gpu_it_moves_to(
    box: Sandbox, tmp_path: Path, undisturbed: list[str]
) -> None:
    """Its seat becomes a GPU while it waits for its start: nobody sits beside it any more."""
    job = trains(box, tmp_path / "job", slip_class="auto", gres="slot:1")
    assert why(box, job)["role"] == "guest"
    assert moved(box, job)
    until(box, job, lambda: "moved, " in story(box, job))
    until(box, job, lambda: why(box, job).get("role") == "owner")
    told = why(box, job)
    assert (told["gpus"], told["slots"]) == (1, 0)
    ends(box, job, tmp_path / "job", undisturbed)


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
    ends(box, job, tmp_path / "job", undisturbed)


def test_a_job_that_cannot_be_moved_says_why(box: Sandbox, tmp_path: Path) -> None:
    """It trains on; exit code 1 and a sentence."""
    script = f"exec {shlex.join([sys.executable, '-c', 'import time; time.sleep(600)'])}"
    job = sbatch(box, tmp_path / "out", "--slip-class=shared", "--gres=gpu:1", script=script)
    until(box, job, lambda: why(box, job).get("phase") == "running")
    assert "does not move (not_restorable)" in refused(box, job)
    assert node_of(box, job)
    box.run("scancel", job)
    wait_for(box, job)
