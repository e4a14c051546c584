# SPDX-License-Identifier: Apache-2.0
"""A node follows the scheduler's mode, keeps it without a scheduler, and may be held back."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator_rig import eventually, told
from core_world import node
from node_world import DEVICE_MIB, guest, owner
from scheduler_rig import Served, served
from slipstream.coordinator import cluster_mode, settings
from slipstream.coordinator.cluster_mode import ClusterMode
from slipstream.coordinator.gpus import GpuSample
from slipstream.coordinator.reflexes import FREE, Reflexes
from slipstream.core.classes import Mode
from slipstream.scheduler.node_modes import node_modes
from stepd_rig import Slurm, directive, slurm_node

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit


def test_a_node_that_never_heard_a_scheduler_observes(tmp_path: Path) -> None:
    """Whatever its own setting would allow."""
    one = ClusterMode(tmp_path / "mode.json", Mode.ENFORCE)
    assert (one.told, one.mode) == (None, Mode.OBSERVE)


def test_the_last_word_of_the_scheduler_outlives_the_coordinator(tmp_path: Path) -> None:
    """Each word is on disk when it counts, and no half-written file is left."""
    one = ClusterMode(tmp_path / "mode.json", Mode.ENFORCE)
    for mode in (Mode.ENFORCE, Mode.ADVISE, Mode.OBSERVE, Mode.ENFORCE):
        one.hear(mode)
        assert ClusterMode(tmp_path / "mode.json", Mode.ENFORCE).mode is mode
    assert [path.name for path in tmp_path.iterdir()] == ["mode.json"]


@pytest.mark.parametrize(
    ("said", "at_most", "does"),
    [
        (Mode.ENFORCE, Mode.OBSERVE, Mode.OBSERVE),
        (Mode.ENFORCE, Mode.ADVISE, Mode.ADVISE),
        (Mode.ADVISE, Mode.ENFORCE, Mode.ADVISE),
        (Mode.OBSERVE, Mode.ADVISE, Mode.OBSERVE),
    ],
)
def test_a_node_does_at_most_what_its_own_setting_allows(
    tmp_path: Path, said: Mode, at_most: Mode, does: Mode
) -> None:
    """And the scheduler's word is kept whole, for a coordinator with another setting."""
    one = ClusterMode(tmp_path / "mode.json", at_most)
    one.hear(said)
    assert one.mode is does
    assert ClusterMode(tmp_path / "mode.json", Mode.ENFORCE).mode is said


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v":2,"mode":"enforce"}', '{"v":1,"mode":"x"}'])
def test_a_spoilt_file_is_said_and_the_node_observes(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that has never heard a scheduler."""
    (tmp_path / "mode.json").write_text(text)
    assert ClusterMode(tmp_path / "mode.json", Mode.ENFORCE).mode is Mode.OBSERVE
    assert "mode.json was not understood" in caplog.text


def test_how_much_a_node_may_do_is_its_own_setting(caplog: pytest.LogCaptureFixture) -> None:
    """All by default; the older name of the variable still holds a node back, and is told of."""
    assert settings.read([], {}).mode_at_most is Mode.ENFORCE
    assert settings.read(["--mode-at-most=observe"], {}).mode_at_most is Mode.OBSERVE
    environment = {"SLIPSTREAM_NODE_MODE_AT_MOST": "advise"}
    assert settings.read([], environment).mode_at_most is Mode.ADVISE
    with caplog.at_level(logging.WARNING):
        older = settings.read([], {"SLIPSTREAM_COORDINATOR_MODE": "observe"})
    assert older.mode_at_most is Mode.OBSERVE
    assert "SLIPSTREAM_NODE_MODE_AT_MOST=observe" in caplog.text
    with pytest.raises(SystemExit):
        settings.read([], {"SLIPSTREAM_NODE_MODE_AT_MOST": "bogus"})


def test_back_in_observe_only_the_caps_of_capped_jobs_are_kept() -> None:
    """A job that was given a cap keeps it; one that never had one is given none."""
    one = Reflexes(Mode.ENFORCE)
    gpu = GpuSample(0.0, 0, "a", 0, use_pct=0, memory_used_mib=0, memory_mib=DEVICE_MIB)
    one.seated(0.0, [gpu], [guest(7)])
    one.seated(1.0, [gpu], [owner(5), guest(7)])
    told_in_enforce = one.wanted(7)
    assert told_in_enforce.share_pct < 100
    one.mode = Mode.OBSERVE
    assert one.wanted(7) == FREE
    kept = replace(FREE, cap_bytes=told_in_enforce.cap_bytes)
    assert one.wanted(7, is_capped=True) == kept
    one.mode = Mode.ENFORCE
    assert one.wanted(7) == told_in_enforce


@contextlib.contextmanager
def linked(folder: Path, *words: str) -> Iterator[tuple[Served, Slurm]]:
    """A scheduler that knows one node, and that node with its coordinator."""
    events = f"--events-socket={folder}/events.sock"
    with (
        served(folder, node("n1", gpus=1)) as scheduler,
        slurm_node("--turn-s=1", events, *words, gpu_count=1) as slurm,
    ):
        yield scheduler, slurm


def says(scheduler: Served, mode: Mode) -> None:
    """An operator sets the mode; the nodes are told as a tick of the daemon does it."""
    scheduler.engine.set_mode(mode)
    scheduler.orders.follow(mode)


def standing(scheduler: Served) -> dict[str, object]:
    """How the node stands to the mode, as the scheduler knows."""
    return node_modes(scheduler.engine.machine.state, scheduler.engine.now_s())


def shared_pages(slurm: Slurm) -> list[Path]:
    """The pages of two shared jobs of one GPU, of which one has to wait for its turn."""
    asked = [slurm.node.ask(job=job, **{"class": "shared"}) for job in (7, 8)]
    return [Path(told(one)["SLIPSTREAM_CONTROL"]) for one in asked]


def test_a_node_follows_at_once_and_lets_go_at_once(tmp_path: Path) -> None:
    """From observe to enforce somebody is asked to wait; back again nobody is."""
    with linked(tmp_path) as (scheduler, slurm):
        pages = shared_pages(slurm)
        assert eventually(lambda: scheduler.engine.machine.state.reports != {})
        assert not any(directive(page).request for page in pages)
        says(scheduler, Mode.ENFORCE)
        assert eventually(lambda: any(directive(page).request for page in pages)), slurm.node.log()
        assert eventually(lambda: standing(scheduler)["follow"] == 1)
        assert scheduler.engine.machine.state.reports["n1"].enforces
        says(scheduler, Mode.OBSERVE)
        assert eventually(lambda: not any(directive(page).request for page in pages))
        assert eventually(lambda: standing(scheduler)["follow"] == 1)
        assert not scheduler.engine.machine.state.reports["n1"].enforces


def test_the_mode_holds_without_the_scheduler_and_over_a_restart(tmp_path: Path) -> None:
    """The scheduler ends; the coordinator is killed and started again: it still enforces."""
    with linked(tmp_path) as (scheduler, slurm):
        says(scheduler, Mode.ENFORCE)
        assert eventually(lambda: standing(scheduler)["follow"] == 1), slurm.node.log()
        (tmp_path / "events.sock").unlink()
        slurm.node.kill()
        slurm.node.start()
        pages = shared_pages(slurm)
        assert eventually(lambda: any(directive(page).request for page in pages)), slurm.node.log()
        assert ClusterMode(slurm.node.run_dir / cluster_mode.FILE_NAME, Mode.ENFORCE).told


def test_a_coordinator_that_comes_later_is_told_the_mode(tmp_path: Path) -> None:
    """It was set while the coordinator was away."""
    with linked(tmp_path) as (scheduler, slurm):
        assert eventually(lambda: scheduler.engine.machine.state.reports)
        slurm.node.kill()
        says(scheduler, Mode.ENFORCE)
        assert [one["node"] for one in standing(scheduler)["behind"]] == ["n1"]  # type: ignore[attr-defined]
        slurm.node.start()
        assert eventually(lambda: standing(scheduler)["follow"] == 1), slurm.node.log()


def test_a_node_that_is_held_back_says_so(tmp_path: Path) -> None:
    """It asks nobody to wait, and the scheduler knows which setting is the reason."""
    with linked(tmp_path, "--mode-at-most=advise") as (scheduler, slurm):
        pages = shared_pages(slurm)
        says(scheduler, Mode.ENFORCE)
        held = [{"node": "n1", "mode": Mode.ADVISE, "at_most": Mode.ADVISE}]
        assert eventually(lambda: standing(scheduler)["held_back"] == held), standing(scheduler)
        assert standing(scheduler)["follow"] == 0
        assert not any(directive(page).request for page in pages)
