# SPDX-License-Identifier: Apache-2.0
"""The event socket: coordinators tell of their nodes, a line of JSON each.

One that says that it listens keeps its connection, and is told there what to do (`orders`). Those
of other hosts come through the `door`; from there on all are the same.

Who prefers HTTP posts the same lines to /v1/events of the API.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from slipstream.scheduler import peers
from slipstream.scheduler.messages import Listening, MessageError, read_told
from slipstream.slurm_plugin.link import MOST_LINE_BYTES, Lines, LinkError, Refusal
from slipstream.slurm_plugin.munge import MOST_CREDENTIAL_BYTES

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from slipstream.scheduler.door import Door
    from slipstream.scheduler.engine import Counters
    from slipstream.scheduler.messages import Told
    from slipstream.scheduler.orders import Orders
    from slipstream.scheduler.questions import Questions
    from slipstream.slurm_plugin.link import Channel

_LOG = logging.getLogger(__name__)
_SILENT_FOR_S: Final = 60.0
"""A coordinator tells of itself every 5 s: one of another host that does not is gone."""


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
        """Serve this host until the server is closed."""
        return await asyncio.start_unix_server(self._met, sock=listener, limit=MOST_LINE_BYTES)

    async def serve_hosts(
        self, listener: socket.socket, door: Door, questions: Questions
    ) -> asyncio.Server:
        """Serve other hosts: coordinators, and users who ask."""

        async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with door.admitted(reader, writer) as (channel, peer):
                    if peer.node:
                        await self._listen(channel, peer.node)
                    else:
                        await questions.serve(channel, peer.uid)
            except LinkError as error:
                door.refused(error, writer)
            except (OSError, TimeoutError) as error:
                _LOG.warning("a link has ended: %r", error)
            finally:
                writer.close()

        return await asyncio.start_server(met, sock=listener, limit=MOST_CREDENTIAL_BYTES)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            uid = peers.uid_of(writer.get_extra_info("socket"))
            if uid in self._trusted:
                await self._listen(Lines(reader, writer))
            else:
                self._counters.strangers += 1
                _LOG.warning("uid %d tried to report about a node", uid)
        except (OSError, ValueError) as error:  # a line without end among them
            self._counters.bad_reports += 1
            _LOG.warning("a report was not taken: %r", error)
        finally:
            writer.close()

    async def _listen(self, channel: Channel, node: str | None = None) -> None:
        """Until the coordinator closes; one bad line does not spoil the next.

        Who comes from another host speaks of its own node only.
        """
        listening: set[str] = set()
        try:
            while (
                line := await _read(channel, None if node is None else _SILENT_FOR_S)
            ) is not None:
                try:
                    told = read_told(line)
                except MessageError as error:
                    self._counters.bad_reports += 1
                    _LOG.warning("a report was not understood: %s", error)
                    continue
                if node is not None and told.node != node:
                    raise LinkError(Refusal.OTHER_NODE, f"{node} speaks of {told.node}")
                if isinstance(told, Listening):
                    listening.add(told.node)
                    self._orders.listens(told.node, asyncio.get_running_loop(), channel)
                else:
                    self._told(told)
        finally:
            for one in listening:
                self._orders.left(one, channel)


async def _read(channel: Channel, within_s: float | None) -> bytes | None:
    async with asyncio.timeout(within_s):
        return await channel.read()
