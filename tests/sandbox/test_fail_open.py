# SPDX-License-Identifier: Apache-2.0
"""Daemons that are dead, hung or mad: jobs are submitted and start all the same, in time."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from lua.answering import Answering
from sandbox.jobs import OURS, drained, looked
from slipstream.sandbox import Sandbox, Shape, plugins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.sandbox

SERVER = """
import sys
from pathlib import Path
from lua.answering import Answering
answer = sys.argv[2].encode().decode("unicode_escape").encode("latin1")
with Answering(Path(sys.argv[1]), lambda line: answer):
    print("ready", flush=True)
    sys.stdin.read()
"""
DEADLINE_MS = 20
"""Of job_submit, for the daemon's answer."""
NEWER_S = itertools.count(time.time() + 1e6)
"""Dates of a script, each newer by the second that slurmctld tells them apart by."""
GARBAGE = r"\\x00\\xff{]garbage"


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """A cluster whose daemons this file plays."""
    shape = Shape(nodes=1, gpus_per_node=2, racks=1)
    with Sandbox.started(shape, name="alone", home=tmp_path_factory.mktemp("f")) as sandbox:
        yield sandbox


@contextlib.contextmanager
def server(path: Path, answer: str, *, stopped: bool = False) -> Iterator[None]:
    """A daemon in a process of its own that gives one answer to everybody, or is stopped."""
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(path), answer],
        env={**os.environ, "PYTHONPATH": "tests"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        if process.stdout is None or process.stdin is None:
            raise AssertionError("pipes were asked for")
        assert process.stdout.readline() == b"ready\n"
        if stopped:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)
            process.stdin.close()


@pytest.fixture
def submit_socket(box: Sandbox) -> Path:
    """Where job_submit asks; its breaker does not rest, because it is loaded anew."""
    load_anew(box)
    return box.layout.run / "submit.sock"


def load_anew(box: Sandbox) -> None:
    """Have slurmctld read job_submit.lua at the next submission, as after an edit."""
    os.utime(box.layout.etc / "job_submit.lua", (next(NEWER_S),) * 2)


def submitted(box: Sandbox) -> str:
    """A guest's submission; what job_submit wrote of it to the log."""
    done = box.run("sbatch", "--parsable", "--hold", OURS, "--gpus=1", "--wrap=true")
    shown = box.run("scontrol", "show", "job", done.stdout.strip()).stdout
    box.run("scancel", done.stdout.strip())
    found = re.search(r"\[slipstream v=1 token=(\w+) .* role=guest .*\]", shown)
    assert found
    assert re.search(r"TresPerJob=gres[:/]slot:1", shown)
    log = (box.layout.log / "slurmctld.log").read_text()
    (line,) = [line for line in log.splitlines() if f"token={found[1]}" in line]
    return line


def took_ms(line: str) -> float:
    """What job_submit cost, by its own clock."""
    found = re.search(r"took_us=(\d+)", line)
    assert found
    return int(found[1]) / 1000


def least_ms(box: Sandbox) -> float:
    """The cost of the quickest of a few: the machine has other work as well."""
    return min(took_ms(submitted(box)) for _ in range(3))


def test_an_answer_is_heard(box: Sandbox, submit_socket: Path, tmp_path: Path) -> None:
    """A daemon's sentence reaches the user of sbatch; the job's request reached the daemon."""
    script = tmp_path / "train.sh"
    script.write_text("#!/bin/sh\ntrue # my script\n")
    answer = {"v": 1, "message": "starts at once"}
    said = ""
    with Answering(submit_socket, lambda _line: json.dumps(answer).encode() + b"\n") as daemon:
        for _ in range(20):  # a busy machine may not answer within 20 ms every time
            load_anew(box)
            done = box.run("sbatch", "--hold", OURS, "--gpus=1", str(script), "--lr", "0.1")
            box.run("scancel", done.stdout.split()[-1])
            if said := done.stderr:
                break
    asked = json.loads(daemon.asked[-1])
    assert "[slipstream] starts at once" in said
    assert asked["gpus"] == {"per": "job", "count": 1}
    assert "# my script" in asked["script"]
    assert asked["argv"] == [str(script), "--lr", "0.1"]


def test_a_dead_scheduler_costs_nothing(box: Sandbox, submit_socket: Path) -> None:
    """No socket at all, and one that a killed daemon left."""
    assert least_ms(box) < DEADLINE_MS
    submit_socket.touch()
    load_anew(box)
    assert least_ms(box) < DEADLINE_MS
    submit_socket.unlink()


def test_a_hung_scheduler_costs_its_deadline(box: Sandbox, submit_socket: Path) -> None:
    """Stopped by SIGSTOP with its socket open: 20 ms, and the job is a guest."""
    with server(submit_socket, '{"v":1}\\n', stopped=True):
        line = submitted(box)
    assert "timeout" in line
    assert took_ms(line) > 0.75 * DEADLINE_MS


def test_a_mad_scheduler_is_not_believed(box: Sandbox, submit_socket: Path) -> None:
    """Garbage in place of an answer: the job is admitted as if nobody had spoken."""
    with server(submit_socket, GARBAGE + "\\n"):
        line = submitted(box)
    assert "answered" not in line


def test_the_breaker_stops_asking(box: Sandbox, submit_socket: Path) -> None:
    """After three hung answers the next submissions do not wait at all."""
    script = box.layout.etc / "job_submit.lua"
    submitted(box)  # loads the module a last time
    os.utime(script, (1e6, 1e6))
    with server(submit_socket, '{"v":1}\\n', stopped=True):
        lines = [submitted(box) for _ in range(6)]
    assert [line.endswith("resting") for line in lines][-3:] == [True] * 3
    assert min(took_ms(line) for line in lines[-3:]) < DEADLINE_MS


@pytest.fixture
def node_socket(box: Sandbox) -> Path:
    """Where the SPANK plugin asks on the only node."""
    return plugins.run_folder(box.layout, "n1") / "node.sock"


def test_the_coordinator_is_asked_and_followed(
    box: Sandbox, node_socket: Path, tmp_path: Path
) -> None:
    """What it says is exported and unset, also for an owner; a plain job does not ask."""
    answer = "env CUDA_VISIBLE_DEVICES=1\nenv SLIPSTREAM_CONTROL=/run/x\nunset HOSTNAME\nok\n"
    with Answering(node_socket, lambda _line: answer.encode()) as coordinator:
        guest = looked(box, tmp_path, OURS, "--gpus=1", "--export=ALL,HOSTNAME=h")
        owner = looked(box, tmp_path, "--slip-class=shared", "--gpus=1")
        plain = looked(box, tmp_path, "--gpus=1")
    assert (guest.gpus, owner.gpus, plain.gpus) == ("1", "1", "0")
    assert guest.env["SLIPSTREAM_CONTROL"] == "/run/x"
    assert "HOSTNAME" not in guest.env
    first, second = (line.decode().split() for line in coordinator.asked)
    asked = dict(word.split("=", 1) for word in first)
    assert asked.pop("job") == guest.field("JobId")
    assert len(asked.pop("token")) == 16
    assert asked == {
        "v": "1",
        "op": "start",
        "step": "batch",
        "uid": str(os.getuid()),
        "node": "n1",
        "task": "0",
        "tasks": "1",
        "gpus": "1",
        "gpus_per_task": "0",
        "tasks_per_gpu": "0",
        "role": "guest",
        "class": "opportunistic",
        "waits": "1",
    }
    assert {"role=owner", "class=shared"} <= set(second)


@pytest.mark.parametrize("state", ["dead", "left", "hung", "mad", "silent on GPUs"])
def test_without_a_coordinators_word_the_table_decides(
    box: Sandbox, node_socket: Path, tmp_path: Path, state: str
) -> None:
    """A guest starts on a GPU of its own, and an owner as ever, within the deadline."""
    answer = {"mad": GARBAGE, "silent on GPUs": "env A=1\\nok\\n"}.get(state, "ok\\n")
    with contextlib.ExitStack() as stack:
        if state == "left":
            node_socket.touch()
            stack.callback(node_socket.unlink)
        elif state != "dead":
            stack.enter_context(server(node_socket, answer, stopped=state == "hung"))
        guest = looked(box, tmp_path, OURS, "--gpus=1")
        owner = looked(box, tmp_path, "--slip-class=auto", "--gpus=1")
    assert (guest.gpus, owner.gpus) == ("0", "0")
    assert guest.env.get("A") == ("1" if state == "silent on GPUs" else None)


def test_a_hung_coordinator_costs_its_deadline(box: Sandbox, node_socket: Path) -> None:
    """A step of a guest: 200 ms, not more, measured against the same step without it."""
    words = ("srun", "--quiet", OURS, "--gpus=1", "bash", "-c")
    steps = "for _ in 1 2 3; do date +%s%N; srun true; done; date +%s%N"
    with server(node_socket, "ok\\n", stopped=True):
        done = box.run("salloc", OURS, "--gpus=1", "bash", "-c", steps)
    times = [int(line) for line in done.stdout.split()]
    took_s = [(after - before) / 1e9 for before, after in itertools.pairwise(times)]
    assert box.run(*words, "true").returncode == 0
    assert 0.2 <= min(took_s) < 5


def test_a_plugin_that_is_missing_on_a_node_costs_nothing(box: Sandbox, tmp_path: Path) -> None:
    """`optional`: the job runs, the node stays."""
    stack = box.layout.etc / "plugstack.conf"
    text = stack.read_text()
    stack.write_text("optional /nowhere/slipstream.so\n")
    try:
        assert looked(box, tmp_path, "--gpus=1").gpus == "0"
    finally:
        stack.write_text(text)


def test_without_cli_filter_a_guest_still_does_not_see_every_gpu(box: Sandbox) -> None:
    """Nobody could tell how many it asked for: it is bound to one."""
    script = box.layout.etc / "cli_filter.lua"
    text = script.read_text()
    functions = ("setup_defaults", "pre_submit", "post_submit")
    script.write_text("".join(f"function slurm_cli_{one}() return 0 end\n" for one in functions))
    try:
        words = ("srun", "--quiet", OURS, "--gres=slot:2", "printenv", "CUDA_VISIBLE_DEVICES")
        assert box.run(*words).stdout.split() == ["0"]
    finally:
        script.write_text(text)


def test_no_node_was_drained(box: Sandbox) -> None:
    """By anything in this file, in whatever order it ran."""
    assert drained(box) == []
