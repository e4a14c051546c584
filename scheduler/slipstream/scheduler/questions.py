# SPDX-License-Identifier: Apache-2.0
"""What users of other hosts ask over the link: the API's own answers, to be read and nothing else.

Who asks was proved by MUNGE before a question is read. One question, one answer, in parts that fit
the link.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from slipstream.scheduler.peers import BY_LINK
from slipstream.slurm_plugin.link import LinkError, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp, Message

    from slipstream.slurm_plugin.link import Channel

MOST_AT_ONCE: Final = 64
MOST_OF_A_USER: Final = 8
ASKED_WITHIN_S: Final = 10.0
ANSWERED_WITHIN_S: Final = 60.0
PART_BYTES: Final = 512 * 1024
_ANSWERED: Final = re.compile(
    r"/v1/(?:jobs|gpus|mode|hours|checkpoints|(?:why|curve)/[^/?]{1,300})(?:\?[\w=&%.+-]{0,300})?"
    r"|/v1/estimate\?features=[\w%.+*-]{1,60000}"
)


class Questions:
    """Answers them.

    Args:
        app: the API.
        trusted: uids that are answered in any case.
        private: whether Slurm keeps users' jobs from each other (PrivateData): then only those.
    """

    def __init__(self, app: ASGIApp, trusted: frozenset[int], *, private: bool = False) -> None:
        self._app = app
        self._trusted = trusted
        self._private = private
        self._asking: Counter[int] = Counter()

    async def serve(self, channel: Channel, uid: int) -> None:
        """Answer one question of a user's."""
        with self._counted(uid):
            async with asyncio.timeout(ASKED_WITHIN_S):
                line = await channel.read()
            if line is None:
                return
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                status, body = await self._answer(line, uid)
                head = {"v": 1, "status": status, "bytes": len(body)}
                channel.write(json.dumps(head).encode())
                for begin in range(0, len(body), PART_BYTES):
                    channel.write(body[begin : begin + PART_BYTES])
                    await channel.drain()

    @contextmanager
    def _counted(self, uid: int) -> Iterator[None]:
        if self._asking.total() >= MOST_AT_ONCE or self._asking[uid] >= MOST_OF_A_USER:
            raise LinkError(Refusal.CROWDED, f"no more questions of uid {uid} for now")
        self._asking[uid] += 1
        try:
            yield
        finally:
            self._asking[uid] -= 1
            if not self._asking[uid]:
                del self._asking[uid]

    async def _answer(self, line: bytes, uid: int) -> tuple[int, bytes]:
        target = _target(line)
        if self._private and uid not in self._trusted:
            return 403, _error("Slurm keeps jobs private here (PrivateData): ask on its host")
        if not _ANSWERED.fullmatch(target):
            return 404, _error(f"{target[:100]!r} is not answered over the link")
        return await self._got(target, uid)

    async def _got(self, target: str, uid: int) -> tuple[int, bytes]:
        """What the API answers to a GET, asked without a socket."""
        path, _, query = target.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [],
            "client": (BY_LINK, uid),
            "server": ("scheduler", None),
        }
        status, body = 500, bytearray()

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            body.extend(message.get("body", b""))

        await self._app(scope, receive, send)
        return status, bytes(body)


def _target(line: bytes) -> str:
    try:
        told: Any = json.loads(line)
        return str(told["get"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise LinkError(Refusal.GARBLED, f"no question: {line[:100]!r}") from error


def _error(sentence: str) -> bytes:
    return json.dumps({"v": 1, "error": sentence}).encode()
