# SPDX-License-Identifier: Apache-2.0
"""The daemon's sockets: answers from memory, strangers turned away, garbage survived."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
import threading
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from core_world import full, looked, node, request, sight, token
from scheduler_rig import Served, served, submission
from slipstream.core.classes import Mode, Role
from slipstream.core.commands import Admit, Advise
from slipstream.core.events import JobSubmitted, SlurmLost
from slipstream.core.machine import Machine
from slipstream.scheduler import peers, submit_socket
from slipstream.scheduler.engine import Engine
from slipstream.scheduler.submit_socket import SubmitSocket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit

STRANGERS = frozenset({4_000_000})
REPORT = {
    "v": 1,
    "node": "n1",
    "at_s": 5.0,
    "gpus": [{"index": 0, "uuid": "GPU-0", "use_pct": 40.0, "owner_job": 7, "guest_jobs": [8]}],
    "jobs": [],
}


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Served]:
    """Two nodes, the second full."""
    with served(tmp_path, node("n1"), full(node("n2"))) as one:
        yield one


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Served]:
    """The same for people who are not us."""
    with served(tmp_path, node("n1"), trusted=STRANGERS) as one:
        yield one


@pytest.fixture
def api(rig: Served) -> Iterator[httpx.Client]:
    """A client of the API."""
    with client(rig) as one:
        yield one


def client(rig: Served) -> httpx.Client:
    """HTTP over the API's socket."""
    transport = httpx.HTTPTransport(uds=str(rig.run_dir / "api.sock"))
    return httpx.Client(transport=transport, base_url="http://scheduler")


def wait_for(holds: Callable[[], bool]) -> None:
    """Another thread is at work: look until it is done."""
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_submission_is_answered_with_a_sentence(rig: Served) -> None:
    """And admission and advice are on their way to the journal."""
    told = json.loads(rig.ask(submission(token(1))))
    assert told == {"v": 1, "message": "opportunistic guest, seats are free on n1."}
    (entry,) = rig.entries
    assert isinstance(entry.event, JobSubmitted)
    assert [type(one) for one in entry.commands] == [Admit, Advise]


def test_advice_is_given_before_the_answer(rig: Served) -> None:
    """Slurm may start the job as soon as it has the answer."""
    given, told = threading.Event(), rig.ahead.append
    rig.engine.ahead = lambda advice: (given.wait(10), told(advice))[1]
    with socket.socket(socket.AF_UNIX) as lua:
        lua.connect(str(rig.run_dir / "submit.sock"))
        lua.sendall(submission(token(1)))
        lua.settimeout(0.2)
        with pytest.raises(TimeoutError):
            lua.recv(1000)
        given.set()
        lua.settimeout(10)
        assert lua.recv(1000)
    assert [one.token for one in rig.ahead] == [token(1)]


def test_the_answer_comes_before_anybody_writes(tmp_path: Path) -> None:
    """A journal that hangs does not hold up a submission."""
    with served(tmp_path, node("n1")) as rig:
        before = len(rig.entries)
        assert rig.ask(submission(token(1)))
        assert len(rig.entries) == before + 1  # handed over, not written


def test_a_burst_is_told_of_once_when_it_has_ended(
    rig: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm is asked for all of them together, and again for who comes later."""
    rig.holds = True
    monkeypatch.setattr(submit_socket, "_BURST_ENDS_S", 1.0)
    for number in range(1, 6):
        rig.ask(submission(token(number)))
    assert rig.bursts == 0
    wait_for(lambda: rig.bursts > 0)
    rig.ask(submission(token(6)))
    wait_for(lambda: rig.bursts > 1)
    assert rig.bursts == 2


def test_who_does_not_wait_for_us_is_not_hurried_after(
    rig: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the board nobody is held; a look a second later is soon enough."""
    monkeypatch.setattr(submit_socket, "_BURST_ENDS_S", 0.01)
    rig.ask(submission(token(1)))
    time.sleep(0.1)
    assert rig.bursts == 0


@pytest.mark.parametrize(
    "line",
    [b"garbage\n", b"\n", b"{}\n", b"x" * 70_000 + b"\n", b"no end", b"", submission("bogus")],
    ids=["garbage", "empty", "nothing", "too long", "no end", "silence", "bad token"],
)
def test_garbage_is_counted_and_survived(rig: Served, line: bytes) -> None:
    """Whoever sent it gets no sentence; the next one gets his."""
    assert rig.ask(line) in (b"", b'{"v":1}\n')
    assert rig.engine.counters.bad_submissions == 1
    assert b"message" in rig.ask(submission(token(1)))


def test_a_user_has_so_many_connections_to_the_api_and_no_more(
    rig: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more is closed at once, so that descriptors are left for submissions; then others may."""
    monkeypatch.setattr(peers, "MOST_OF_A_USER", 3)
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(4)]
        for one in silent:
            one.settimeout(10)
            one.connect(str(rig.run_dir / "api.sock"))
        with contextlib.suppress(ConnectionResetError):
            assert silent[3].recv(1) == b""
        silent[0].sendall(b"GET /v1/health HTTP/1.0\r\nHost: scheduler\r\n\r\n")
        assert silent[0].recv(12) == b"HTTP/1.1 200"
    with client(rig) as api:
        wait_for(lambda: _answers(api))


def _answers(api: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return api.get("/v1/health").is_success
    return False


class Full(socket.socket):
    """Of a process that has no descriptor left, for the first few times."""

    tries = 0

    def accept(self) -> tuple[socket.socket, object]:
        """The kernel's word for it."""
        self.tries += 1
        if self.tries < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().accept()


def test_without_descriptors_submissions_are_tried_again_now_and_then(tmp_path: Path) -> None:
    """Not as fast as the loop can turn: it has others to serve, and a log to fill."""
    asyncio.run(_without_descriptors(tmp_path))


async def _without_descriptors(tmp_path: Path) -> None:
    engine = Engine(Machine(), lambda _entry: None, tmp_path / "disable")
    with Full(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "submit.sock"))
        listener.listen()
        listener.setblocking(False)
        end = SubmitSocket(engine, frozenset({os.getuid()}), lambda: False).serve(listener)
        reader, writer = await asyncio.open_unix_connection(tmp_path / "submit.sock")
        writer.write(submission(token(1)))
        await asyncio.sleep(0.1)
        assert listener.tries == 1
        async with asyncio.timeout(30):
            assert await reader.readline()
        assert listener.tries == 4, "two refused, one let in, one that found nobody"
        writer.close()
        end()


def test_one_connection_serves_many_submissions(rig: Served) -> None:
    """As Lua keeps it; when it goes, that is no submission without an answer."""
    with socket.socket(socket.AF_UNIX) as lua:
        lua.settimeout(10)
        lua.connect(str(rig.run_dir / "submit.sock"))
        for number in (1, 2, 3):
            lua.sendall(submission(token(number)))
            assert b"message" in lua.recv(65_536)
        lua.sendall(b"garbage\n")
        assert lua.recv(65_536) == b'{"v":1}\n'
        lua.sendall(submission(token(4))[:20])
        lua.sendall(submission(token(4))[20:])
        assert b"message" in lua.recv(65_536)
    assert rig.engine.counters.submissions == 4
    rig.ask(submission(token(5)))
    assert rig.engine.counters.bad_submissions == 1  # the garbage


def test_a_stranger_cannot_submit(closed: Served) -> None:
    """The kernel says who it is: no answer, nothing is decided, it is counted."""
    assert closed.ask(submission(token(1))) == b""
    assert closed.entries == []
    assert closed.engine.counters.strangers == 1


def test_only_root_finds_the_sockets_open(rig: Served) -> None:
    """The submit and event sockets for their owner, the API for all."""
    modes = {
        name: stat.S_IMODE((rig.run_dir / f"{name}.sock").stat().st_mode)
        for name in ("submit", "events", "api")
    }
    assert modes == {"submit": 0o600, "events": 0o600, "api": 0o666}


def test_the_kill_switch_counts_from_the_next_submission_on(rig: Served) -> None:
    """Not from the next tick: no advice is given after the file is there."""
    (rig.run_dir / "disable").touch()
    assert b"Slurm decides where it starts" in rig.ask(submission(token(1)))
    assert rig.engine.machine.state.switched_off
    assert rig.engine.machine.state.advice == {}
    (rig.run_dir / "disable").unlink()
    rig.ask(submission(token(2)))
    assert set(rig.engine.machine.state.advice) == {token(1), token(2)}


def test_reports_come_as_lines(rig: Served) -> None:
    """A bad line in between costs only itself."""
    line = json.dumps(REPORT).encode()
    other = line.replace(b"n1", b"n2")
    assert rig.ask(line + b"\ngarbage\n" + other + b"\n", "events.sock") == b""
    wait_for(lambda: set(rig.engine.machine.state.reports) == {"n1", "n2"})
    assert rig.engine.counters.bad_reports == 1


def test_reports_come_by_http_too(rig: Served, api: httpx.Client) -> None:
    """All lines or none."""
    line = json.dumps(REPORT)
    assert api.post("/v1/events", content=f"{line}\n{line}\n").json() == {"v": 1, "taken": 2}
    bad = api.post("/v1/events", content=f"{line.replace('n1', 'n2')}\ngarbage\n")
    assert bad.status_code == 400
    assert "malformed" in bad.json()["error"]
    assert set(rig.engine.machine.state.reports) == {"n1"}


def test_a_stranger_reads_and_changes_nothing(closed: Served) -> None:
    """GET for all, POST for those we know."""
    with client(closed) as api:
        assert api.get("/v1/jobs").status_code == 200
        assert api.post("/v1/mode", json={"mode": "observe"}).status_code == 403
        assert api.post("/v1/events", content=json.dumps(REPORT)).status_code == 403
    assert closed.engine.machine.state.mode is Mode.ADVISE
    assert closed.ask(json.dumps(REPORT).encode() + b"\n", "events.sock") == b""
    assert closed.engine.machine.state.reports == {}
    assert closed.engine.counters.strangers == 3


def test_the_mode_is_set_by_name(rig: Served, api: httpx.Client) -> None:
    """Known names only; the answer to another one lists them."""
    assert api.post("/v1/mode", json={"mode": "enforce"}).json()["mode"] == "enforce"
    assert api.get("/v1/mode").json()["mode"] == "enforce"
    for body in (b"", b"{}", b"[]", b'{"mode":"bogus"}'):
        refused = api.post("/v1/mode", content=body)
        assert refused.status_code == 400
        assert "['observe', 'advise', 'enforce']" in refused.json()["error"]
    assert rig.engine.machine.state.mode is Mode.ENFORCE


def test_jobs_are_shown_with_reason_and_nodes(rig: Served, api: httpx.Client) -> None:
    """A waiting guest of ours, a plain job, and one that is only announced."""
    asked = request(1, role=Role.GUEST)
    rig.tell(looked(11.0, sight("7", asked, reason="Resources"), sight("100")))
    rig.ask(submission(token(2)))
    shown = api.get("/v1/jobs").json()["jobs"]
    assert [(one["job"], one["phase"], one["reason"]) for one in shown] == [
        ("7", "waiting", "advised"),
        ("100", "waiting", "left_to_slurm"),
        (None, "submitted", "not_seen_yet"),
    ]
    assert shown[0]["advised_nodes"] == ["n1"]
    assert (shown[0]["class"], shown[0]["role"]) == ("opportunistic", "guest")


def test_why_tells_the_story(rig: Served, api: httpx.Client) -> None:
    """By number, by an array's number, by token; a job nobody knows is a 404 in a sentence."""
    rig.tell(looked(11.0, sight("7_3", request(1), reason="JobHeldUser")))
    for name in ("7_3", "7", token(1)):
        found = api.get(f"/v1/why/{name}").json()["why"]
        assert found["reason"] == "held"
        assert found["sentence"].startswith("It is held")
        assert found["slurm_says"] == "JobHeldUser"
        told = [line["text"] for line in found["story"][:2]]
        assert told == ["found in the queue as shared owner", "waiting as job 7_3"]
    gone = api.get("/v1/why/99")
    assert gone.status_code == 404
    assert "'99' is not known here" in gone.json()["error"]


def test_gpus_show_counts_and_devices(api: httpx.Client) -> None:
    """Slurm's counts for all nodes, devices where somebody reported."""
    api.post("/v1/events", content=json.dumps(REPORT))
    first, second = api.get("/v1/gpus").json()["nodes"]
    assert (first["node"], first["gpus"], first["gpus_used"]) == ("n1", 4, 0)
    assert first["devices"][0]["owner_job"] == "7"
    assert first["devices"][0]["guest_jobs"] == ["8"]
    assert (second["slots_used"], second["devices"]) == (12, [])


def test_metrics_are_read_at_scrape_time(rig: Served, api: httpx.Client) -> None:
    """Jobs by reason, seats, counters and the mode."""
    rig.ask(submission(token(1)))
    rig.ask(b"garbage\n")
    text = api.get("/metrics").text
    for line in (
        'slipstream_jobs{phase="submitted",reason="not_seen_yet"} 1.0',
        "slipstream_submissions_total 1.0",
        "slipstream_bad_submissions_total 1.0",
        "slipstream_gpus 8.0",
        'slipstream_mode{mode="advise"} 1.0',
    ):
        assert line in text.splitlines()


def test_health_says_when_slurm_is_away(rig: Served, api: httpx.Client) -> None:
    """A 503 an operator's check can see."""
    assert api.get("/v1/health").status_code == 200
    rig.tell(SlurmLost(1.0, "away"))
    assert api.get("/v1/health").status_code == 503


def test_a_socket_a_dead_daemon_left_is_replaced(tmp_path: Path) -> None:
    """And made with its permissions from the first moment on."""
    path = tmp_path / "x.sock"
    peers.listen(path, 0o600).close()
    again = peers.listen(path, 0o666)
    with again, socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(path))
        accepted, _ = again.accept()
        with accepted:
            assert peers.uid_of(accepted) == os.geteuid()
    assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_slurms_user_is_trusted_if_there_is_one() -> None:
    """Root always, a user this machine does not have never."""
    assert 0 in peers.trusted_uids("nobody-of-that-name")
    assert peers.trusted_uids("daemon") - peers.trusted_uids("nobody-of-that-name") == {1}
