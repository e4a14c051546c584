# SPDX-License-Identifier: Apache-2.0
"""The event socket: coordinators tell of their nodes, a line of JSON each.

One that says that it listens keeps its connection, and is told there what to do (`orders`).

Who prefers HTTP posts the same lines to /v1/events of the API.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from slipstream.scheduler import peers
from slipstream.scheduler.messages import Listening, MessageError, read_told

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from slipstream.scheduler.engine import Counters
    from slipstream.scheduler.messages import Told
    from slipstream.scheduler.orders import Orders

_LOG = logging.getLogger(__name__)
MOST_LINE_BYTES: Final = 1 << 20


class EventSocket:
    """Takes reports.

    Args:
        counters: where bad ones are counted.
        trusted: uids that may report.
        told: called with each report.
        orders: where those are kept that listen.
    """

    def __init__(
        self,
        counters: Counters,
        trusted: frozenset[int],
        told: Callable[[Told], None],
        orders: Orders,
    ) -> None:
        self._orders = orders
        self._counters = counters
        self._trusted = trusted
        self._told = told

    async def serve(self, listener: socket.socket) -> asyncio.Server:
        """Serve until the server is closed."""
        return await asyncio.start_unix_server(self._met, sock=listener, limit=MOST_LINE_BYTES)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            uid = peers.uid_of(writer.get_extra_info("socket"))
            if uid in self._trusted:
                await self._listen(reader, writer)
            else:
                self._counters.strangers += 1
                _LOG.warning("uid %d tried to report about a node", uid)
        except (OSError, ValueError) as error:  # a line without end among them
            self._counters.bad_reports += 1
            _LOG.warning("a report was not taken: %r", error)
        finally:
            writer.close()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the coordinator closes; one bad line does not spoil the next."""
        listening: set[str] = set()
        try:
            while line := await reader.readline():
                try:
                    told = read_told(line)
                except MessageError as error:
                    self._counters.bad_reports += 1
                    _LOG.warning("a report was not understood: %s", error)
                    continue
                if isinstance(told, Listening):
                    listening.add(told.node)
                    self._orders.listens(told.node, asyncio.get_running_loop(), writer)
                else:
                    self._told(told)
        finally:
            for node in listening:
                self._orders.left(node, writer)
