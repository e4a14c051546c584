# SPDX-License-Identifier: Apache-2.0
"""Processes and threads that a program starts to train in: each is counted to the mini-batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import hook_children
from coordinator_rig import Coordinator, coordinated_node, told
from lua.answering import Answering
from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire.control_block import Identity, Role

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit

WITHOUT_ANSWER_AT_FIRST = """
import os, sys
from slipstream.torch_hooks import pages
from slipstream.torch_hooks.attach import attach, boundary, status
pages._RETRY_NS = 0
attach()
for _ in range(7):
    boundary()
print(status().attached)
os.link(sys.argv[1] + "/away.sock", sys.argv[1] + "/node.sock")
for _ in range(5):
    boundary()
print(status().attached, status().minibatches)
"""
ONE_THREAD_AFTER_ANOTHER = """
import threading
from slipstream.torch_hooks.attach import attach, boundary, status
attach()
turns = [threading.Event() for _ in range(3)]
def train(turn):
    turn.wait()
    for _ in range(5):
        boundary()
threads = [threading.Thread(target=train, args=(turn,)) for turn in turns]
for one in threads:
    one.start()  # all are there from the start: none has the number of another
for turn, one in zip(turns, threads):
    turn.set()
    one.join()
print(status().minibatches)
"""
THREADS_AT_ONCE = """
import threading
from slipstream.torch_hooks.attach import attach, boundary, status
attach()
meet = threading.Barrier(4)
def train():
    for _ in range(5):
        meet.wait()
        boundary()
    meet.wait()  # when the one that is counted ends, the next one is
threads = [threading.Thread(target=train) for _ in range(4)]
for one in threads:
    one.start()
for one in threads:
    one.join()
print(status().minibatches)
"""
DETACHED = """
from slipstream.torch_hooks.attach import attach, boundary, detach, status
attach()
boundary()
detach()
for _ in range(9):
    boundary()
attach()
boundary()
print(status().minibatches)
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Coordinator]:
    """A node of two GPUs, for jobs of different numbers."""
    with coordinated_node() as coordinator:
        yield coordinator


def page_in(folder: Path) -> blocks.Block:
    """A page for a process of ours."""
    identity = Identity(
        *(7, "0", 0, os.getuid(), Role.OWNER, "shared", "token", ("GPU-a",), os.getpid(), 1)
    )
    return blocks.create(folder / "blocks", identity, lease_until_ns=1 << 62)


def ran(program: str, *words: str, control: str) -> str:
    """What a program prints that has this page."""
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "SLIPSTREAM_CONTROL": control},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize(
    ("job", "method", "late"),
    [
        (31, "fork", ()),
        (32, "spawn", ()),
        (33, "forkserver", ()),
        (34, "fork", ("--late",)),
        (35, "spawn", ("--late",)),
    ],
)
def test_each_child_that_trains_is_counted_to_the_mini_batch(
    job: int, method: str, late: tuple[str, ...], node: Coordinator
) -> None:
    """From its first one on, beside a parent that has trained; and its page says that it ended."""
    environment = told(node.ask(job=job, role="owner", pythonpath=""))
    done = subprocess.run(
        [sys.executable, hook_children.__file__, method, "2", "20", *late],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [[20, "ENDED"]] * 2


def test_mini_batches_before_the_coordinator_answers_are_counted(tmp_path: Path) -> None:
    """It is away at the child's first one: the child asks again, and says how far it is."""
    task, own = page_in(tmp_path), page_in(tmp_path / "own")
    of_parent = hook_blocks.claim(str(task.path))
    assert of_parent
    answer = f"env SLIPSTREAM_CONTROL={own.path}\nok\n".encode()
    with Answering(tmp_path / "away.sock", lambda _line: answer):
        printed = ran(WITHOUT_ANSWER_AT_FIRST, str(tmp_path), control=str(task.path))
    of_parent.close()
    own.refresh()
    assert printed == "False\nTrue 12\n"
    assert own.progress.minibatches == 12
    assert own.progress.first_boundary_ns


def test_a_thread_that_trains_after_another_has_ended_is_counted(tmp_path: Path) -> None:
    """Trials that run one after another, each in a thread of its own."""
    assert ran(ONE_THREAD_AFTER_ANOTHER, control=str(page_in(tmp_path).path)) == "15\n"


def test_of_threads_that_train_at_once_one_is_counted(tmp_path: Path) -> None:
    """They share a process, which is asked for something at one thread's boundaries."""
    assert ran(THREADS_AT_ONCE, control=str(page_in(tmp_path).path)) == "5\n"


def test_what_was_trained_without_hooks_is_not_counted(tmp_path: Path) -> None:
    """Detached is detached; attached again it begins anew."""
    assert ran(DETACHED, control=str(page_in(tmp_path).path)) == "1\n"
