# SPDX-License-Identifier: Apache-2.0
"""The submit socket: slurmctld asks in one line of JSON and waits, so the answer is from memory.

Whatever goes wrong here, the user's submission goes on: no answer is a good answer for Lua.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import Strength
from slipstream.core.commands import Admit, Advise
from slipstream.core.events import JobSubmitted
from slipstream.scheduler import peers
from slipstream.scheduler.messages import MOST_LINE_BYTES, MessageError, answer, read_submission

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from slipstream.scheduler.engine import Engine

_LOG = logging.getLogger(__name__)
_FIRST_HOLD_S: Final = 10
"""Until soft hold has seen a job that must not start anywhere; afterwards it is Slurm's again."""
_PATIENCE_S: Final = 1.0
"""Lua gives up after 20 ms; who is slower than this is not Lua."""


_BAD_MANNERS: Final = (
    OSError,
    TimeoutError,
    ValueError,
    asyncio.IncompleteReadError,
    asyncio.LimitOverrunError,
)


class SubmitSocket:
    """Serves submissions.

    Args:
        engine: decides.
        trusted: uids that may ask.
        nudge: called after each: Slurm will soon have a new job.
        holds: whether jobs are kept to their advice by soft hold.
    """

    def __init__(
        self,
        engine: Engine,
        trusted: frozenset[int],
        nudge: Callable[[], None],
        holds: Callable[[], bool],
    ) -> None:
        self._engine = engine
        self._trusted = trusted
        self._nudge = nudge
        self._holds = holds

    async def serve(self, listener: socket.socket) -> asyncio.Server:
        """Serve until the server is closed."""
        return await asyncio.start_unix_server(self._met, sock=listener, limit=MOST_LINE_BYTES)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answered(reader, writer)
        except _BAD_MANNERS as error:
            self._engine.counters.bad_submissions += 1
            _LOG.warning("a submission was not answered: %r", error)
        finally:
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = peers.uid_of(writer.get_extra_info("socket"))
        if uid not in self._trusted:
            self._engine.counters.strangers += 1
            _LOG.warning("uid %d tried to submit a request; only %s may", uid, set(self._trusted))
            return
        async with asyncio.timeout(_PATIENCE_S):
            line = await reader.readuntil(b"\n")
        began_s = time.perf_counter()
        writer.write(self._said(line))
        self._count(time.perf_counter() - began_s)
        async with asyncio.timeout(_PATIENCE_S):
            await writer.drain()
        self._nudge()

    def _said(self, line: bytes) -> bytes:
        try:
            request = read_submission(line)
        except MessageError as error:
            self._engine.counters.bad_submissions += 1
            _LOG.warning("a submission was not understood: %s", error)
            return answer()
        commands = self._engine.submit(JobSubmitted(time.time(), request))
        message = next((one.message for one in commands if isinstance(one, Admit)), "")
        bound = any(
            isinstance(one, Advise) and one.advice.strength is Strength.REQUIRE for one in commands
        )
        return answer(message, _FIRST_HOLD_S if bound and self._holds() else 0)

    def _count(self, took_s: float) -> None:
        counters = self._engine.counters
        counters.answer_s_sum += took_s
        counters.answer_s_max = max(counters.answer_s_max, took_s)
