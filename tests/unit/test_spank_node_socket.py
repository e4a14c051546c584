# SPDX-License-Identifier: Apache-2.0
"""Asking the coordinator: what its answer may be, how long it may take; and the carrier."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lua.answering import Answering
from spank_build import ANSWER_BYTES, Answer, Gpus, Job, Place, build

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

Orders = list[tuple[str, str | None]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The C code, compiled."""
    return build(tmp_path_factory.mktemp("spank"))


def orders(answer: Answer) -> Orders:
    """What an answer orders."""
    found = answer.orders[: answer.count]
    return [(one.name.decode(), None if one.value is None else one.value.decode()) for one in found]


def read(library: ctypes.CDLL, text: bytes) -> Orders | None:
    """An answer, understood or not."""
    answer = Answer()
    answer.text = text
    return orders(answer) if library.slip_read_answer(ctypes.byref(answer)) else None


def ask(library: ctypes.CDLL, path: Path, deadline_ms: int = 200) -> Orders | str:
    """Over a real socket: the orders, or why there are none."""
    answer = Answer()
    why = ctypes.c_char_p()
    deadline = ctypes.c_int64(library.slip_now_ms() + deadline_ms)
    good = library.slip_ask_node(
        os.fsencode(path), b"v=1 op=start\n", deadline, ctypes.byref(answer), ctypes.byref(why)
    )
    return orders(answer) if good else (why.value or b"").decode()


def test_an_answer_is_read_line_by_line(library: ctypes.CDLL) -> None:
    """Values may hold spaces and equal signs."""
    text = b"env CUDA_VISIBLE_DEVICES=0,1\nunset SLURM_GPUS\nenv A_1=x y=z\nenv EMPTY=\nok\n"
    assert read(library, text) == [
        ("CUDA_VISIBLE_DEVICES", "0,1"),
        ("SLURM_GPUS", None),
        ("A_1", "x y=z"),
        ("EMPTY", ""),
    ]
    assert read(library, b"ok\n") == []


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"ok", b"no\n", b"ok\nenv A=1\n", b"ok\nok\n", b"env A=1\n", b"\nok\n"),
        *(b"env A\nok\n", b"env =1\nok\n", b"env 1A=1\nok\n", b"env A B=1\nok\n"),
        *(b"unset \nok\n", b"unset A=1\nok\n", b"env A=\x01\nok\n", b"ENV A=1\nok\n"),
        b"env A=1\n" * 129 + b"ok\n",
        b"env " + b"A" * 129 + b"=1\nok\n",
    ],
)
def test_an_answer_not_wholly_understood_is_none(library: ctypes.CDLL, text: bytes) -> None:
    """Not even its good lines are followed."""
    assert read(library, text) is None


@settings(max_examples=500, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.binary(max_size=300) | st.text("envunsetok =\nA1", max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(library: ctypes.CDLL, text: bytes) -> None:
    """And what is read has good names."""
    for name, value in read(library, text.replace(b"\0", b"")) or []:
        assert name.isidentifier()
        assert value is None or "\n" not in value


def test_an_answer_comes_over_a_socket(library: ctypes.CDLL, tmp_path: Path) -> None:
    """It is asked one line."""
    path = tmp_path / "node.sock"
    with Answering(path, lambda _line: b"env A=1\nok\n") as coordinator:
        assert ask(library, path) == [("A", "1")]
    assert coordinator.asked == [b"v=1 op=start\n"]


def test_who_is_heard_waits_longer(library: ctypes.CDLL, tmp_path: Path) -> None:
    """The first word must come in time; then there is somebody who answers many at this moment."""
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as asker:
        listener.bind(str(path))
        listener.listen()
        asked = asker.submit(ask, library, path, deadline_ms=300)
        peer, _ = listener.accept()
        with peer:
            peer.sendall(b"wait\n")
            time.sleep(0.5)
            peer.sendall(b"env A=1\nok\n")
        assert asked.result() == [("A", "1")]


@pytest.mark.parametrize("text", [b"wait\n", b"wait\nwait\nok\n", b"env A=1\nwait\nok\n"])
def test_wait_is_a_word_for_the_beginning(
    library: ctypes.CDLL, tmp_path: Path, text: bytes
) -> None:
    """And alone it is no answer."""
    path = tmp_path / "node.sock"
    with Answering(path, lambda _line: text):
        assert isinstance(ask(library, path), str)


@pytest.mark.parametrize(
    "text", [b"", b"garbage\n", b"env A=1\n", b"ok\0\n", b"x" * (2 * ANSWER_BYTES), b"\xff" * 99]
)
def test_garbage_is_no_answer(library: ctypes.CDLL, tmp_path: Path, text: bytes) -> None:
    """At once, not at the deadline."""
    path = tmp_path / "node.sock"
    with Answering(path, lambda _line: text):
        begun = time.monotonic()
        assert isinstance(ask(library, path, deadline_ms=20_000), str)
        assert time.monotonic() - begun < 5


def test_nobody_there_is_seen_at_once(library: ctypes.CDLL, tmp_path: Path) -> None:
    """No socket, a socket nobody listens on, and a path no socket can have."""
    assert ask(library, tmp_path / "node.sock") == "there is no coordinator"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "node.sock"))
    assert ask(library, tmp_path / "node.sock") == "the coordinator does not accept"
    assert ask(library, tmp_path / ("x" * 200)) == "the path of the socket is too long"


def test_a_coordinator_that_hangs_costs_the_deadline(library: ctypes.CDLL, tmp_path: Path) -> None:
    """It listens and never answers."""
    path = tmp_path / "node.sock"
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(path))
        hung.listen(1)
        begun = time.monotonic()
        assert ask(library, path) == "no whole answer in time"
        assert 0.19 < time.monotonic() - begun < 5


CARRIER = b"class=opportunistic,role=guest,gpus=task:2,token=0123456789abcdef"


def test_a_carrier_is_read_as_it_was_written(library: ctypes.CDLL) -> None:
    """Keys of later versions are passed over."""
    job, text = Job(), ctypes.create_string_buffer(512)
    assert library.slip_read_carrier(CARRIER + b",later=x", ctypes.byref(job))
    assert (job.class_name, job.role, job.per, job.count) == (
        b"opportunistic",
        b"guest",
        b"task",
        2,
    )
    assert library.slip_write_carrier(ctypes.byref(job), text, len(text))
    assert text.value == CARRIER


def test_an_owner_that_keeps_guests_away_still_does_when_it_is_written_again(
    library: ctypes.CDLL,
) -> None:
    """A carrier that is written anew, as for a job with another role, loses nothing of it."""
    job, text = Job(), ctypes.create_string_buffer(512)
    assert library.slip_read_carrier(CARRIER + b",share=no", ctypes.byref(job))
    assert job.keeps_guests_away
    assert library.slip_write_carrier(ctypes.byref(job), text, len(text))
    assert text.value == CARRIER + b",share=no"
    assert library.slip_read_carrier(CARRIER + b",share=yes", ctypes.byref(job))
    assert not job.keeps_guests_away


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"class", b"role=guest", b"class=a,role=king", b"class=a b", b"class=A"),
        *(
            b"class=a,gpus=2",
            b"class=a,gpus=rack:2",
            b"class=a,gpus=node:",
            b"class=a,gpus=node:1x",
        ),
        *(b"class=" + b"a" * 32, b"class=a,gpus=node:999999", b"class=a," + b"x=y," * 200),
    ],
)
def test_a_job_with_a_bad_carrier_is_not_ours(library: ctypes.CDLL, text: bytes) -> None:
    """It was not us who wrote it: the job runs as it is."""
    job = Job()
    assert not library.slip_read_carrier(text, ctypes.byref(job))
    assert job.role == b"none"


@pytest.mark.parametrize(
    ("gpus", "nodes", "tasks", "here"),
    [
        ("node:2", 3, 4, 2),
        ("job:4", 1, 1, 4),
        ("job:4", 2, 1, 2),
        ("job:5", 2, 1, 3),
        ("task:2", 1, 3, 6),
        ("task:2", 1, 0, 2),
        ("socket:1", 1, 1, 1),
        ("job:4", 0, 0, 4),
    ],
)
def test_a_jobs_gpus_on_one_node(
    library: ctypes.CDLL, gpus: str, nodes: int, tasks: int, here: int
) -> None:
    """However they were asked for."""
    job = Job()
    assert library.slip_read_carrier(f"class=auto,gpus={gpus}".encode(), ctypes.byref(job))
    place = Place(nodes, tasks, 0, False)
    assert library.slip_gpus_on_node(ctypes.byref(job), ctypes.byref(place)) == here


@pytest.mark.parametrize(
    ("carried", "script", "seen"),
    [
        ("gpus=node:4", False, [[0, 2, 5, 7]] * 4),
        ("gpus=task:1", False, [[0], [2], [5], [7]]),
        ("gpus=task:2", False, [[0, 2], [5, 7], [0, 2], [5, 7]]),
        ("gpus=task:3", False, [[0, 2, 5], [7, 0, 2], [5, 7, 0], [2, 5, 7]]),
        ("gpus=task:9", False, [[0, 2, 5, 7]] * 4),
        ("gpus=task:1", True, [[0, 2, 5, 7]] * 4),
        ("gpus=job:4,tasks_per_gpu=2", False, [[0], [0], [2], [2]]),
        ("gpus=job:4,tasks_per_gpu=2", True, [[0, 2, 5, 7]] * 4),
    ],
)
def test_each_task_sees_its_own_gpus(
    library: ctypes.CDLL, *, carried: str, script: bool, seen: list[list[int]]
) -> None:
    """In the order of their numbers, whatever order the table has them in; a script sees all."""
    job = Job()
    assert library.slip_read_carrier(f"class=auto,{carried}".encode(), ctypes.byref(job))
    for task, expected in enumerate(seen):
        gpus = Gpus(4)
        gpus.index[:4] = [7, 0, 5, 2]
        place = Place(1, 4, task, script)
        library.slip_take_part(ctypes.byref(job), ctypes.byref(place), ctypes.byref(gpus))
        assert gpus.listed() == expected


def test_tasks_per_gpu_are_carried(library: ctypes.CDLL) -> None:
    """A carrier that is written anew still has them; what is no number is no carrier."""
    job, text = Job(), ctypes.create_string_buffer(512)
    carrier = CARRIER + b",tasks_per_gpu=2,share=no"
    assert library.slip_read_carrier(carrier, ctypes.byref(job))
    assert job.tasks_per_gpu == 2
    assert library.slip_write_carrier(ctypes.byref(job), text, len(text))
    assert text.value == carrier
    assert not library.slip_read_carrier(CARRIER + b",tasks_per_gpu=2x", ctypes.byref(job))
