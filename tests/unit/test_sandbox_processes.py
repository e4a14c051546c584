# SPDX-License-Identifier: Apache-2.0
"""Finding and ending processes by who they are, not by a number that may be somebody else's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slipstream.sandbox import processes

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit


@pytest.fixture
def family() -> Iterator[subprocess.Popen[str]]:
    """A process with a marked environment, a child and a grandchild that shed the mark."""
    script = "env -u MARK sh -c 'sleep 60 & echo ready; wait'"
    with subprocess.Popen(
        ["sh", "-c", script],
        env={**os.environ, "MARK": "/here"},
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        yield parent
        processes.end_all(lambda: processes.descendants(parent.pid))
        parent.kill()


def test_descendants_are_found_to_the_last_one(family: subprocess.Popen[str]) -> None:
    """Children and grandchildren, not the root itself."""
    found = processes.descendants(family.pid)
    assert found
    assert family.pid not in {one.pid for one in found}
    assert family.pid in {one.pid for one in processes.descendants(os.getpid())}


def test_the_mark_is_found_and_what_hangs_below_it(family: subprocess.Popen[str]) -> None:
    """A grandchild without the mark is found through its parent."""
    found = {one.pid for one in processes.marked("MARK", Path("/here"))}
    assert {one.pid for one in processes.descendants(family.pid)} <= found
    assert processes.marked("MARK", Path("/elsewhere")) == set()


def test_a_pid_given_to_another_process_is_not_touched() -> None:
    """With the wrong start time nothing is signalled."""
    with subprocess.Popen(["sleep", "60"]) as other:
        real = processes.process(other.pid)
        assert real is not None
        impostor = processes.Process(real.pid, real.started_ticks - 1)
        assert not impostor.alive
        impostor.send(signal.SIGKILL)
        time.sleep(0.05)
        assert real.alive
        other.kill()


def ended_soon(process: processes.Process) -> bool:
    """Wait up to ten seconds for it to end."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if not process.alive:
            return True
        time.sleep(0.01)
    return False


def test_a_child_dies_with_its_parent() -> None:
    """PR_SET_PDEATHSIG: kill -9 of the parent ends the child at once."""
    script = (
        "import subprocess, time\n"
        "from slipstream.sandbox.processes import die_with_parent\n"
        "child = subprocess.Popen(['sleep', '60'], preexec_fn=die_with_parent)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = processes.process(int(parent.stdout.readline()))
        assert child is not None
        assert child.alive
        parent.kill()
    assert ended_soon(child)
