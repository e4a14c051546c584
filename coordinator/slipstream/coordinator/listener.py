# SPDX-License-Identifier: Apache-2.0
"""Listening to the scheduler: a connection of ours that it may answer on, kept while both live."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from slipstream.coordinator.saver import Saver
    from slipstream.coordinator.settings import Settings

_log = logging.getLogger(__name__)
_TRY_EVERY_S: Final = 1.0
_SAVE: Final = (1, "save")


class Listener:
    """Takes what the scheduler asks for; a scheduler that is away asks for nothing."""

    def __init__(self, saver: Saver, settings: Settings) -> None:
        self._saver = saver
        self._settings = settings

    async def listen(self) -> None:
        """Until it is cancelled."""
        while True:
            with contextlib.suppress(OSError, ValueError):  # a line without end among them
                await self._listen_once()
            await asyncio.sleep(_TRY_EVERY_S)

    async def _listen_once(self) -> None:
        reader, writer = await asyncio.open_unix_connection(self._settings.events_socket)
        try:
            hello = {"v": 1, "node": self._settings.node, "at_s": time.time(), "listens": True}
            writer.write(json.dumps(hello).encode() + b"\n")
            await writer.drain()
            while line := await reader.readline():
                self._take(line)
        finally:
            writer.close()

    def _take(self, line: bytes) -> None:
        try:
            order: Any = json.loads(line)
            kind = (order["v"], order["order"])
            job_id, number = int(order["job_id"]), int(order["number"])
        except (KeyError, TypeError, ValueError) as error:
            _log.warning("an order was not understood: %r in %.200r", error, line)
            return
        if kind != _SAVE:
            _log.warning("an order of a kind that is not known: %s; known is %s", kind, _SAVE)
            return
        _log.info("job %d is to be saved", job_id)
        self._saver.save(job_id, number)
