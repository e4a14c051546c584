# SPDX-License-Identifier: Apache-2.0
"""Trainings that are saved though nobody asks: when each is due, and one that really is."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coordinator_rig import Events, eventually, told
from run_rig import SCRIPT
from slipstream.coordinator import settings
from slipstream.coordinator.daemon import Coordinator
from slipstream.coordinator.periodic import Periodic
from slipstream.coordinator.saver import MOST_KEPT
from slipstream.core.classes import Mode
from slipstream.torch_hooks.checkpoint import generations
from stepd_rig import Slurm, slurm_node

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit


def test_each_job_is_due_once_in_an_interval() -> None:
    """From when it was first seen; who has waited longest comes first, then the lower number."""
    one = Periodic(100.0)
    assert one.due(0.0, [7, 8], [7, 8]) is None
    assert one.due(50.0, [7, 8, 9], [7, 8, 9]) is None
    assert one.due(100.0, [7, 8, 9], [7, 8, 9]) == 7
    one.begun(7, 100.0)
    assert one.due(100.0, [7, 8, 9], [7, 8, 9]) == 8
    assert one.due(150.0, [7, 8, 9], [9]) == 9, "8 cannot be saved now"
    one.begun(8, 150.0)
    one.begun(9, 150.0)
    assert one.due(199.0, [7, 8, 9], [7, 8, 9]) is None
    assert one.due(200.0, [8], [8]) is None, "7 has left"
    assert one.due(250.0, [7, 8], [7, 8]) == 8, "7 is another job by now"


def test_an_interval_of_0_is_never() -> None:
    """However long one waits."""
    one = Periodic(0.0)
    assert [one.due(at_s, [7], [7]) for at_s in (0.0, 1e9)] == [None, None]


def test_what_nobody_took_is_told_first_and_the_oldest_are_forgotten(tmp_path: Path) -> None:
    """A scheduler that is away for weeks costs a node no memory."""
    saver = Coordinator(settings.read([f"--run-dir={tmp_path}"], {})).saver
    saver.save(7, number=1)
    (refused,) = saver.told()
    saver.save(8, number=2)
    saver.keep([{"old": at} for at in range(MOST_KEPT)])
    saver.keep([refused])
    answers = saver.told()
    assert len(answers) == MOST_KEPT
    assert answers[-1]["saved"]["job_id"] == 8
    assert answers[0] == {"old": 1}, "before it there was one too many, and one before that"


@contextlib.contextmanager
def training(slurm: Slurm, folder: Path, nodes: int = 1, **words: object) -> Iterator[Path]:
    """A training that asked the node; where its durable copy would be."""
    environment = told(slurm.node.ask(**words))
    argv = f"{sys.executable} {SCRIPT} --epochs=100000 --pause-ms=5"
    job = slurm.start(
        7,
        argv,
        **environment,
        LOSSES=str(folder / "losses"),
        SLURM_JOB_NUM_NODES=str(nodes),
    )
    try:
        yield Path(environment["SLIPSTREAM_DURABLE_DIR"])
    finally:
        slurm.end(job)


def copies_told(events: Events) -> list[dict[str, Any]]:
    """What the scheduler hears of copies."""
    return [one["saved"] for one in events.heard if "saved" in one]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """The shared filesystem."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def test_a_training_is_saved_again_and_again(tmp_path: Path, shared: Path) -> None:
    """Each generation is newer; the scheduler hears of the copy, which nobody asked for."""
    words = ("--checkpoint-every-s=0.5", f"--durable-dir={shared}")
    with (
        slurm_node(*words, gpu_count=1, mode=Mode.ENFORCE) as slurm,
        Events(slurm.node.run_dir / "events.sock").listening() as events,
        training(slurm, tmp_path) as durable,
    ):
        assert eventually(lambda: generations.complete(durable)), slurm.node.log()
        first = generations.complete(durable)[-1]
        assert eventually(lambda: generations.complete(durable)[-1] > first), slurm.node.log()
        assert eventually(lambda: copies_told(events))
        copy = copies_told(events)[0]
        assert (copy["job_id"], copy["number"], copy["problem"]) == (7, 0, "")
        assert copy["bytes_carried"] > 0


@pytest.mark.parametrize(
    ("mode", "job_class", "nodes"),
    [("observe", "opportunistic", 1), ("enforce", "guaranteed", 1), ("enforce", "shared", 2)],
)
def test_who_is_not_to_be_disturbed_is_not_saved(
    tmp_path: Path, shared: Path, mode: str, job_class: str, nodes: int
) -> None:
    """In observe nothing is carried out; a guaranteed job is slowed for nobody; ranks elsewhere."""
    words = ("--checkpoint-every-s=0.2", f"--durable-dir={shared}")
    with (
        slurm_node(*words, gpu_count=1, mode=Mode(mode)) as slurm,
        Events(slurm.node.run_dir / "events.sock").listening() as events,
        training(slurm, tmp_path, nodes, **{"class": job_class}),
    ):

        def minibatches() -> int:
            jobs = [job for one in events.heard for job in one.get("jobs", ())]
            return max((job["minibatch"] for job in jobs if job["restorable"]), default=0)

        assert eventually(minibatches), slurm.node.log()
        before = minibatches()
        assert eventually(lambda: minibatches() > before), slurm.node.log()  # by a heartbeat
    assert list(shared.iterdir()) == []
