# SPDX-License-Identifier: Apache-2.0
"""Telling the daemon: what it is told, what its answer may do, and what silence costs."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from lua.answering import Answering

if TYPE_CHECKING:
    from lua.conftest import Lua

pytestmark = pytest.mark.lua

GUEST = "SLIPSTREAM_CLASS=opportunistic"
JOB: dict[str, object] = {
    "tres_per_node": "gres:gpu:2",
    "shared": 0,
    "min_mem_per_node": 10,
    "script": "#!/bin/sh\ntrue\n",
}
AFTER = {
    "tres_per_node": "gres:slot:2",
    "min_mem_per_node": 10 + 2 * 4096,
    "script": "#!/bin/sh\ntrue\n",
}
ANSWERS_TO_FUZZ = 10_000


def test_the_daemon_is_told_the_whole_request(lua: Lua) -> None:
    """Every field of the contract, with the flags read."""
    job = {
        "user_id": 1234,
        "tres_per_node": "gres:gpu:2",
        "min_nodes": 2,
        "max_nodes": 4,
        "num_tasks": 8,
        "cpus_per_task": 3,
        "min_mem_per_node": 100,
        "time_limit": 90,
        "array_inx": "0-7%2",
        "partition": "batch",
        "account": "research",
        "qos": "low",
        "name": "train é",
        "work_dir": "/home/u",
        "script": "#!/bin/sh\n" + "x" * 20_000,
        "argv": ["/home/u/train.sh", "--lr", "x" * 500],
    }
    spank = (
        *("SLIPSTREAM_CLASS=opportunistic", "SLIPSTREAM_WEIGHT=3", "SLIPSTREAM_ELASTIC=1-8"),
        *("SLIPSTREAM_HINTS=model=resnet50,batch=64", "SLIPSTREAM_ROLES=ps:1,worker:4"),
        *("SLIPSTREAM_DATA=/data/a,/data/b", "SLIPSTREAM_NO_SHARE=1"),
    )
    with Answering(lua.socket_path, lambda _line: b'{"v":1}\n') as daemon:
        comment = lua.submit(job, *spank)["job"]["admin_comment"]
    (line,) = daemon.asked
    asked = json.loads(line)
    assert comment.split("token=")[1].startswith(asked.pop("token"))
    assert asked.pop("script") == "#!/bin/sh\n" + "x" * (16_384 - 10)
    assert asked == {
        "v": 1,
        "uid": 1234,
        "class": "opportunistic",
        "role": "guest",
        "gpus": {"per": "node", "count": 2},
        "nodes": [2, 4],
        "tasks": 8,
        "cpus_per_task": 3,
        "memory_mib": 100,
        "partition": "batch",
        "account": "research",
        "qos": "low",
        "name": "train é",
        "time_limit_s": 5400,
        "array": "0-7%2",
        "hints": {"model": "resnet50", "batch": "64"},
        "elastic": [1, 8],
        "roles": {"ps": 1, "worker": 4},
        "data": ["/data/a", "/data/b"],
        "weight": 3,
        "share": False,
        "move": True,
        "work_dir": "/home/u",
        "argv": ["/home/u/train.sh", "--lr", "x" * 128],
    }


def test_what_is_not_known_is_null(lua: Lua) -> None:
    """An owner started by srun with nothing but a class; an empty list stays a list."""
    with Answering(lua.socket_path, lambda _line: b'{"v":1}\n') as daemon:
        lua.submit({}, "SLIPSTREAM_CLASS=auto")
    asked = json.loads(daemon.asked[0])
    unknown = {name for name, value in asked.items() if value is None}
    assert unknown == {
        *("memory_mib", "partition", "account", "qos", "name", "time_limit_s", "array"),
        *("elastic", "roles", "script", "work_dir"),
    }
    assert asked["hints"] == {}
    assert asked["data"] == []
    assert asked["argv"] == []
    assert asked["nodes"] == [1, 1]


def test_a_script_of_odd_bytes_is_left_out_rather_than_the_question(lua: Lua) -> None:
    """Escaped it would be longer than the daemon reads."""
    with Answering(lua.socket_path, lambda _line: b'{"v":1}\n') as daemon:
        assert lua.ask("tell", path=str(lua.socket_path), script="\x01" * 16_000)["answered"]
    assert json.loads(daemon.asked[0])["script"] is None


HOLD = '{"v":1,"hold_s":10}\n'


def test_a_job_is_held_for_as_long_as_the_daemon_says(lua: Lua) -> None:
    """Its start is set, and its marker says that this is ours to take back."""
    began_s = int(time.time()) - 1  # Lua's clock is the kernel's coarse one, a few ms behind
    with Answering(lua.socket_path, lambda _line: HOLD.encode()):
        job = lua.submit(JOB, GUEST)["job"]
    assert began_s + 10 <= job["begin_time"] <= time.time() + 10
    assert job["admin_comment"].endswith(f" weight=1 hold={int(job['begin_time'])}]")


@pytest.mark.parametrize(
    "job",
    [
        pytest.param({**JOB, "begin_time": 4_000_000_000}, id="its user has set a start"),
        pytest.param({"tres_per_node": "gres:gpu:1"}, id="srun: it would stay held"),
    ],
)
def test_a_start_that_is_not_ours_to_set_stays(lua: Lua, job: dict[str, object]) -> None:
    """Neither start nor marker speak of a hold."""
    with Answering(lua.socket_path, lambda _line: HOLD.encode()):
        after = lua.submit(job, GUEST)["job"]
    assert after.get("begin_time") == job.get("begin_time")
    assert "hold=" not in after["admin_comment"]


def test_the_daemons_sentence_reaches_the_user(lua: Lua) -> None:
    """As it is, percent signs and all."""
    answer = json.dumps({"v": 1, "message": "starts at 12:00, 100% sure", "later": [1]}) + "\n"
    with Answering(lua.socket_path, lambda _line: answer.encode()):
        said = lua.submit({}, "SLIPSTREAM_CLASS=auto")["said"]
    assert said["user"] == ["[slipstream] starts at 12:00, 100% sure"]


@pytest.mark.parametrize(
    "answer",
    [
        *("", "\n", "null\n", "[]\n", "{}\n", '{"v":2}\n', '{"v":"1"}\n', '{"v":1}', "{'v':1}\n"),
        '{"v":1,"message":3}\n',
        *('{"v":1,"hold_s":0}\n', '{"v":1,"hold_s":61}\n', '{"v":1,"hold_s":1.5}\n'),
        *('{"v":1,"hold_s":"10"}\n', '{"v":1,"hold_s":[]}\n'),
        '{"v":1,"message":"two\\nlines"}\n',
        json.dumps({"v": 1, "message": "x" * 401}) + "\n",
        "[" * 1000 + "\n",
        '{"v":1,"message":"' + "x" * 70_000 + '"}\n',
    ],
)
def test_a_wrong_answer_is_no_answer(lua: Lua, answer: str) -> None:
    """The job is admitted as if nobody had spoken, and the user hears nothing of it."""
    with Answering(lua.socket_path, lambda _line: answer.encode()):
        result = lua.submit({}, "SLIPSTREAM_CLASS=auto")
    assert result["rc"] == 0
    assert result["said"]["user"] == []
    assert "answered" not in result["said"]["info"][0]


def test_fuzzed_answers_refuse_no_job_and_change_none(lua: Lua) -> None:
    """Ten thousand answers of all sorts over a real socket: each job is exactly a guest."""
    dice = random.Random(7)  # noqa: S311 (the same answers each time)
    lua.fresh(daemon={"FAILURES": 1_000_000, "DEADLINE_S": 1})
    with Answering(lua.socket_path, lambda _line: fuzzed(dice)) as daemon:
        for _ in range(ANSWERS_TO_FUZZ):
            result = lua.submit(JOB, GUEST)
            result["job"].pop("admin_comment")
            assert (result["rc"], result["job"]) == (0, AFTER)
            assert result["said"]["error"] == []
    assert len(daemon.asked) == ANSWERS_TO_FUZZ


def test_fuzzed_answers_size_a_job_whole_or_not_at_all(lua: Lua) -> None:
    """Whatever is said of its GPUs: request and marker agree, within what one node can have."""
    dice = random.Random(8)  # noqa: S311 (the same answers each time)
    lua.fresh(daemon={"FAILURES": 1_000_000, "DEADLINE_S": 1})
    sizes = set()
    with Answering(lua.socket_path, lambda _line: fuzzed(dice)) as daemon:
        for _ in range(ANSWERS_TO_FUZZ):
            result = lua.submit({"script": "#!/bin/sh\ntrue\n"}, "SLIPSTREAM_CLASS=auto")
            size = int(result["job"]["tres_per_node"].removeprefix("gres:gpu:"))
            assert f" gpus=node:{size} " in result["job"]["admin_comment"]
            assert set(result["job"]) == {"tres_per_node", "admin_comment", "script"}
            assert (result["rc"], result["said"]["error"]) == (0, [])
            sizes.add(size)
    assert len(daemon.asked) == ANSWERS_TO_FUZZ
    assert {1, 2, 16} <= sizes <= set(range(1, 17))


def fuzzed(dice: random.Random) -> bytes:
    """Random bytes, or a good answer with a few of its bytes cut, changed or doubled."""
    if dice.random() < 0.2:
        return dice.randbytes(dice.randrange(200))
    values = [1, 2, -1, 1e300, None, True, "text", [], {}, [[1]], {"v": 1}, "\u0000", "é" * 9]
    answer: dict[str, object] = {
        "v": 1 if dice.random() < 0.7 else dice.choice(values),
        "message": "all is well",
    }
    answer |= {dice.choice(["message", "class", "role", "x", "gpus"]): dice.choice(values)}
    if dice.random() < 0.3:
        answer["gpus"] = dice.choice([2, 16, 17, 0, 1.5, "2"])
    text = bytearray(json.dumps(answer).encode() + b"\n")
    for _ in range(dice.randrange(4)):
        at = dice.randrange(len(text))
        text[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(3))
    return bytes(text)


def test_one_connection_serves_many_questions(lua: Lua) -> None:
    """Until a daemon of before is gone: then the next question finds the new one."""
    lua.fresh(daemon={"DEADLINE_S": 1})
    for _ in range(2):
        with Answering(lua.socket_path, lambda _line: b'{"v":1}\n', stays=True) as daemon:
            for _ in range(5):
                assert lua.ask("tell", path=str(lua.socket_path))["answered"]
            assert (daemon.callers, len(daemon.asked)) == (1, 5)


def test_what_follows_an_answer_is_not_the_answer_to_the_next_question(lua: Lua) -> None:
    """A daemon that says more than it was asked is met anew."""
    lua.fresh(daemon={"DEADLINE_S": 1})
    answers = iter([b'{"v":1}\n{"v":2}\n', b'{"v":1}\n'])
    with Answering(lua.socket_path, lambda _line: next(answers), stays=True) as daemon:
        assert lua.ask("tell", path=str(lua.socket_path))["answered"]
        assert lua.ask("tell", path=str(lua.socket_path))["answered"]
    assert daemon.callers == 2


def test_a_late_answer_is_not_the_answer_to_the_next_question(lua: Lua) -> None:
    """Who was too slow is not listened to any more."""
    lua.fresh(daemon={"DEADLINE_S": 0.5})
    may_answer = threading.Event()

    def late(_line: bytes) -> bytes:
        may_answer.wait(10)
        return b'{"v":1}\n'

    with Answering(lua.socket_path, late, stays=True) as daemon:
        assert not lua.ask("tell", path=str(lua.socket_path))["answered"]
        may_answer.set()
        assert lua.ask("tell", path=str(lua.socket_path))["answered"]
    assert daemon.callers == 2


def test_a_daemon_that_hangs_costs_one_deadline(lua: Lua) -> None:
    """It accepts and says nothing: 20 ms and no more."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(lua.socket_path))
        listener.listen(1)
        begun = time.monotonic()
        told = lua.ask("tell", path=str(lua.socket_path))
        took_s = time.monotonic() - begun
    lua.socket_path.unlink()
    assert not told["answered"]
    assert 0.015 < took_s < 5


def test_a_daemon_with_a_full_queue_costs_one_deadline(lua: Lua) -> None:
    """Nobody accepts and no more callers fit: the connection itself must not wait."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(lua.socket_path))
        listener.listen(0)
        waiting = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(str(lua.socket_path))
        begun = time.monotonic()
        told = lua.ask("tell", path=str(lua.socket_path))
        took_s = time.monotonic() - begun
        for one in waiting:
            one.close()
    lua.socket_path.unlink()
    assert not told["answered"]
    assert took_s < 5


def test_a_daemon_that_dribbles_costs_one_deadline(lua: Lua) -> None:
    """A byte now and then does not extend it."""
    enough = threading.Event()

    def dribble() -> None:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError):
            while not enough.wait(0.005):
                peer.send(b"x")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(lua.socket_path))
        listener.listen(1)
        thread = threading.Thread(target=dribble)
        thread.start()
        begun = time.monotonic()
        told = lua.ask("tell", path=str(lua.socket_path))
        took_s = time.monotonic() - begun
        enough.set()
        thread.join()
    lua.socket_path.unlink()
    assert not told["answered"]
    assert took_s < 5


def test_after_three_failures_nobody_is_asked_for_30_s(lua: Lua) -> None:
    """The fourth does not even try; after the rest one try decides."""
    path = str(lua.socket_path)

    def tell(now_s: int) -> str | None:
        why: str | None = lua.ask("tell", path=path, now_s=now_s)["why"]
        return why

    assert [tell(1000) == "resting" for _ in range(4)] == [False, False, False, True]
    with Answering(lua.socket_path, lambda _line: b'{"v":1}\n') as daemon:
        assert tell(1029) == "resting"
        assert daemon.asked == []
        assert tell(1030) is None
        assert tell(1030) is None
        assert len(daemon.asked) == 2
    assert tell(1031) not in {None, "resting"}  # the count began anew


def test_one_failure_after_the_rest_is_enough(lua: Lua) -> None:
    """A daemon that is still away costs one try every 30 s, not three."""
    path = str(lua.socket_path)
    whys = [lua.ask("tell", path=path, now_s=now_s)["why"] for now_s in (0, 0, 0, 30, 31, 60)]
    assert [why == "resting" for why in whys] == [False, False, False, False, True, False]
