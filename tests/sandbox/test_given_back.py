# SPDX-License-Identifier: Apache-2.0
"""What Slipstream holds is given back when its daemons are gone for good, or the switch is thrown.

The list is in docs/operations.md; most rows are proved elsewhere, and named there.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import OURS, sbatch
from sandbox.trainings import TRAINING, minibatches, seen, trains
from slipstream.coordinator import blocks
from slipstream.sandbox import Sandbox, Shape
from slipstream.wire.control_block import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = pytest.mark.sandbox

TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=1")
SHARED = ("--slip-class=shared", "--gres=slot:1", "--nodelist=n1")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Two nodes of one GPU whose coordinators enforce, with short turns."""
    shape = Shape(nodes=2, gpus_per_node=1, racks=1, cpus_per_node=8)
    home = tmp_path_factory.mktemp("g")
    soon = {"extend_from_s": "3"}
    with Sandbox.started(
        shape, name="back", home=home, daemons=True, mode="enforce", turn_s=2.0, scheduler=soon
    ) as sandbox:
        yield sandbox


@pytest.fixture(autouse=True)
def _empty(box: Sandbox, eventually: Eventually) -> Iterator[None]:
    """Everybody lives again and nothing is left, after each test."""
    yield
    box.layout.disable_file.unlink(missing_ok=True)
    box.revive()
    box.run("scancel", "--user=root", check=False)
    assert eventually(lambda: not box.run("squeue", "-h").stdout.strip())


def phases(box: Sandbox) -> list[Phase]:
    """What the trainings on the first node do, by their pages."""
    pages = list(blocks.found(box.layout.run / "n1" / "blocks"))
    for page in pages:
        page.forget()
    return [page.progress.phase for page in pages if page.progress.pid]


def two_in_turns(box: Sandbox, folder: Path, eventually: Eventually) -> list[Path]:
    """Two shared jobs of one GPU, of which one is parked; what they print."""
    outputs = [folder / "one", folder / "two"]
    for output in outputs:
        trains(box, output, *SHARED)
    assert eventually(lambda: Phase.PARKED in phases(box)), phases(box)
    return outputs


def both_get_on(outputs: list[Path], eventually: Eventually) -> bool:
    """Whether each of them does more mini-batches."""
    before = [minibatches(one) for one in outputs]
    return eventually(lambda: all(minibatches(o) > b for o, b in zip(outputs, before, strict=True)))


def test_the_kill_switch_ends_turns_at_once(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Nobody is parked any more, by the daemon's word or without it: guests pass the baton."""
    outputs = two_in_turns(box, tmp_path, eventually)
    box.layout.disable_file.touch()
    assert eventually(lambda: Phase.WAITING_FOR_BATON in phases(box)), phases(box)
    assert both_get_on(outputs, eventually)
    box.layout.disable_file.unlink()
    assert eventually(lambda: Phase.PARKED in phases(box)), "turns again"
    assert both_get_on(outputs, eventually)


def test_coordinators_gone_for_good_leave_nobody_parked(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Killed while one is parked, and the scheduler with them: all go on by the baton."""
    outputs = two_in_turns(box, tmp_path, eventually)
    for name in ("coordinator-n1", "coordinator-n2", "scheduler"):
        box.kill(name)
    assert both_get_on(outputs, eventually)


def limit(box: Sandbox, job: str) -> str:
    """Its time limit, by Slurm."""
    return box.run("squeue", "-h", f"--jobs={job}", "-o", "%l").stdout.strip()


def test_what_jobs_of_torchrun_waited_is_given_back(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Two of them in turns: each is credited its waiting, although torchrun itself never waits."""
    launched = shlex.join([sys.executable, "-m", *TORCHRUN, *TRAINING[1:]])
    outputs = [tmp_path / "one", tmp_path / "two"]
    jobs = [sbatch(box, one, *SHARED, "--time=5", script=f"exec {launched}") for one in outputs]
    assert eventually(lambda: Phase.PARKED in phases(box)), phases(box)
    assert Phase.LOADING in phases(box), "torchrun's own page"
    assert eventually(lambda: all(limit(box, job) == "6:00" for job in jobs)), [
        seen(box, job).get("training") for job in jobs
    ]
    assert both_get_on(outputs, eventually)


def state(box: Sandbox, job: str) -> str:
    """State and nodes, by Slurm."""
    return box.run("squeue", "-h", f"--jobs={job}", "-o", "%T %N").stdout.strip()


@contextlib.contextmanager
def watched(box: Sandbox) -> Iterator[None]:
    """With a watchdog that waits for two seconds."""
    environment = {
        **box.environment,
        "SLIPSTREAM_RUN_DIR": str(box.layout.run),
        "SLIPSTREAM_DISABLE_FILE": str(box.layout.disable_file),
    }
    words = [sys.executable, "-m", "slipstream.scheduler.watchdog", "--lease-s=1"]
    with subprocess.Popen(box.argv(words), env=environment) as process:
        try:
            yield
        finally:
            process.kill()


def test_a_job_that_a_dead_scheduler_bound_starts_elsewhere(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Bound to a node that goes down before it could start, by a scheduler that died over it."""
    box.run("scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=test")
    try:
        job = sbatch(box, tmp_path / "out", OURS, "--gres=gpu:1", "--hold", script="sleep 600")
        shown = box.run("scontrol", "show", "job", job).stdout
        marker = shown.partition("AdminComment=")[2].partition("\n")[0]
        box.kill("scheduler")
        update = ("scontrol", "update", f"JobId={job}")
        box.run(*update, f"AdminComment={marker.replace(']', ' bound=1]')}", "ReqNodeList=n2")
        box.run("scontrol", "release", job)
        time.sleep(2.0)
        assert state(box, job) == "PENDING"
        with watched(box):
            assert eventually(lambda: state(box, job) == "RUNNING n1"), state(box, job)
    finally:
        box.run("scontrol", "update", "NodeName=n2", "State=RESUME")
