# SPDX-License-Identifier: Apache-2.0
"""Two gangs that could start in the same round are placed together, on a real cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandbox.jobs import empty, sbatch
from sandbox.trainings import until, why
from slipstream.sandbox import Sandbox, SandboxError, Shape
from slipstream.sandbox.select_plugin import plugin_dir

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.sandbox

TAKEN = {"n1": 2, "n3": 2, "n4": 3, "n5": 2, "n6": 4}
"""GPUs of each node that others hold, of four; n1 to n3 are a rack."""
TOGETHER = [("n1", "n2"), ("n2", "n3")]
ATTEMPTS = 4
GANG = ("--slip-class=guaranteed", "--account=lab", "--gres=gpu:2")


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Two racks of three nodes; a lab may own ten of the 24 GPUs."""
    try:
        plugins = plugin_dir()
    except SandboxError as error:
        pytest.skip(str(error))
    with Sandbox.started(
        Shape(nodes=6, gpus_per_node=4, racks=2, cpus_per_node=8),
        name="batch",
        home=tmp_path_factory.mktemp("b"),
        daemons=True,
        plugin_dir=plugins,
        scheduler={"shares": "lab=10,shop=14"},
    ) as sandbox:
        yield sandbox


def test_gangs_that_wait_for_the_same_leave_each_other_a_rack(box: Sandbox, tmp_path: Path) -> None:
    """Alone the first would take n1 and n3, whose holes it fills, and the second two racks.

    A busy machine may free the nodes one after the other: the first is then placed, rightly, before
    the other nodes are there. So a few times; placed one by one they never have this outcome.
    """
    seen: list[list[tuple[str, ...]]] = []
    while TOGETHER not in seen:
        assert len(seen) < ATTEMPTS, seen
        (tmp_path / str(len(seen))).mkdir()
        seen.append(places(box, tmp_path / str(len(seen))))


def places(box: Sandbox, folder: Path) -> list[tuple[str, ...]]:
    """Where two gangs go that wait for a third one's nodes.

    They wait for their account's quota, so that Slurm starts neither before they are placed.
    """

    def sleeps(name: str, *words: str) -> str:
        return sbatch(box, folder / name, *words, script="exec sleep 600")

    empty(box)
    for name, gpus in TAKEN.items():
        sleeps(name, f"--gres=gpu:{gpus}", f"--nodelist={name}")
    first = sleeps("first", *GANG, "--nodes=4", "--nodelist=n1,n2,n3,n5")
    until(box, first, lambda: why(box, first).get("phase") == "running")
    gangs = [sleeps(name, *GANG, "--nodes=2") for name in ("one", "two")]
    for job in gangs:
        until(box, job, lambda job=job: why(box, job).get("phase") == "waiting")  # type: ignore[misc]
    box.run("scancel", first)
    for job in gangs:
        until(box, job, lambda job=job: why(box, job).get("phase") == "running")  # type: ignore[misc]
    return sorted(tuple(why(box, job)["nodes"]) for job in gangs)
