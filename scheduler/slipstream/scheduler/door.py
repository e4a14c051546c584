# SPDX-License-Identifier: Apache-2.0
"""The door for other hosts: a TCP port at which coordinators and users prove by MUNGE who they are.

Whoever has not done so yet costs little: few at a time, a few of each host, for a few seconds.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from slipstream.slurm_plugin import link
from slipstream.slurm_plugin.link import LinkError, Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from slipstream.scheduler.engine import Counters
    from slipstream.slurm_plugin.link import Address, Channel, Party, Peer

_LOG = logging.getLogger(__name__)
MOST_LINKS: Final = 16_384
MOST_WAITING: Final = 256
MOST_WAITING_EACH: Final = 16
"""Of one address; several nodes may be behind it."""
PROVED_WITHIN_S: Final = 5.0


class Door:
    """Lets coordinators of other hosts in.

    Args:
        counters: where those who are not are counted.
        us: who we are, and whom we believe.
    """

    def __init__(self, counters: Counters, us: Party) -> None:
        self._counters = counters
        self._us = us
        self._waiting: Counter[str] = Counter()
        self._links: dict[str, Channel] = {}

    @asynccontextmanager
    async def admitted(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> AsyncIterator[tuple[Channel, Peer]]:
        """A channel and whose it is, a coordinator's or a user's; raises `LinkError` for others."""
        link.tune(writer)
        channel, peer = await self._proved(reader, writer)
        node = peer.node
        if not node:
            yield channel, peer
            return
        if (before := self._links.pop(node, None)) is not None:
            before.close()  # it has lost that one, or it would not be here
        self._links[node] = channel
        self._counters.links = len(self._links)
        _LOG.info("the coordinator of %s is linked", node)
        try:
            yield channel, peer
        finally:
            if self._links.get(node) is channel:
                del self._links[node]
            self._counters.links = len(self._links)

    async def _proved(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Channel, Peer]:
        host = str((writer.get_extra_info("peername") or ("",))[0])
        if (
            len(self._links) >= MOST_LINKS
            or self._waiting.total() >= MOST_WAITING
            or self._waiting[host] >= MOST_WAITING_EACH
        ):
            raise LinkError(Refusal.CROWDED, f"no more connections of {host} for now")
        self._waiting[host] += 1
        try:
            async with asyncio.timeout(PROVED_WITHIN_S):
                return await link.admit(reader, writer, self._us)
        except TimeoutError as error:
            raise LinkError(Refusal.SLOW, f"no credential of {host} in time") from error
        finally:
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host]

    def refused(self, error: LinkError, writer: asyncio.StreamWriter) -> None:
        """Count and tell."""
        self._counters.refused_links[error.reason] += 1
        _LOG.warning("%s was not believed: %s", writer.get_extra_info("peername"), error)


def listen(where: Address) -> socket.socket:
    """The port; taken over at once from a scheduler that was killed. `[::]` is IPv4 as well."""
    listener = socket.create_server(
        (where.host, where.port),
        family=socket.AF_INET6 if ":" in where.host else socket.AF_INET,
        backlog=1024,
        dualstack_ipv6=where.host == "::" and socket.has_dualstack_ipv6(),
    )
    listener.setblocking(False)
    return listener
