# SPDX-License-Identifier: Apache-2.0
"""The socket at which tasks ask. Who asks is the kernel's word (SO_PEERCRED), not the line's."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from slipstream.coordinator import requests
from slipstream.coordinator.requests import MAX_LINE_BYTES, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_log = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 1024
MOST_OF_A_USER: Final = 128
"""So that nobody keeps others' tasks from being answered."""
_ASK_WITHIN_S: Final = 1.0
_CREDENTIALS = struct.Struct("3i")


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end."""

    pid: int
    uid: int


class NodeSocket:
    """Reads one line, answers, closes; at most so many at a time, and so many of each user."""

    def __init__(
        self, path: Path, answer: Callable[[requests.Request, Peer], requests.Answer]
    ) -> None:
        self._path = path
        self._answer = answer
        self._one_by_one = asyncio.Lock()
        self._open: Counter[int] = Counter()
        self.answered = 0
        self.refused = 0
        self.on_answer: Callable[[], None] = lambda: None
        """Called whenever a task was answered."""

    async def start(self) -> asyncio.Server:
        """Listen. Any user's task may ask; what it may have is decided by who it is."""
        self._path.unlink(missing_ok=True)
        server = await asyncio.start_unix_server(
            self._serve, self._path, limit=MAX_LINE_BYTES, backlog=MOST_CONNECTIONS
        )
        self._path.chmod(0o666)
        return server

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = peer_of(writer).uid
        self._open[uid] += 1
        try:
            if self._open[uid] > MOST_OF_A_USER or self._open.total() > MOST_CONNECTIONS:
                raise ConnectionRefusedError  # it helps itself
            async with asyncio.timeout(_ASK_WITHIN_S):
                line = await reader.readline()
            if not line:
                return  # somebody only looked whether anybody is here
            await self._respond(line, reader, writer)
        except (OSError, TimeoutError, ValueError):
            self.refused += 1  # gone, too slow, one too many, or a line without end
        finally:
            self._open[uid] -= 1
            self._open += Counter()  # without those who have none
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _respond(
        self, line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        peer = peer_of(writer)
        try:
            request = requests.parse(line.decode("ascii", errors="replace"))
            _check(request, peer)
            if request.waits:
                writer.write(requests.WAIT.encode())
            async with self._one_by_one:
                await asyncio.sleep(0)  # those that came meanwhile are told that they were heard
                _still_there(reader)
                text = requests.render(self._answer(request, peer))
        except (RequestError, OSError) as error:
            self.refused += 1
            _log.warning("request of pid %d (uid %d) refused: %s", peer.pid, peer.uid, error)
            text = f"error {error}\n"
        else:
            self.answered += 1
            self.on_answer()
        async with asyncio.timeout(_ASK_WITHIN_S):
            writer.write(text.encode())
            await writer.drain()


def _check(request: requests.Request, peer: Peer) -> None:
    if peer.uid not in (0, request.uid):
        raise RequestError(f"uid={request.uid} cannot be asked for by uid {peer.uid}")


def _still_there(reader: asyncio.StreamReader) -> None:
    """Who has hung up has helped itself."""
    if reader.at_eof():
        raise RequestError("it waits no more")


def peer_of(writer: asyncio.StreamWriter) -> Peer:
    """Who is at the other end, from the kernel."""
    raw = writer.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    pid, uid, _gid = _CREDENTIALS.unpack(raw)
    return Peer(pid, uid)
