# SPDX-License-Identifier: Apache-2.0
"""A real coordinator over simulated GPUs: what it answers, and what a kill leaves."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator_rig import (
    Coordinator,
    Events,
    ask,
    asked_as,
    coordinated_node,
    eventually,
    send,
    told,
)
from slipstream.wire import control_block, owner_phase
from slipstream.wire.control_block import Identity, Role
from slipstream.wire.owner_phase import OwnerPhase

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

CLIENT = """
import sys
from pathlib import Path
sys.path[:0] = sys.argv[1].split(":")
import coordinator_rig
words = dict(word.split("=", 1) for word in sys.argv[3:])
print(coordinator_rig.ask(Path(sys.argv[2]), **words), end="", flush=True)
sys.stdin.read()
"""


FORKING = """
import os
from slipstream.torch_hooks.attach import attach, boundary, status
attach()
boundary()
print(os.path.basename(status().control_block), status().minibatches, flush=True)
if os.fork() == 0:
    boundary()
    boundary()
    print(os.path.basename(status().control_block), status().minibatches, flush=True)
    os._exit(0)
os.wait()
boundary()
print(os.path.basename(status().control_block), status().minibatches, status().problems)
"""


CROWD = """
import os, socket, sys, threading, time
os.setuid(4321)
until_s = time.monotonic() + 3
def stay():
    while time.monotonic() < until_s:
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(sys.argv[1])
            one.recv(1)  # until it is closed
            time.sleep(0.05)
for _ in range(200):
    threading.Thread(target=stay).start()
time.sleep(0.5)
print("there", flush=True)
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Coordinator]:
    """A node of two GPUs, shared by tests that use different jobs."""
    with coordinated_node() as coordinator:
        yield coordinator


@pytest.fixture
def own_node() -> Iterator[Coordinator]:
    """A node for a test that kills its coordinator."""
    with coordinated_node() as coordinator:
        yield coordinator


class Task:
    """A process that asks and lives on until it is ended."""

    def __init__(self, node: Coordinator, **words: object) -> None:
        argv = [sys.executable, "-c", CLIENT, str(Path(__file__).parents[1]), str(node.run_dir)]
        self.process = subprocess.Popen(
            [*argv, *(f"{key}={value}" for key, value in words.items())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if line == "ok\n" or line.startswith("error"):
                break
        self.answer = "".join(lines)

    def gpu(self) -> str:
        """The GPUs it was given."""
        return told(self.answer)["CUDA_VISIBLE_DEVICES"]

    def end(self) -> None:
        """The task is over."""
        self.process.kill()
        self.process.communicate()


def page_of(answer: str) -> Identity:
    """Whose page the answer names."""
    return control_block.read_identity(Path(told(answer)["SLIPSTREAM_CONTROL"]).read_bytes())


def seated(node: Coordinator) -> dict[int, list[str]]:
    """The table as the coordinator keeps it."""
    table = json.loads((node.run_dir / "seats.json").read_text())
    return {one["job_id"]: one["gpu_uuids"] for one in table["seats"]}


def test_a_guest_gets_a_gpu_a_page_and_the_import_hook(node: Coordinator) -> None:
    """Everything a task needs, in one answer."""
    environment = told(node.ask(job=10, pythonpath="/mine"))
    identity = page_of(node.ask(job=10))
    assert environment["CUDA_VISIBLE_DEVICES"] in ("0", "1")
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    inject, mine = environment["PYTHONPATH"].split(":")
    assert (Path(inject) / "sitecustomize.py").is_file()
    assert (mine, environment["SLIPSTREAM_INJECT"]) == ("/mine", inject)
    assert (identity.job_id, identity.role, identity.uid) == (10, Role.GUEST, os.getuid())
    assert identity.asked_pid == os.getpid()
    assert len(identity.gpu_uuids) == 1


def test_a_pythonpath_that_was_not_told_is_not_touched(node: Coordinator) -> None:
    """Else the user's own would be lost."""
    assert "PYTHONPATH" not in told(node.ask(job=11))
    assert told(node.ask(job=11, pythonpath=""))["PYTHONPATH"].endswith("/inject")


def test_an_owner_keeps_what_slurm_gave_it(node: Coordinator) -> None:
    """A page, the import hook and where to save, no word on its GPUs."""
    environment = told(node.ask(job=12, role="owner"))
    expected = {"SLIPSTREAM_CONTROL", "SLIPSTREAM_INJECT", "SLIPSTREAM_CHECKPOINT_DIR"}
    expected |= {"SLIPSTREAM_MEMORY_FLOOR_MIB"}
    assert expected == set(environment)


def test_a_job_that_is_not_ours_gets_nothing(node: Coordinator) -> None:
    """role=none: left to Slurm."""
    assert node.ask(job=13, role="none") == "ok\n"
    assert 13 not in seated(node)


def test_two_gpus_are_two_different_ones(node: Coordinator) -> None:
    """And three of two are two."""
    assert sorted(told(node.ask(job=14, gpus=2))["CUDA_VISIBLE_DEVICES"].split(",")) == ["0", "1"]
    assert sorted(told(node.ask(job=15, gpus=3))["CUDA_VISIBLE_DEVICES"].split(",")) == ["0", "1"]


def test_tasks_of_a_job_share_its_gpus(node: Coordinator) -> None:
    """They get the same, each with a page of its own."""
    answers = [node.ask(job=16, step=0, task=task) for task in range(2)]
    assert len({told(one)["CUDA_VISIBLE_DEVICES"] for one in answers}) == 1
    assert len({told(one)["SLIPSTREAM_CONTROL"] for one in answers}) == 2


GPU_LISTS = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_STEP_GPUS")


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ({}, ["0,1", "0,1", "0,1", "0,1"]),
        ({"gpus_per_task": 1}, ["0", "1", "0", "1"]),
        ({"gpus_per_task": 2}, ["0,1", "0,1", "0,1", "0,1"]),
        ({"gpus_per_task": 1, "tasks_per_gpu": 2}, ["0", "0", "1", "1"]),
        ({"gpus_per_task": 9, "tasks_per_gpu": 4294967295}, ["0,1", "0,1", "0,1", "0,1"]),
    ],
)
def test_each_task_of_a_guest_is_told_of_its_own_gpus(
    own_node: Coordinator, words: dict[str, int], seen: list[str]
) -> None:
    """Under the names that an owner's task finds; and its page is of those GPUs."""
    answers = [own_node.ask(job=16, step=0, task=task, gpus=2, **words) for task in range(4)]
    for name in GPU_LISTS:
        assert [told(one)[name] for one in answers] == seen
    assert {told(one)["SLURM_GPUS_ON_NODE"] for one in answers} == {"2"}
    assert [len(page_of(one).gpu_uuids) for one in answers] == [len(s.split(",")) for s in seen]
    child = own_node.ask(op="block", job=16, step=0, task=1)
    assert page_of(child).gpu_uuids == page_of(answers[1]).gpu_uuids
    assert len(seated(own_node)[16]) == 2, "the job has both"


def test_a_guests_script_is_told_of_all_its_gpus(node: Coordinator) -> None:
    """With the variables of an owner's script, and none of those that a step would ask for."""
    environment = told(node.ask(job=18, step="batch", gpus=2))
    assert environment["SLURM_GPUS_ON_NODE"] == "2"
    assert environment["SLURM_JOB_GPUS"] == environment["GPU_DEVICE_ORDINAL"] == "0,1"
    assert not environment.keys() & {"SLURM_STEP_GPUS", "SLURM_GPUS", "SLURM_GPUS_PER_TASK"}


def test_a_process_of_a_task_can_ask_for_its_own_page(node: Coordinator) -> None:
    """A rank of torchrun's; not before its job is known here."""
    assert node.ask(op="block", job=170).startswith("error job 170 has no task here")
    node.ask(job=17, step=3)
    environment = told(node.ask(op="block", job=17, step=4))
    assert set(environment) == {"SLIPSTREAM_CONTROL"}


def test_a_forked_rank_trains_with_a_page_of_its_own(node: Coordinator) -> None:
    """The hooks ask for it at the child's first boundary; the parent's page is left alone."""
    page = told(node.ask(job=24))["SLIPSTREAM_CONTROL"]
    done = subprocess.run(
        [sys.executable, "-c", FORKING],
        env={**os.environ, "SLIPSTREAM_CONTROL": page},
        capture_output=True,
        text=True,
        check=True,
    )
    first, child, last = (line.split(maxsplit=2) for line in done.stdout.splitlines())
    assert (first, last) == ([Path(page).name, "1"], [Path(page).name, "2", "{}"])
    assert child[0].startswith("batch.0.")
    assert (child[0] != Path(page).name, child[1]) == (True, "2")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"\n", "error v=None is not understood"),
        (b"GET / HTTP/1.1\r\n", "error v=None"),
        (b"v=1 op=start job=../7\n", "error job='../7' is not a number"),
        (b"\xff\xfe\n", "error v=None"),
    ],
)
def test_garbage_is_refused_with_a_sentence(node: Coordinator, line: bytes, complaint: str) -> None:
    """And the next task is answered."""
    assert send(node.run_dir, line).startswith(complaint)
    assert node.ask(job=18).endswith("ok\n")


def test_a_line_without_end_is_not_read_to_its_end(node: Coordinator) -> None:
    """The connection is closed."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(str(node.run_dir / "node.sock"))
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            connection.sendall(b"v=1 " * (1 << 20))
    assert node.ask(job=19).endswith("ok\n")


def test_silent_askers_do_not_keep_others_waiting(node: Coordinator) -> None:
    """A hundred of them, and an answer within milliseconds."""
    silent = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(100)]
    try:
        for one in silent:
            one.connect(str(node.run_dir / "node.sock"))
        began_s = time.monotonic()
        assert node.ask(job=20).endswith("ok\n")
        assert time.monotonic() - began_s < 5
    finally:
        for one in silent:
            one.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_crowd_of_one_user_does_not_keep_others_out(node: Coordinator) -> None:
    """More connections than one user may have, and a task of another is answered."""
    crowd = subprocess.Popen(
        [sys.executable, "-c", CROWD, str(node.run_dir / "node.sock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert crowd.stdout
    assert crowd.stdout.readline() == "there\n"
    before = node.metrics()["slipstream_node_requests_refused_total"]
    for _ in range(20):
        assert node.ask(job=24).endswith("ok\n")
    crowd.communicate()
    assert before >= 50, "those of them that were too many"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_cannot_ask_for_another(node: Coordinator) -> None:
    """Neither in another's name nor for another's job, also one to come; root may."""
    node.ask(job=21, uid=1234)
    for words, complaint in (
        ({"job": 22, "uid": 0}, r"error uid=0 cannot be asked for by uid 4321"),
        ({"job": 21, "uid": 4321}, r"error pid \d+ is no process of job 21"),
        ({"job": 21, "uid": 4321, "op": "block"}, r"error job 21 is not of uid 4321"),
        ({"job": 23, "uid": 4321}, r"error pid \d+ is no process of job 23"),
    ):
        assert re.match(complaint, asked_as(4321, node.run_dir, **words))
    assert node.ask(job=21, uid=99).endswith("ok\n")


def test_guests_get_distinct_gpus_and_free_them_when_they_end(own_node: Coordinator) -> None:
    """Two guests on two GPUs; one ends and the next one gets its place."""
    first, second = (Task(own_node, job=job) for job in (1, 2))
    assert {first.gpu(), second.gpu()} == {"0", "1"}
    first.end()
    assert eventually(lambda: set(seated(own_node)) == {2})
    third = Task(own_node, job=3)
    assert third.gpu() == first.gpu()
    assert not (own_node.run_dir / "blocks/1").exists()
    second.end()
    third.end()


@pytest.mark.parametrize("table", ["kept", "lost", "garbage"])
def test_a_killed_coordinator_finds_its_guests_again(own_node: Coordinator, table: str) -> None:
    """From its table; if that is gone, from the pages of those who live."""
    first, second = (Task(own_node, job=job) for job in (1, 2))
    before = seated(own_node)
    own_node.kill()
    second.end()
    if table == "lost":
        (own_node.run_dir / "seats.json").unlink()
    if table == "garbage":
        (own_node.run_dir / "seats.json").write_text("{")
    own_node.start()
    assert eventually(lambda: set(seated(own_node)) == {1}), own_node.log()
    assert seated(own_node)[1] == before[1]
    third = Task(own_node, job=3)
    assert third.gpu() != first.gpu()
    first.end()
    third.end()


def test_leases_are_renewed_until_the_coordinator_is_killed(own_node: Coordinator) -> None:
    """Five seconds ahead, every second; afterwards no more."""
    page = Path(told(own_node.ask(job=1))["SLIPSTREAM_CONTROL"])

    def lease_s() -> float:
        words = memoryview(page.read_bytes()).cast("Q")
        until_ns = words[control_block.word(control_block.Down, "lease_until_ns")]
        return (until_ns - time.monotonic_ns()) / 1e9

    for _ in range(5):
        assert 3.0 < lease_s() <= 5.0
        time.sleep(0.5)
    own_node.kill()
    time.sleep(1.5)
    assert lease_s() < 3.6


def test_two_coordinators_of_one_node_cannot_be(own_node: Coordinator) -> None:
    """The second says why and ends; the first goes on."""
    argv = [sys.executable, "-m", "slipstream.coordinator", f"--run-dir={own_node.run_dir}"]
    done = subprocess.run(
        argv, env=dict(own_node.environment), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("slipstream coordinator: another coordinator runs in")
    assert own_node.ask().endswith("ok\n")


def test_events_are_sent_at_once_and_as_a_heartbeat(own_node: Coordinator) -> None:
    """A new guest is told within a moment, though nobody listened before."""
    time.sleep(0.3)
    with Events(own_node.run_dir / "events.sock").listening() as scheduler:
        own_node.ask(job=5)
        assert eventually(
            lambda: any(
                5 in gpu["guest_jobs"] for event in scheduler.heard for gpu in event["gpus"]
            ),
            within_s=2,
        )
        changed = len(scheduler.heard)
        assert eventually(lambda: len(scheduler.heard) > changed, within_s=7)
    assert {event["node"] for event in scheduler.heard} == {"n1"}


def test_prometheus_reads_the_state(own_node: Coordinator) -> None:
    """Guests, use and answers."""
    own_node.ask(job=5)
    send(own_node.run_dir, b"nonsense\n")
    found = own_node.metrics()
    assert found['slipstream_node_jobs{role="guest"}'] == 1
    assert found['slipstream_gpu_use_pct{gpu="0"}'] == 0
    assert found['slipstream_job_phase{job="5",phase="unclaimed"}'] == 1
    assert found["slipstream_node_requests_refused_total"] == 1


def test_an_owners_gpus_are_learned_from_what_slurm_told_it(own_node: Coordinator) -> None:
    """A guest then prefers the other GPU, and the owner can say when it waits."""
    os.environ["SLURM_JOB_GPUS"] = "0"
    try:
        owner = Task(own_node, job=1, role="owner")
    finally:
        del os.environ["SLURM_JOB_GPUS"]
    assert eventually(lambda: len(seated(own_node)[1]) == 1)
    guest = Task(own_node, job=2)
    assert guest.gpu() == "1"
    word = Path(owner_phase.path(str(own_node.run_dir), seated(own_node)[1][0]))
    assert eventually(word.exists)
    assert OwnerPhase.from_buffer_copy(word.read_bytes()).job_id == 1
    owner.end()
    guest.end()


def test_told_to_stop_it_stops(own_node: Coordinator) -> None:
    """SIGTERM, exit code 0, within a moment."""
    began_s = time.monotonic()
    assert own_node.stop() == 0
    assert time.monotonic() - began_s < 5


def test_a_node_without_gpus_seats_nobody(tmp_path: Path) -> None:
    """No NVML: a guest's task is told so and helps itself, an owner is still served."""
    environment = {**os.environ, "LD_LIBRARY_PATH": "", "SLIPSTREAM_RUN_DIR": str(tmp_path)}
    environment.pop("SLIPSTREAM_GPU_STATE", None)
    node = Coordinator(tmp_path, environment)
    node.start()
    try:
        assert ask(tmp_path) == "error no GPU answers on this node\n"
        assert ask(tmp_path, job=8, role="owner").endswith("ok\n")
    finally:
        node.kill()
