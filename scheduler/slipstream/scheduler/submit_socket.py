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
from slipstream.scheduler.messages import MOST_LINE_BYTES, MessageError, answer, read_clues, sized
from slipstream.scheduler.repeats import LATER_S, Repeats

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from slipstream.scheduler.engine import Engine

_LOG = logging.getLogger(__name__)
_FIRST_HOLD_S: Final = 10
"""Until soft hold has seen a job that must not start anywhere; afterwards it is Slurm's again."""
_BURST_ENDS_S: Final = 0.05
"""Nobody has asked for so long: what came together can be read from the queue together."""
_REST_S: Final = 0.5
_PATIENCE_S: Final = 1.0
"""Lua gives up after 20 ms; who is slower than this is not Lua."""


class SubmitSocket:
    """Serves submissions, on bare sockets: transports would cost more than all that is done here.

    Args:
        engine: decides.
        trusted: uids that may ask.
        holds: whether jobs are kept to their advice by soft hold.
        in_queue: called when those who came together, and wait for soft hold, are in the queue.
    """

    def __init__(
        self,
        engine: Engine,
        trusted: frozenset[int],
        holds: Callable[[], bool],
        in_queue: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._trusted = trusted
        self._holds = holds
        self._in_queue = in_queue
        self._burst: asyncio.TimerHandle | None = None
        self._repeats = Repeats(
            engine, lambda settle: asyncio.get_running_loop().call_later(LATER_S, settle)
        )
        self._askers: set[_Asker] = set()
        self._rests: asyncio.TimerHandle | None = None

    def serve(self, listener: socket.socket) -> Callable[[], None]:
        """Serve from the running loop; returns what ends that."""
        loop = asyncio.get_running_loop()
        loop.add_reader(listener, self._met, listener)

        def close() -> None:
            if self._rests is not None:
                self._rests.cancel()
            loop.remove_reader(listener)
            listener.close()
            if self._burst is not None:
                self._burst.cancel()
            for asker in tuple(self._askers):
                asker.close()
            self._repeats.settle()

        return close

    def _met(self, listener: socket.socket) -> None:
        """All who wait at the door."""
        try:
            while True:
                peer, _ = listener.accept()
                self._let_in(peer)
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError as error:  # no descriptor is left: who waits would call us without end
            _LOG.error("submissions are not heard for %g s: %s", _REST_S, error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            self._rests = loop.call_later(_REST_S, loop.add_reader, listener, self._met, listener)

    def _let_in(self, peer: socket.socket) -> None:
        uid = peers.uid_of(peer)
        if uid not in self._trusted:
            self._engine.counters.strangers += 1
            _LOG.warning("uid %d tried to submit a request; only %s may", uid, set(self._trusted))
            peer.close()
            return
        peer.setblocking(False)
        asker = _Asker(
            *(peer, self._engine, self._holds, self._askers.discard, self._repeats),
            waits=self._came,
        )
        self._askers.add(asker)
        asker.hear()  # Lua has connected, and perhaps written

    def _came(self) -> None:
        """One more of a burst that waits for soft hold, or the first."""
        if self._burst is not None:
            self._burst.cancel()
        self._burst = asyncio.get_running_loop().call_later(_BURST_ENDS_S, self._in_queue)


class _Asker:
    """One connection: a line, an answer, and the next when there is one."""

    def __init__(
        self,
        peer: socket.socket,
        engine: Engine,
        holds: Callable[[], bool],
        gone: Callable[[_Asker], None],
        repeats: Repeats,
        *,
        waits: Callable[[], None],
    ) -> None:
        self._peer = peer
        self._engine = engine
        self._holds = holds
        self._gone = gone
        self._repeats = repeats
        self._waits = waits
        self._heard = b""
        self._answered = False
        self._loop = asyncio.get_running_loop()
        self._deadline: asyncio.TimerHandle | None = None
        self._loop.add_reader(peer, self.hear)
        self._expect()

    def hear(self) -> None:
        """Answer if a line is there."""
        try:
            data = self._peer.recv(MOST_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._leave(str(error))
            return
        self._heard += data
        line, end, rest = self._heard.partition(b"\n")
        if end and not rest:
            self._heard = b""
            self._answer(line)
        elif not data and self._answered and not self._heard:
            self.close()  # it has no more questions
        elif end or not data or len(self._heard) > MOST_LINE_BYTES:
            self._leave("not one line, or one without end")
        else:
            self._expect()

    def close(self) -> None:
        """No more of it."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._loop.remove_reader(self._peer)
        self._peer.close()
        self._gone(self)

    def _expect(self) -> None:
        """The rest of a line is due soon; the next one when there is a next submission."""
        if self._deadline is None:
            self._deadline = self._loop.call_later(_PATIENCE_S, self._leave, "it was silent")

    def _answer(self, line: bytes) -> None:
        began_s = time.perf_counter()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        try:
            self._peer.send(self._said(line))  # an answer fits into any socket's buffer
        except OSError as error:
            self._leave(str(error))
            return
        self._answered = True
        took_s = time.perf_counter() - began_s
        counters = self._engine.counters
        counters.answer_s_sum += took_s
        counters.answer_s_max = max(counters.answer_s_max, took_s)

    def _said(self, line: bytes) -> bytes:
        if again := self._repeats.answer(line):
            return again
        self._repeats.settle()
        try:
            clues = read_clues(line)
        except MessageError as error:
            self._engine.counters.bad_submissions += 1
            _LOG.warning("a submission was not understood: %s", error)
            return answer()
        request = sized(clues.request, self._engine.estimator.of(clues))
        commands = self._engine.submit(JobSubmitted(time.time(), request))
        self._engine.asked(clues)
        message = next((one.message for one in commands if isinstance(one, Admit)), "")
        advice = [one.advice for one in commands if isinstance(one, Advise)]
        for one in advice:
            self._engine.ahead(one)
        bound = any(one.strength is Strength.REQUIRE for one in advice)
        given = request.gpus.count if request.gpus != clues.request.gpus else 0
        held = bound and self._holds()
        if held:
            self._waits()
        said = answer(message, _FIRST_HOLD_S if held else 0, given)
        self._repeats.keep(line, clues, request, advice, said)
        return said

    def _leave(self, why: str) -> None:
        """Without an answer: it may be Lua, and we too slow."""
        self._engine.counters.bad_submissions += 1
        _LOG.warning("a submission was not answered: %s", why)
        self.close()
