# SPDX-License-Identifier: Apache-2.0
"""The scheduler's door on a port of loopback, and raw peers that knock at it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette

from slipstream.scheduler.door import Door, listen
from slipstream.scheduler.engine import Counters
from slipstream.scheduler.event_socket import EventSocket
from slipstream.scheduler.orders import Orders
from slipstream.scheduler.questions import Questions
from slipstream.slurm_plugin import link
from slipstream.slurm_plugin.link import Address, Party

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from starlette.types import ASGIApp

    from slipstream.scheduler.messages import Told
    from slipstream.slurm_plugin.link import Channel
    from slipstream.slurm_plugin.munge import Munge

CLUSTER = "deep"


@dataclass
class Hall:
    """What a test sees of a scheduler that listens for other hosts."""

    where: Address
    us: Party
    counters: Counters = field(default_factory=Counters)
    orders: Orders = field(default_factory=Orders)
    told: list[Told] = field(default_factory=list)
    app: ASGIApp | None = None
    """What users who ask are answered with; nothing without one."""
    private: bool = False

    async def serve(self) -> asyncio.Server:
        """Open the door."""
        trusted = frozenset({os.geteuid()})
        reports = EventSocket(self.counters, trusted, self.told.append, self.orders)
        questions = Questions(self.app or Starlette(), self.us.trusted, private=self.private)
        door = Door(self.counters, self.us)
        return await reports.serve_hosts(listen(self.where), door, questions)

    @contextlib.asynccontextmanager
    async def knock(self) -> AsyncIterator[Knock]:
        """A raw connection."""
        reader, writer = await asyncio.open_connection(self.where.host, self.where.port)
        try:
            yield Knock(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def hall(munge: Munge, cluster: str = CLUSTER) -> Hall:
    """One on a free port, not open yet."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    return Hall(Address("127.0.0.1", port), Party(munge, cluster, frozenset({0})))


@dataclass
class Knock:
    """Whoever is at the door."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def greeted(self) -> dict[str, Any]:
        """What the scheduler says first."""
        told: dict[str, Any] = json.loads(await self.reader.readline())
        return told

    async def hung_up(self) -> bool:
        """Whether that was the end of it."""
        with contextlib.suppress(OSError):
            async with asyncio.timeout(30):
                while await self.reader.read(65_536):
                    pass
        return True

    async def joined(self, us: Party, node: str = "n1") -> Channel:
        """As a coordinator would."""
        return await link.join(self.reader, self.writer, us, node)


async def until(holds: Callable[[], object]) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 (nobody tells us)
            await asyncio.sleep(0.01)


def on_air(hall: Hall, work: Callable[[Hall], Awaitable[None]]) -> None:
    """Do something while the door is open."""

    async def both() -> None:
        server = await hall.serve()
        try:
            await work(hall)
        finally:
            server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait_for(asyncio.gather(*others, return_exceptions=True), 30)
            await asyncio.sleep(0.02)  # closed connections end in the next turns of the loop

    asyncio.run(both())


@contextlib.contextmanager
def open_hall(hall: Hall) -> Iterator[Hall]:
    """The door in a thread of its own, for tests that have no loop."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(hall.serve(), loop).result(10)
    try:
        yield hall
    finally:
        loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(_end_all(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await asyncio.sleep(0.02)  # closed connections end in the next turns of the loop
