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
    from slipstream.coordinator.host_files import HostFiles
    from slipstream.coordinator.saver import Saver
    from slipstream.coordinator.settings import Settings

_log = logging.getLogger(__name__)
_TRY_EVERY_S: Final = 1.0
_VERSION: Final = 1


class Listener:
    """Takes what the scheduler asks for; a scheduler that is away asks for nothing."""

    def __init__(self, saver: Saver, host_files: HostFiles, settings: Settings) -> None:
        self._saver = saver
        self._host_files = host_files
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
            self._carry_out(json.loads(line))
        except (KeyError, TypeError, ValueError) as error:
            _log.warning("an order was not understood: %r in %.200r", error, line)

    def _carry_out(self, order: Any) -> None:  # noqa: ANN401 (whatever came)
        if order["v"] != _VERSION:
            raise ValueError(f"version {order['v']!r}, known is {_VERSION}")
        job_id = int(order["job_id"])
        match order["order"]:
            case "save":
                number = int(order["number"])
                _log.info("job %d is to be saved", job_id)
                self._saver.save(job_id, number)
            case "hosts":
                hosts = [str(host) for host in order["hosts"]]
                self._host_files.planned(str(order["token"]), hosts, float(order["until_s"]))
            case "discard":
                _log.info("the durable copy of job %d is to be removed", job_id)
                self._saver.discard(job_id, str(order["token"]), int(order["uid"]))
            case other:
                raise ValueError(f"order {other!r}, known are save, hosts and discard")
