# SPDX-License-Identifier: Apache-2.0
"""The daemon's parts, served for real on sockets in a folder, without Slurm behind them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from core_world import RULES, machine
from slipstream.scheduler import peers
from slipstream.scheduler.api import Api
from slipstream.scheduler.dashboard.site import Dashboard
from slipstream.scheduler.engine import Engine
from slipstream.scheduler.event_socket import EventSocket
from slipstream.scheduler.messages import Discarded, FilesMapped, TurnsCalled
from slipstream.scheduler.orders import Orders
from slipstream.scheduler.submit_socket import SubmitSocket
from slipstream.scheduler.web import web_server

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path

    from slipstream.core.advice import Advice
    from slipstream.core.events import Event
    from slipstream.core.sights import NodeSight
    from slipstream.scheduler.journal import Entry
    from slipstream.scheduler.messages import Told


@dataclass
class Served:
    """What a test sees of it."""

    run_dir: Path
    engine: Engine
    loop: asyncio.AbstractEventLoop
    entries: list[Entry] = field(default_factory=list)
    ahead: list[Advice] = field(default_factory=list)
    """What was said of jobs before they were answered."""
    holds: bool = False
    bursts: int = 0
    """How often those who came together were said to be in the queue."""
    orders: Orders = field(default_factory=Orders)
    url: str = ""
    """Of the dashboard, if it was asked for."""

    def in_queue(self) -> None:
        """A burst has ended."""
        self.bursts += 1

    def tell(self, *events: Event) -> None:
        """Events, in the loop's thread as always."""
        self.do(self._tell(events))

    async def _tell(self, events: tuple[Event, ...]) -> None:
        self.engine.take_all(events)

    def do(self, work: Coroutine[Any, Any, None]) -> None:
        """Something in the loop's thread."""
        asyncio.run_coroutine_threadsafe(work, self.loop).result(10)

    def ask(self, line: bytes, name: str = "submit.sock") -> bytes:
        """All that a socket answers to a line; nothing if it hangs up on us."""
        with contextlib.suppress(ConnectionError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(self.run_dir / name))
            client.sendall(line)
            client.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: client.recv(65_536), b""))
        return b""


@contextlib.contextmanager
def served(
    folder: Path,
    *nodes: NodeSight,
    trusted: frozenset[int] | None = None,
    web: bool = False,
) -> Iterator[Served]:
    """The three sockets in `folder`, around a machine that knows these nodes.

    With `web` also a port of loopback, as `api_port` has it.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    entries: list[Entry] = []
    engine = Engine(machine(*nodes, rules=RULES), entries.append, folder / "disable")
    rig = Served(folder, engine, loop, entries)
    engine.ahead = rig.ahead.append
    uids = frozenset({0, os.geteuid()}) if trusted is None else trusted
    listener = socket.create_server(("127.0.0.1", 0)) if web else None
    if listener:
        rig.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    stop = asyncio.run_coroutine_threadsafe(_serve(rig, uids, listener), loop).result(10)
    try:
        yield rig
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _serve(rig: Served, uids: frozenset[int], port: socket.socket | None) -> Any:  # noqa: ANN401 (what stops it)
    def told(report: Told) -> None:
        if isinstance(report, TurnsCalled):
            rig.orders.call(report)
        elif isinstance(report, FilesMapped):
            rig.orders.mapped(report)
        elif not isinstance(report, Discarded):
            rig.engine.take(report)

    submit = SubmitSocket(rig.engine, uids, lambda: rig.holds, rig.in_queue)
    reports = EventSocket(rig.engine.counters, uids, told, rig.orders)

    def carrier() -> str:
        return "hold" if rig.holds else "board"

    dashboard = Dashboard(rig.engine, carrier)
    rig.engine.watch = dashboard.watch
    app = Api(rig.engine, lambda: 0, uids, told, carrier, dashboard=dashboard).application()
    listeners = [peers.listen(rig.run_dir / "api.sock", 0o666), *([port] if port else [])]
    webs = [web_server(app) for _ in listeners]
    tasks = [
        asyncio.create_task(web.serve([one])) for web, one in zip(webs, listeners, strict=True)
    ]
    feed = asyncio.create_task(dashboard.feed.run())
    end_submissions = submit.serve(peers.listen(rig.run_dir / "submit.sock", 0o600))
    server = await reports.serve(peers.listen(rig.run_dir / "events.sock", 0o600))
    while not all(web.started for web in webs):  # noqa: ASYNC110 (uvicorn has no event for it)
        await asyncio.sleep(0.01)

    async def stop() -> None:
        end_submissions()
        server.close()
        await server.wait_closed()
        dashboard.feed.close()
        feed.cancel()
        for web in webs:
            web.should_exit = True
        await asyncio.gather(*tasks)
        await asyncio.gather(feed, return_exceptions=True)
        for one in listeners:
            one.close()

    return stop


def submission(token: str, **changes: object) -> bytes:
    """What job_submit sends for a guest of one GPU."""
    told = {
        "v": 1,
        "token": token,
        "uid": 1000,
        "class": "opportunistic",
        "role": "guest",
        "gpus": {"per": "node", "count": 1},
        "nodes": [1, 1],
        "tasks": 1,
        "cpus_per_task": 1,
        "memory_mib": None,
        "partition": "batch",
        "name": "train",
        "weight": 1,
    }
    return json.dumps({**told, **changes}).encode() + b"\n"
