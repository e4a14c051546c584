# SPDX-License-Identifier: Apache-2.0
"""What operators say: it is asked for first, told of, and can be undone."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from command_rig import said, slipstream
from core_world import full, holds, looked, node, request, sight
from scheduler_rig import Served, served
from slipstream.cli import main
from slipstream.core.classes import JobClass, Mode, Role
from slipstream.core.events import NodeReported, SwitchedOff
from slipstream.core.sights import Standing, Training

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Served]:
    """Two nodes, the second full."""
    with served(tmp_path, node("n1"), full(node("n2"))) as one:
        yield one


def test_resize_says_what_it_does_and_how_to_undo_it(rig: Served) -> None:
    """Asks first; where it cannot, why; programs get the same as data."""
    elastic = replace(request(1), elastic=(1, 2))
    rig.tell(looked(11.0, replace(holds("7", elastic, 0), number=7), nodes=(node("n1", used=1),)))
    training = Training(ref="7", phase="training", minibatch=9, restorable=True)
    rig.tell(NodeReported(at_s=12.0, node="n1", jobs=(training,)))
    too_many = slipstream(rig, "resize", "7", "3", "--yes")
    assert too_many.exit_code == 1
    assert "job 7 is not resized (not_elastic)" in too_many.output
    assert slipstream(rig, "resize", "7", "none").exit_code == 2
    asked = CliRunner().invoke(
        main, ["resize", "7", "2"], input="n\n", env={"SLIPSTREAM_RUN_DIR": str(rig.run_dir)}
    )
    assert "let it go on with 2 GPUs? [y/N]" in asked.output
    assert rig.engine.machine.state.moves == {}
    text = said(rig, "resize", "7", "2", "--yes", "--why", "lunch")
    assert "job 7 goes on with 2 GPUs instead of 1, on n1; see: slipstream why 7" in text
    assert "back again, after a minute: slipstream resize 7 1" in text
    assert "is to train with 2 GPUs instead of 1, on n1: lunch" in said(rig, "why", "7")


def test_park_and_release_say_what_they_do_and_how_to_undo_it(rig: Served) -> None:
    """Both ask first; where they cannot, why; programs get the same as data."""
    guest = replace(request(1, role=Role.GUEST), job_class=JobClass.OPPORTUNISTIC)
    seen = replace(sight("7", guest, Standing.RUNNING), number=7, nodes=("n1",))
    rig.tell(looked(11.0, seen, sight("8", request(2))))
    training = Training(ref="7", phase="training", minibatch=9)
    rig.tell(NodeReported(at_s=12.0, node="n1", jobs=(training,)))
    waits = slipstream(rig, "park", "8", "--yes")
    assert waits.exit_code == 1
    assert "job 8 is not parked (parks_only_running): Only a job that runs" in waits.output
    assert "is not released (not_parked)" in slipstream(rig, "release", "7", "--yes").output
    assert slipstream(rig, "park", "7", "--minutes", "0").exit_code == 2
    asked = CliRunner().invoke(
        main, ["park", "7"], input="n\n", env={"SLIPSTREAM_RUN_DIR": str(rig.run_dir)}
    )
    assert "give up its GPU until it is released? [y/N]" in asked.output
    assert rig.engine.machine.state.parked == {}
    text = said(rig, "park", "7", "--yes", "--why", "a course", "--minutes", "90")
    assert "job 7 on n1 gives up its GPU at its next mini-batch and stays parked until " in text
    assert "back again: slipstream release 7" in text
    explained = said(rig, "why", "7")
    assert "'slipstream release' lets it go on (a course; for 90 min). [parked]" in explained
    assert "parked by an operator: a course" in explained
    assert [one["job"] for one in json.loads(said(rig, "jobs", "-t", "parked", "--json"))["jobs"]]
    told = json.loads(said(rig, "release", "7", "--json"))
    assert (told["job"], told["parked"], told["nodes"]) == ("7", False, ["n1"])
    assert "parked again: slipstream park 7" in said(rig, "park", "7", "--yes") + said(
        rig, "release", "7", "--yes"
    )
    assert rig.engine.machine.state.parked == {}


def test_mode_shows_and_sets(rig: Served) -> None:
    """And refuses what is no mode with the list."""
    assert said(rig, "mode").startswith("advise: jobs are placed by the advice board, which")
    rig.holds = True
    assert said(rig, "mode").startswith("advise: jobs are placed by soft hold")
    assert said(rig, "mode", "observe").startswith("observe: nothing is changed")
    assert rig.engine.machine.state.mode is Mode.OBSERVE
    again = said(rig, "mode", "enforce")
    assert "it stays so over restarts, until another mode is configured" in again
    assert again.endswith("back again: slipstream mode observe\n")
    assert "back again" not in said(rig, "mode", "enforce")  # nothing was changed
    bogus = slipstream(rig, "mode", "bogus")
    assert bogus.exit_code == 2
    assert "'observe', 'advise', 'enforce'" in bogus.output


def test_the_kill_switch_works_without_a_daemon(tmp_path: Path) -> None:
    """A file is all it is."""
    file = tmp_path / "etc" / "disable"
    words = ["mode", "--run-dir", str(tmp_path), "--disable-file", str(file)]
    off = CliRunner().invoke(main, [*words, "--disable"]).output
    assert off.startswith("switched off")
    assert "back again: slipstream mode --enable" in off
    assert file.exists()
    assert CliRunner().invoke(main, [*words, "--enable"]).exit_code == 0
    assert not file.exists()
    told = json.loads(CliRunner().invoke(main, [*words, "--disable", "--json"]).output)
    assert told == {"v": 1, "switched_off": True, "disable_file": str(file)}


def test_move_says_what_it_does_and_how_to_undo_it(rig: Served) -> None:
    """Asks first; where it cannot, why; programs get the same as data."""
    rig.tell(
        looked(
            11.0,
            replace(holds("7", request(1), 0), number=7),
            nodes=(node("n1", used=1), node("n2")),
        )
    )
    cannot = slipstream(rig, "move", "7", "--yes")
    assert cannot.exit_code == 1
    assert "job 7 does not move" in cannot.output
    training = Training(ref="7", phase="training", minibatch=9, restorable=True)
    rig.tell(NodeReported(at_s=12.0, node="n1", jobs=(training,)))
    asked = CliRunner().invoke(
        main, ["move", "7"], input="n\n", env={"SLIPSTREAM_RUN_DIR": str(rig.run_dir)}
    )
    assert "requeue it and let it go on elsewhere? [y/N]" in asked.output
    assert asked.exit_code == 1
    assert rig.engine.machine.state.moves == {}
    text = said(rig, "move", "7", "--yes", "--why", "n1 is to be repaired")
    assert "job 7 moves to n2; see: slipstream why 7" in text
    assert "back again, after a minute: slipstream move 7 --to n1" in text
    assert "n1 is to be repaired" in said(rig, "why", "7")


def test_mode_says_which_nodes_follow(rig: Served) -> None:
    """Held back by a setting of their own, not yet told, or not heard: each by its name."""
    now_s = rig.engine.now_s()
    rig.tell(NodeReported(at_s=now_s, node="n1", mode=Mode.ENFORCE, mode_at_most=Mode.ENFORCE))
    text = said(rig, "mode", "enforce")
    assert "nodes: 1 of 2 follow\n  not heard, they keep their last mode: n2\n" in text
    rig.tell(NodeReported(at_s=now_s, node="n2", mode=Mode.OBSERVE, mode_at_most=Mode.OBSERVE))
    assert "(--mode-at-most): n2 (at most observe)" in said(rig, "mode")
    rig.tell(NodeReported(at_s=now_s, node="n2", mode=Mode.ADVISE, mode_at_most=Mode.ENFORCE))
    assert "have not followed yet: n2 (advise)" in said(rig, "mode")
    rig.tell(NodeReported(at_s=now_s, node="n2"))
    assert "have not followed yet: n2 (does not say)" in said(rig, "mode"), "an older coordinator"
    told = json.loads(said(rig, "mode", "--json"))["nodes"]
    assert (told["count"], told["follow"]) == (2, 1)
    assert told["behind"] == [{"node": "n2", "mode": None}]
    rig.tell(NodeReported(at_s=now_s, node="n2", mode=Mode.ENFORCE, mode_at_most=Mode.ENFORCE))
    assert said(rig, "mode").endswith("\nnodes: all 2 follow\n")


def test_setting_the_mode_waits_for_the_nodes_that_are_heard(rig: Served) -> None:
    """A node that follows a moment later is counted; the answer says what was before."""
    now_s = rig.engine.now_s()
    for name in ("n1", "n2"):
        rig.tell(NodeReported(at_s=now_s, node=name, mode=Mode.ADVISE, mode_at_most=Mode.ENFORCE))

    def follow() -> None:
        while rig.engine.machine.state.mode is not Mode.ENFORCE:
            time.sleep(0.01)
        for name in ("n1", "n2"):
            mode = Mode.ENFORCE
            rig.tell(NodeReported(at_s=now_s, node=name, mode=mode, mode_at_most=mode))

    thread = threading.Thread(target=follow)
    thread.start()
    told = json.loads(said(rig, "mode", "enforce", "--json"))
    thread.join()
    assert (told["mode"], told["was"], told["nodes"]["follow"]) == ("enforce", "advise", 2)


def test_mode_says_who_has_switched_it_off(rig: Served) -> None:
    """And since when, by the file that is there."""
    said(rig, "mode", "--disable")
    rig.tell(SwitchedOff(12.0))
    text = said(rig, "mode")
    assert text.startswith("advise, but switched off: Slurm decides alone; ")
    assert f"{rig.run_dir / 'disable'} is there since 2" in text
    assert text.endswith(f", by {(rig.run_dir / 'disable').owner()}\n")
