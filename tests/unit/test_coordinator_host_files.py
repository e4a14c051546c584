# SPDX-License-Identifier: Apache-2.0
"""Host files: which task of a job belongs on which node."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import token
from slipstream.coordinator.host_files import VARIABLE, HostFiles
from slipstream.coordinator.requests import Request, parse

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

HOSTS = ("n2", "n1", "n2")
SCRIPT = Request("start", 7, "batch", 1000, 0, token=token(1), nodes="n[1-2]")


@pytest.fixture
def files(tmp_path: Path) -> HostFiles:
    """With a plan for one job."""
    one = HostFiles(tmp_path / "hosts")
    one.planned(token(1), HOSTS, time.time() + 60)
    return one


def test_a_script_finds_the_node_of_each_task(files: HostFiles, tmp_path: Path) -> None:
    """In a file that its user can read; it goes with the job."""
    told = files.environment(SCRIPT)
    path = tmp_path / "hosts" / "7"
    assert told == {VARIABLE: str(path)}
    assert path.read_text() == "n2\nn1\nn2\n"
    assert path.stat().st_mode & 0o777 == 0o644
    files.forget({7, 8})
    assert path.exists()
    files.forget({8})
    assert not path.exists()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replace(SCRIPT, nodes="n[1-3]"), id="it started on other nodes"),
        pytest.param(replace(SCRIPT, nodes="n1"), id="on fewer"),
        pytest.param(replace(SCRIPT, nodes=""), id="nobody says where"),
        pytest.param(replace(SCRIPT, nodes="n[1-"), id="on what is no list"),
        pytest.param(replace(SCRIPT, step="0"), id="a step of it"),
        pytest.param(replace(SCRIPT, token=token(2)), id="another job"),
    ],
)
def test_without_a_plan_for_where_it_started_srun_is_left_alone(
    files: HostFiles, tmp_path: Path, other: Request
) -> None:
    """It would fail."""
    assert files.environment(other) == {}
    assert not (tmp_path / "hosts").exists()


def test_a_plan_ends_with_the_advice(files: HostFiles) -> None:
    """What the scheduler said long ago may be wrong by now."""
    files.planned(token(1), HOSTS, time.time() - 60)
    assert files.environment(SCRIPT) == {}


def test_the_nodes_of_a_job_are_part_of_the_question() -> None:
    """Of a script; older askers do not tell them."""
    line = "v=1 op=start job=7 step=batch uid=1000 task=0 role=owner class=shared token=abc"
    assert parse(line).nodes == ""
    assert parse(f"{line} nodes=n[1-2],m1").nodes == "n[1-2],m1"
