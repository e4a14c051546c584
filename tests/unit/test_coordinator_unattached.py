# SPDX-License-Identifier: Apache-2.0
"""Trainings without hooks are found from outside, with the reason; and their output has a line."""

from __future__ import annotations

import contextlib
import os
import site
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from slipstream.coordinator import blocks
from slipstream.coordinator.processes import ProcFs
from slipstream.coordinator.seats import Seat, Task
from slipstream.coordinator.settings import INJECT
from slipstream.coordinator.unattached import Unattached, python_options
from slipstream.core.attaching import SENTENCE, NotAttached, sentence
from slipstream.wire.control_block import ENVIRONMENT_VARIABLE, Identity, Role

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slipstream.coordinator.blocks import Block

pytestmark = [pytest.mark.unit, pytest.mark.timeout(180)]

FS = ProcFs()
NOBODY = 65534
WAITS = "print('ready', flush=True); import time; time.sleep(600)"
TRAINS = f"import torch; {WAITS}"


class Node:
    """One task of one job, its page, and what looks at it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.finder = Unattached(FS, str(INJECT))
        self.now_s = 100.0
        identity = Identity(
            *(7, "batch", 0, os.getuid(), Role.GUEST, "opportunistic", "t"), ("GPU-0",), 1, 1
        )
        self.block = blocks.create(folder, identity, lease_until_ns=1 << 62)

    @contextlib.contextmanager
    def task(
        self, *argv: str, uid: int | None = None, environment: dict[str, str] | None = None
    ) -> Iterator[Task]:
        """A real process with what Slipstream tells a task, once it is ready."""
        told = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(INJECT),
            ENVIRONMENT_VARIABLE: str(self.block.path),
            **(environment or {}),
        }
        output = self.folder / "output"
        with output.open("ab") as errors:
            output.chmod(0o666)
            process = subprocess.Popen(
                argv,
                env={name: value for name, value in told.items() if value},
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd="/",
                user=uid,
                group=uid,
                extra_groups=[] if uid else None,
            )
        try:
            assert process.stdout
            assert process.stdout.readline() == b"ready\n"
            yield Task("batch", 0, process.pid, FS.started_ticks(process.pid))
        finally:
            for pid in reversed(FS.family(process.pid)):
                os.kill(pid, 9)
            process.communicate()

    def look(self, task: Task, *on_gpu: int, uid: int | None = None) -> str | None:
        """The reason after one round of looking."""
        seats = {7: Seat(7, uid or os.getuid(), Role.GUEST, "opportunistic", "t", (), (task,))}
        gpus = {7: set(on_gpu)}
        pages: list[Block] = [self.block]
        self.block.refresh()
        self.finder.suspects(seats, pages, gpus, self.now_s)
        self.now_s += 100
        due = self.finder.suspects(seats, pages, gpus, self.now_s)
        findings = self.finder.look(due, set(on_gpu))
        self.finder.suspects(seats, pages, gpus, self.now_s)
        self.finder.found(findings)
        return self.finder.reasons().get(7)

    def output(self) -> str:
        """What the task has in its output, once whoever writes there has ended."""
        deadline_s = time.monotonic() + 30
        while self.finder._tellers and time.monotonic() < deadline_s:  # noqa: SLF001 (to wait for it)
            self.finder.tidy(time.monotonic())
            time.sleep(0.02)
        return (self.folder / "output").read_text()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node with a task's page."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)  # a job's user must find the way to its page and its output
    one = Node(tmp_path)
    yield one
    (tmp_path / "output").touch()
    one.output()
    one.block.remove()


def test_a_training_with_hooks_is_not_told_of(node: Node) -> None:
    """It has claimed its page before it loaded torch, and so has one that has just let go of it."""
    with node.task(sys.executable, "-c", TRAINS) as task:
        assert node.block.is_claimed
        assert node.look(task, task.pid) is None
    detaches = "import torch; from slipstream.torch_hooks.attach import detach; detach(); "
    with node.task(sys.executable, "-c", detaches + WAITS) as task:
        assert not node.block.is_claimed
        assert node.look(task, task.pid) is None
    assert node.output() == ""


SITE = site.getsitepackages()[0]
CASES = {
    "its own PYTHONPATH": ((), {"PYTHONPATH": "/mine"}, NotAttached.PYTHON_PATH),
    "isolated": (("-I",), {}, NotAttached.ISOLATED),
    "no environment": (("-uE",), {}, NotAttached.ISOLATED),
    "no site": (("-S",), {"PYTHONPATH": f"{INJECT}:{SITE}"}, NotAttached.NO_SITE),
    "hooks off": ((), {"SLIPSTREAM_HOOKS": "0"}, NotAttached.HOOKS_OFF),
    "all cleared": ((), {"PYTHONPATH": "", ENVIRONMENT_VARIABLE: ""}, "environment_cleared"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_training_without_hooks_is_found_with_the_reason(
    node: Node, case: tuple[tuple[str, ...], dict[str, str], str]
) -> None:
    """As its user would write it; once in its output, however often it is looked at."""
    options, environment, reason = case
    with node.task(sys.executable, *options, "-c", TRAINS, environment=environment) as task:
        assert node.look(task) == reason
        assert node.look(task) == reason
        (line,) = node.output().splitlines()
    assert line.startswith("slipstream: job 7 is not attached: ")
    assert SENTENCE[NotAttached(reason)] in line


def test_a_sitecustomize_before_ours_is_found(node: Node, tmp_path: Path) -> None:
    """By its place on PYTHONPATH: the folder is its user's, and is not opened."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sitecustomize.py").touch()
    path = f"{tmp_path / 'mine'}:{INJECT}"
    with node.task(sys.executable, "-c", TRAINS, environment={"PYTHONPATH": path}) as task:
        assert node.look(task) == NotAttached.SITECUSTOMIZE


def test_a_child_of_a_script_is_found(node: Node) -> None:
    """The task is a shell; the training is below it."""
    script = f'export PYTHONPATH=/x; "{sys.executable}" -c "{TRAINS}"; true'
    with node.task("bash", "-c", script) as task:
        assert node.look(task) == NotAttached.PYTHON_PATH


def test_a_program_on_the_gpu_that_the_hooks_cannot_attach_to_is_told(node: Node) -> None:
    """Python without torch, and no Python at all; without the GPU neither is told of."""
    with node.task(sys.executable, "-c", WAITS) as task:
        assert node.look(task) is None
        assert node.look(task, task.pid) == NotAttached.NO_TORCH
    with node.task("bash", "-c", "echo ready; exec sleep 600") as task:
        assert node.look(task) is None
        assert node.look(task, task.pid) == NotAttached.NO_PYTHON


def test_the_mark_goes_when_the_page_is_claimed(node: Node) -> None:
    """A script that runs one program without hooks and then one with them; one line for both."""
    programs = [
        (
            f'env PYTHONPATH=/x {sys.executable} -c \'import torch; print("ready", flush=True); '
            "input()'"
        ),
        f'{sys.executable} -c "{TRAINS}"',
    ]
    read, write = os.pipe()
    script = f"exec <&{read}; {programs[0]}; {programs[1]}"
    told = {**os.environ, "PYTHONPATH": str(INJECT), ENVIRONMENT_VARIABLE: str(node.block.path)}
    with subprocess.Popen(
        ["bash", "-c", script],
        env=told,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=[read],
    ) as process:
        try:
            assert process.stdout
            task = Task("batch", 0, process.pid, FS.started_ticks(process.pid))
            assert process.stdout.readline() == b"ready\n"
            assert node.look(task) == NotAttached.PYTHON_PATH
            os.write(write, b"\n")
            assert process.stdout.readline() == b"ready\n"
            assert node.look(task) is None
        finally:
            for pid in reversed(FS.family(process.pid)):
                os.kill(pid, 9)
            os.close(read)
            os.close(write)


def test_the_line_is_written_by_the_jobs_user(node: Node) -> None:
    """Never as root: what the user cannot write is not written, and nobody waits for it."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user")
    words = ("bash", "-c", "echo ready; exec sleep 600")
    with node.task(*words, uid=NOBODY) as task:
        assert node.look(task, task.pid, uid=NOBODY) == NotAttached.NO_PYTHON
        assert "slipstream: job 7" in node.output()
        assert (node.finder.lines_written, node.finder.lines_failed) == (1, 0)
    (node.folder / "output").chmod(0o600)
    other = Task("batch", 1, task.pid, task.started_ticks)
    assert other != task
    with node.task(*words, uid=NOBODY) as task:
        (node.folder / "output").chmod(0o600)
        assert node.look(task, task.pid, uid=NOBODY) == NotAttached.NO_PYTHON
        node.output()
        assert (node.finder.lines_written, node.finder.lines_failed) == (1, 1)


def test_a_line_that_nobody_reads_holds_nobody_up(node: Node) -> None:
    """A pipe that is full, or whose reader is gone: the daemon goes on."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(write, b"x" * 4096)
    os.set_blocking(write, True)
    with subprocess.Popen(["sleep", "600"], stderr=write) as process:
        task = Task("batch", 0, process.pid, FS.started_ticks(process.pid))
        began_s = time.monotonic()
        assert node.look(task, task.pid) == NotAttached.NO_PYTHON
        assert time.monotonic() - began_s < 10
        (node.folder / "output").touch()
        node.output()
        assert node.finder.lines_failed == 1
        process.kill()
    os.close(read)
    os.close(write)


def test_options_of_python_end_with_its_program() -> None:
    """What follows -c, -m or the script's name is not Python's."""
    assert python_options(["python", "-I", "train.py", "-S"]) == {"I"}
    assert python_options(["python", "-uS", "-m", "torch", "-I"]) == {"u", "S", "m"}
    assert python_options(["python", "-W", "ignore", "-X", "dev", "-E", "t.py"]) == {"W", "X", "E"}
    assert python_options(["python", "-Wignore", "-c", "print()", "-I"]) == {"W", "c"}
    assert python_options(["python", "--version", "-", "-I"]) == set()
    assert python_options([]) == set()


def test_every_reason_says_what_to_do() -> None:
    """Also one of a later version."""
    assert set(SENTENCE) == set(NotAttached)
    assert all("what to do: " in one for one in SENTENCE.values())
    assert sentence("a_later_one") == SENTENCE[NotAttached.UNKNOWN]
