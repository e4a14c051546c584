# SPDX-License-Identifier: Apache-2.0
"""What nodes are asked to do: a line of JSON each, on a connection that their coordinator keeps.

The coordinator comes to us, also for this: nothing listens on a node. One that is away is told
nothing, and whoever wanted something of it is refused.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

from slipstream.scheduler.sink import SinkError

if TYPE_CHECKING:
    import asyncio

    from slipstream.core.commands import Save


class Orders:
    """Who listens. Lines may be sent from any thread."""

    def __init__(self) -> None:
        self._listeners: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.StreamWriter]] = {}
        self._lock = threading.Lock()

    def listens(
        self, node: str, loop: asyncio.AbstractEventLoop, writer: asyncio.StreamWriter
    ) -> None:
        """A coordinator is there; one that was there before it has lost its connection."""
        with self._lock:
            self._listeners[node] = (loop, writer)

    def left(self, node: str, writer: asyncio.StreamWriter) -> None:
        """It is gone, unless another came meanwhile."""
        with self._lock:
            if self._listeners.get(node, (None, None))[1] is writer:
                del self._listeners[node]

    def save(self, order: Save) -> None:
        """Have a job saved; raises `SinkError` if its node does not listen."""
        line = {"v": 1, "order": "save", "job_id": order.job_id, "number": order.number}
        with self._lock:
            found = self._listeners.get(order.node)
        if found is None:
            raise SinkError(f"the coordinator of {order.node} does not listen")
        loop, writer = found
        raw = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        loop.call_soon_threadsafe(writer.write, raw)
