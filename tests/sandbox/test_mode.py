# SPDX-License-Identifier: Apache-2.0
"""One mode for a cluster: what an operator sets reaches the nodes, and stays there without us."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sandbox.trainings import minibatches, slipstream, trains
from slipstream.coordinator import blocks
from slipstream.sandbox import Sandbox, Shape
from slipstream.wire.control_block import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Eventually = Callable[[Callable[[], bool]], bool]

pytestmark = pytest.mark.sandbox

SHARED = ("--slip-class=shared", "--gres=slot:1")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Sandbox]:
    """One node of one GPU, which observes."""
    shape = Shape(nodes=1, gpus_per_node=1, racks=1, cpus_per_node=8)
    options = {"daemons": True, "mode": "observe", "turn_s": 2.0}
    with Sandbox.started(shape, name="mode", home=tmp_path, **options) as sandbox:  # type: ignore[arg-type]  # by their names
        yield sandbox


def phases(box: Sandbox) -> set[Phase]:
    """What the trainings of the node do, by their pages."""
    pages = list(blocks.found(box.layout.run / "n1" / "blocks"))
    for page in pages:
        page.forget()
    return {page.progress.phase for page in pages if page.progress.pid}


def nodes(told: dict[str, object] | None) -> tuple[int, int]:
    """How many nodes there are, and how many follow."""
    found = (told or {})["nodes"]
    assert isinstance(found, dict)
    return found["count"], found["follow"]


def test_enforce_reaches_the_node_and_outlives_both_daemons(
    box: Sandbox, tmp_path: Path, eventually: Eventually
) -> None:
    """Two jobs train at once; set to enforce they take turns, also after the daemons are killed.

    Set back to observe both train at once again.
    """
    outputs = [tmp_path / "one", tmp_path / "two"]
    for output in outputs:
        trains(box, output, *SHARED)
    assert eventually(lambda: all(minibatches(one) > 5 for one in outputs))
    assert phases(box) == {Phase.TRAINING}
    told = slipstream(box, "mode", "enforce")
    assert nodes(told) == (1, 1), "the command waits for the node"
    assert eventually(lambda: Phase.PARKED in phases(box))
    for name in ("scheduler", "coordinator-n1"):
        box.kill(name)
    assert eventually(lambda: Phase.WAITING_FOR_BATON in phases(box)), "by the baton, without us"
    box.revive()
    assert eventually(lambda: Phase.PARKED in phases(box)), "turns again, as it was told"
    assert eventually(lambda: slipstream(box, "mode") is not None)
    assert nodes(slipstream(box, "mode", "observe")) == (1, 1)
    assert eventually(lambda: phases(box) == {Phase.TRAINING})


def test_a_sandbox_is_in_the_mode_that_was_asked_for(
    tmp_path: Path, eventually: Eventually
) -> None:
    """From the start, on all of its nodes; the scheduler hears of it a moment later."""
    command = (sys.executable, "-m", "slipstream.cli", "sandbox")
    where = ("--name", "m", "--home", str(tmp_path))
    size = ("--nodes=2", "--gpus-per-node=1", "--racks=1", "--mode=enforce")
    subprocess.run([*command, "up", *where, *size], check=True, capture_output=True)
    asked = [*command, "run", *where, *command[:-1], "mode", "--json"]

    def says() -> tuple[str, tuple[int, int]]:
        done = subprocess.run(asked, check=True, capture_output=True, text=True)
        told = json.loads(done.stdout)
        return told["mode"], nodes(told)

    try:
        kept = [path.read_text() for path in tmp_path.glob("m/run/*/mode.json")]
        assert [json.loads(one)["mode"] for one in kept] == ["enforce"] * 2
        assert eventually(lambda: says() == ("enforce", (2, 2))), says()
    finally:
        subprocess.run([*command, "down", *where], check=True, capture_output=True)
