# SPDX-License-Identifier: Apache-2.0
"""The dashboard over HTTP, without a browser: what is told, to whom, and what a slow one misses."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from core_world import RULES, holds, looked, machine, node, request, sight
from dashboard_world import Busy
from scheduler_rig import Served, served
from slipstream.core.classes import Role
from slipstream.core.events import NodeReported
from slipstream.core.sights import GpuUse, Standing, Training
from slipstream.scheduler.dashboard.feed import Feed
from slipstream.scheduler.dashboard.past import Past
from slipstream.scheduler.dashboard.table import Table
from slipstream.scheduler.engine import Engine
from slipstream.scheduler.own_names import is_own

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from slipstream.scheduler.journal import Entry

pytestmark = pytest.mark.unit


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Served]:
    """Two busy nodes."""
    with served(tmp_path, web=True) as one:
        one.tell(*Busy(2, 2, 6).events())
        yield one


def heard(lines: Iterator[str]) -> tuple[str, dict[str, Any]]:
    """The next server-sent event."""
    kind = ""
    for line in lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            return kind, json.loads(line.removeprefix("data: "))
    raise AssertionError("the stream has ended")


def test_a_browser_is_told_everything_then_what_changes(rig: Served) -> None:
    """Rows in the order of the columns, only those that changed, and names that are gone."""
    with httpx.stream("GET", f"{rig.url}/v1/live", timeout=30) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        kind, told = heard(lines)
        assert kind == "snapshot"
        jobs = [dict(zip(told["columns"]["jobs"], row, strict=True)) for row in told["jobs"]]
        assert [job["key"] for job in jobs] == ["1", "2", "3", "4", "5", "6"]
        assert (jobs[0]["name"], jobs[0]["does"], jobs[0]["share_pct"]) == (
            "bert-large-1",
            "training",
            100.0,
        )
        assert [row[0] for row in told["nodes"]] == ["gpu001", "gpu002"]
        assert told["meta"]["mode"] == "advise"
        assert told["meta"]["node_modes"]["count"] == 2
        assert told["sentences"]["running"] == "It runs."
        rig.tell(looked(time.time(), sight("9", request(9)), gone=("4",)))
        while not (told := heard(lines)[1])["jobs"]:
            pass
        assert "9" in [row[0] for row in told["jobs"]]
        assert len(told["jobs"]) < 6
        assert told["jobs_gone"] == ["4"]


def test_the_page_lets_nothing_in_from_elsewhere(rig: Served) -> None:
    """A strict policy on every part; parts are the files there are, and no paths."""
    with httpx.Client(base_url=rig.url) as client:
        page = client.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert client.get("/static/main.js").headers["content-security-policy"] == policy
        assert client.get("/static/main.js").headers["x-content-type-options"] == "nosniff"
        for path in ("/static/nothing.js", "/static/..%2fsite.py", "/static/site.py"):
            assert client.get(path).status_code == 404
        tag = page.headers["etag"]
        assert client.get("/", headers={"If-None-Match": tag}).status_code == 304


def test_only_names_of_this_machine_are_answered(rig: Served) -> None:
    """Else a page elsewhere could read us by letting its own name point here."""
    hosts = {
        **dict.fromkeys(("localhost:8080", "127.0.0.1:1", "[::1]:80", "scheduler", ""), 200),
        **dict.fromkeys(("evil.example", "127.0.0.1.evil.example:80", "8.8.8.8", "[::2]"), 421),
    }
    with httpx.Client(base_url=rig.url) as client:
        for host, status in hosts.items():
            assert is_own(host) is (status == 200)
            assert client.get("/v1/jobs", headers={"Host": host}).status_code == status


def test_no_web_page_changes_anything_through_a_forwarded_socket(rig: Served) -> None:
    """Root may set the mode on the socket; a browser that root forwards it to may not."""
    transport = httpx.HTTPTransport(uds=str(rig.run_dir / "api.sock"))
    with httpx.Client(transport=transport, base_url="http://localhost") as client:
        told: dict[str, Any] = {"json": {"mode": "observe"}}
        assert client.post("/v1/mode", **told).status_code == 200
        for name in ("Origin", "Sec-Fetch-Site"):
            assert client.post("/v1/mode", headers={name: "x"}, **told).status_code == 403


def test_what_views_ask_for(rig: Served) -> None:
    """A timeline since some time, a job's curve, the estimator's models."""
    with httpx.Client(base_url=rig.url) as client:
        lanes = client.get("/v1/timeline").json()["lanes"]
        assert [(one["node"], one["gpu"]) for one in lanes][:2] == [("gpu001", 0), ("gpu001", 1)]
        assert client.get("/v1/timeline?after=soon").status_code == 400
        told = client.get("/v1/curve/1").json()
        assert told["columns"][:3] == ["at_s", "minibatch_ms", "alone_ms"]
        assert len(told["points"]) == 1
        assert client.get("/v1/curve/999").json()["points"] == []
        told = client.get("/v1/estimator").json()
        assert (told["models"], told["outcomes"], told["bad"]) == ([], [], {})


def test_why_tells_what_the_node_lets_a_job_have(rig: Served) -> None:
    """Its share, its cap, its speed alone, and the node's own sentence."""
    told = httpx.get(f"{rig.url}/v1/why/3").json()["why"]["training"]
    assert (told["share_pct"], told["cap_mib"]) == (8.0, 20_480)
    assert told["node_sentence"] == "The owner does not get slower: a little more."
    later = (Training(ref="3", node_reason="of_tomorrow"),)
    rig.tell(NodeReported(at_s=time.time(), node="gpu001", jobs=later))
    told = httpx.get(f"{rig.url}/v1/why/3").json()["why"]["training"]
    assert (told["node_reason"], told["node_sentence"]) == ("of_tomorrow", None)


def test_only_what_changed_is_made_anew() -> None:
    """A look without news finds nothing; a placeholder of ours is never shown."""
    one, table = machine(node("n1"), rules=RULES), Table()
    guest = replace(sight("7", request(1, role=Role.GUEST), Standing.RUNNING), number=7)
    one.handle(looked(1.0, guest, holds("8", None, 0)))
    changes = asyncio.run(table.refresh(one.state))
    assert (len(changes.jobs), len(changes.nodes)) == (2, 1)
    assert not asyncio.run(table.refresh(one.state))
    one.handle(NodeReported(at_s=2.0, node="n1", gpus=(GpuUse(index=0, guest_jobs=("7",)),)))
    changes = asyncio.run(table.refresh(one.state))
    assert (len(changes.jobs), len(changes.nodes)) == (0, 1)
    row = json.loads(table.nodes["n1"])
    assert row[-1] == [[0, 0, 0, 0, "8", ["7"], True]]
    one.handle(looked(3.0, replace(holds("9", None, 1), holds_for="7"), gone=("8",)))
    changes = asyncio.run(table.refresh(one.state))
    assert changes.jobs_gone == ["8"]
    assert set(table.jobs) == {"7"}


def test_half_a_character_in_a_name_costs_nobody_else(rig: Served) -> None:
    """A lone surrogate cannot be written as UTF-8: it becomes a question mark."""
    rig.tell(looked(time.time(), replace(sight("9", request(9)), name="a\ud800b")))
    jobs = httpx.get(f"{rig.url}/v1/jobs").json()["jobs"]
    assert [job["name"] for job in jobs if job["job"] == "9"] == ["a?b"]
    assert len(jobs) == 7
    assert httpx.get(f"{rig.url}/v1/why/9").json()["why"]["name"] == "a?b"
    with httpx.stream("GET", f"{rig.url}/v1/live", timeout=30) as answer:
        assert "a?b" in [row[1] for row in heard(answer.iter_lines())[1]["jobs"]]


def test_a_browser_that_reads_too_slowly_is_told_everything_again(tmp_path: Path) -> None:
    """It costs a bounded queue, and nobody else waits for it."""

    async def played() -> None:
        entries: list[Entry] = []
        engine = Engine(machine(node("n1"), rules=RULES), entries.append, tmp_path / "disable")
        feed = Feed(engine, Past(), dict)
        running = asyncio.create_task(feed.run())
        slow = feed.stream()
        assert (await anext(slow)).startswith(b"retry")
        assert (await anext(slow)).startswith(b"event: snapshot")
        for number in range(1, 25):
            engine.take(looked(float(number), sight(str(number), request(number))))
            await feed._publish()  # noqa: SLF001 (as its own loop does, without its pauses)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        messages = [await anext(slow)]
        while b'["24",' not in messages[-1]:
            messages.append(await anext(slow))
        assert feed.resyncs == 1
        assert messages[0].startswith(b"event: snapshot")
        assert len(messages) <= 16
        feed.close()
        assert [one async for one in slow] == []

    asyncio.run(asyncio.wait_for(played(), 60))


def test_an_end_that_comes_with_an_event_is_not_lost(tmp_path: Path) -> None:
    """The daemon would wait for it for ever."""

    async def played() -> None:
        engine = Engine(machine(node("n1")), lambda _entry: None, tmp_path / "disable")
        feed = Feed(engine, Past(), dict)
        running = asyncio.create_task(feed.run())
        await asyncio.sleep(0)
        feed.wake()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(running), 30)

    asyncio.run(played())


def test_who_looks_on_never_costs_a_decision(rig: Served) -> None:
    """A bug in the dashboard is counted, and the machine goes on."""

    def fails(_event: object) -> None:
        raise ZeroDivisionError

    rig.engine.watch = fails
    rig.tell(looked(time.time(), sight("9", request(9))))
    assert "9" in rig.engine.machine.state.jobs
    assert rig.engine.counters.watch_errors == 1
