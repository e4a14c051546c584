# SPDX-License-Identifier: Apache-2.0
"""The live feed: server-sent events, a snapshot first, then what changes, the same bytes for all.

A browser that reads too slowly is not waited for: what it missed is dropped, and it gets a snapshot
when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from slipstream.core.node.reasons import SENTENCE as NODE_SENTENCE
from slipstream.core.reasons import SENTENCE
from slipstream.scheduler import views
from slipstream.scheduler.dashboard.past import TOTALS
from slipstream.scheduler.dashboard.rows import DEVICE_COLUMNS, JOB_COLUMNS, NODE_COLUMNS
from slipstream.scheduler.dashboard.shadow import Sample, Scene
from slipstream.scheduler.dashboard.table import Table
from slipstream.scheduler.job_rows import ENCODER
from slipstream.scheduler.node_modes import node_modes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from slipstream.scheduler.dashboard.past import Past
    from slipstream.scheduler.dashboard.table import Changes
    from slipstream.scheduler.engine import Engine

_LOG = logging.getLogger(__name__)
MOST_CLIENTS: Final = 64
_MOST_WAITING: Final = 16
"""Messages a browser may be behind."""
_SHORTEST_S: Final = 0.1
_PART_OF_A_CORE: Final = 10
"""Between two looks, so many times as long as one took."""
_HEARTBEAT_S: Final = 5.0
_FIXED: Final = {
    "columns": {"jobs": JOB_COLUMNS, "nodes": NODE_COLUMNS, "devices": DEVICE_COLUMNS},
    "sentences": {str(reason): text for reason, text in SENTENCE.items()},
    "node_sentences": {str(reason): text for reason, text in NODE_SENTENCE.items()},
    "totals_columns": TOTALS,
}


class _Client:
    """One browser. Its queue holds bytes that all share."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue(_MOST_WAITING)
        self.behind = True
        """It has to be told everything."""
        self.began = False

    def put(self, message: bytes | None) -> None:
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            while not self.queue.empty():
                self.queue.get_nowait()
            self.behind = True
            if message is None:
                self.queue.put_nowait(None)


class Feed:
    """Everybody who looks.

    Args:
        engine: whose state is shown.
        past: whose totals go along.
        meta: what else everybody should know.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        engine: Engine,
        past: Past,
        meta: Callable[[], dict[str, Any]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.would = Sample()
        """What was last found of jobs in line for GPUs, had they been guests."""
        self.resyncs = 0
        """How often a browser was too slow and had to be told everything again."""
        self._engine = engine
        self._past = past
        self._meta = meta
        self._clock = clock
        self._table = Table()
        self._clients: set[_Client] = set()
        self._wake = asyncio.Event()
        self._told_meta = b""
        self._snapshot: bytes | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._clients)

    def wake(self) -> None:
        """Something may have changed. In the event loop's thread."""
        self._wake.set()

    async def run(self) -> None:
        """Until closed or cancelled."""
        while not self._closed:
            # Not wait_for: before Python 3.12 it loses a cancellation that comes with the event.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_HEARTBEAT_S):
                    await self._wake.wait()
            self._wake.clear()
            began_s = time.monotonic()
            try:
                await self._publish()
            except Exception:  # noqa: BLE001 (a bug in what is shown must not end the showing)
                _LOG.exception("the dashboard could not be brought up to date")
                self._engine.counters.watch_errors += 1
            took_s = time.monotonic() - began_s
            await asyncio.sleep(max(_SHORTEST_S, _PART_OF_A_CORE * took_s))

    def close(self) -> None:
        """End all streams, so that the daemon need not wait for them."""
        self._closed = True
        self._wake.set()
        for client in self._clients:
            client.put(None)

    async def stream(self) -> AsyncIterator[bytes]:
        """What one browser gets."""
        client = _Client()
        self._clients.add(client)
        self._wake.set()
        try:
            yield b"retry: 2000\n\n"
            while not self._closed and (message := await client.queue.get()) is not None:
                yield message
        finally:
            self._clients.discard(client)

    async def _publish(self) -> None:
        at_s, would = self._clock(), None
        if self._past.is_due(at_s):
            # In a thread: a submission must not wait for a look at ten thousand jobs.
            scene = Scene.of(self._engine.machine.state, at_s)
            would = self.would = await asyncio.to_thread(self._past.shadow.look, scene)
        state = self._engine.machine.state
        total = self._past.sample(state, at_s, would)
        if not self._clients:
            return
        changes = await self._table.refresh(state)
        meta = ENCODER.encode(self._meta())
        if changes or total or meta != self._told_meta:
            self._snapshot = None
        self._told_meta = meta
        delta = self._delta(changes, meta, total)
        for client in tuple(self._clients):
            if client.behind and client.queue.empty():
                self.resyncs += client.began
                client.began, client.behind = True, False
                client.put(self._everything(meta))
            elif not client.behind:
                client.put(delta)

    def _everything(self, meta: bytes) -> bytes:
        if self._snapshot is None:
            fixed = ENCODER.encode(
                {**_FIXED, "totals": list(self._past.totals), "at_s": self._clock()}
            )
            jobs, nodes = self._table.jobs.values(), self._table.nodes.values()
            self._snapshot = (
                b"event: snapshot\ndata: "
                + fixed[:-1]
                + b',"meta":'
                + meta
                + b',"jobs":['
                + b",".join(jobs)
                + b'],"nodes":['
                + b",".join(nodes)
                + b"]}\n\n"
            )
        return self._snapshot

    def _delta(self, changes: Changes, meta: bytes, total: list[float | None] | None) -> bytes:
        """Also when nothing has changed: it says that we live."""
        head = ENCODER.encode(
            {
                "at_s": self._clock(),
                "jobs_gone": changes.jobs_gone,
                "nodes_gone": changes.nodes_gone,
                "total": total,
            }
        )
        return (
            b"event: delta\ndata: "
            + head[:-1]
            + b',"meta":'
            + meta
            + b',"jobs":['
            + b",".join(changes.jobs)
            + b'],"nodes":['
            + b",".join(changes.nodes)
            + b"]}\n\n"
        )


def meta_of(engine: Engine, carrier: Callable[[], str]) -> dict[str, Any]:
    """What everybody should know before reading on."""
    state = engine.machine.state
    return {
        **views.mode(state),
        "carrier": carrier(),
        "moves": len(state.moves),
        "node_modes": node_modes(state, engine.now_s()),
    }
