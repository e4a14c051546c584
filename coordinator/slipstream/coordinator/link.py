# SPDX-License-Identifier: Apache-2.0
"""This node's link to the scheduler: one connection, kept while both live, for both directions.

A Unix socket where both are on one host, TCP with MUNGE where not; the lines are the same. A
scheduler that is away misses events and nothing else: when it is back it is told all anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from typing import TYPE_CHECKING, Any, Final

from slipstream.slurm_plugin import link
from slipstream.slurm_plugin.link import MOST_LINE_BYTES, Lines, LinkError
from slipstream.slurm_plugin.munge import MOST_CREDENTIAL_BYTES, Munge

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slipstream.coordinator.settings import Settings
    from slipstream.slurm_plugin.link import Channel

_log = logging.getLogger(__name__)
VERSION: Final = 1
_SEND_WITHIN_S: Final = 1.0
_JOIN_WITHIN_S: Final = 5.0
_TRY_EVERY_S: Final = 0.25
"""On one host."""
_TRY_HOSTS_EVERY_S: Final = 1.0
"""A cluster's nodes all look for a scheduler that was restarted: each after its own while."""


class Link:
    """To the scheduler, as the settings say where that is."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._channel: Channel | None = None
        self._told_why = ""
        self.sent = 0
        self.failed = 0
        self.joined = 0
        """How often there was a scheduler to speak to: whoever reports begins anew with each."""

    @property
    def is_up(self) -> bool:
        """Whether somebody would hear us."""
        return self._channel is not None

    async def send(self, told: Mapping[str, Any]) -> bool:
        """One line; False if nobody took it.

        A scheduler that takes nothing for a second is left, and told all anew when it does: whoever
        sends has a node to look after, and would wait as long for each line.
        """
        channel = self._channel
        try:
            if channel is None:
                raise ConnectionError
            async with asyncio.timeout(_SEND_WITHIN_S):
                channel.write(json.dumps(told, separators=(",", ":")).encode())
                await channel.drain()
        except (OSError, TimeoutError) as error:
            self.failed += 1
            if channel and channel is self._channel and isinstance(error, TimeoutError):
                self._channel = None
                channel.drop()
            return False
        self.sent += 1
        return True

    async def keep(self, take: Callable[[bytes], None]) -> None:
        """Until it is cancelled: join the scheduler, hear what it asks for, join it again."""
        while True:
            try:
                await self._once(take)
                self._tell("the scheduler has hung up")
            except (LinkError, OSError, TimeoutError, ValueError) as error:
                self._tell(str(error) or repr(error))
            except Exception:  # noqa: BLE001 (a bug in one order must not end the link for ever)
                _log.exception("the link to the scheduler has failed")
            every_s = _TRY_HOSTS_EVERY_S * random.uniform(0.5, 1.5)  # noqa: S311 (no secret)
            await asyncio.sleep(every_s if self._settings.scheduler else _TRY_EVERY_S)

    async def _once(self, take: Callable[[bytes], None]) -> None:
        async with asyncio.timeout(_JOIN_WITHIN_S):
            channel = await self._joined()
        try:
            hello = {"v": VERSION, "node": self._settings.node, "at_s": time.time()}
            channel.write(json.dumps({**hello, "listens": True}).encode())
            await channel.drain()
            self._channel = channel
            self.joined += 1
            self._told_why = ""
            while (line := await channel.read()) is not None:
                take(line)
        finally:
            self._channel = None
            channel.close()

    async def _joined(self) -> Channel:
        settings = self._settings
        if settings.scheduler is None:
            local = await asyncio.open_unix_connection(
                settings.events_socket, limit=MOST_LINE_BYTES
            )
            return Lines(*local)
        where = settings.scheduler
        reader, writer = await asyncio.open_connection(
            where.host, where.port, limit=MOST_CREDENTIAL_BYTES
        )
        try:
            link.tune(writer)
            us = link.Party(Munge(settings.munge_socket), settings.cluster, settings.trusted)
            channel = await link.join(reader, writer, us, settings.node)
        except BaseException:
            with contextlib.suppress(OSError):
                writer.close()
            raise
        _log.info("linked to the scheduler at %s", where)
        return channel

    def _tell(self, why: str) -> None:
        """Once for each reason: it is tried again and again."""
        if why != self._told_why and self._settings.scheduler:
            _log.warning("no link to the scheduler at %s: %s", self._settings.scheduler, why)
        self._told_why = why
