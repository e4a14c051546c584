# SPDX-License-Identifier: Apache-2.0
"""The same question again: in a burst most submissions ask for what was just refused to another.

Room only shrinks while nothing but submissions is heard, so that the same is refused again, in the
same words. Such a question is answered with those words and has the same advice, and what it means
for us is settled a moment later, together with that of others like it: many at once cost a third.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from slipstream.core.events import JobSubmitted
from slipstream.core.reasons import Reason
from slipstream.scheduler.marker import TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipstream.core.advice import Advice
    from slipstream.core.sights import Request
    from slipstream.estimator import Clues
    from slipstream.scheduler.engine import Engine

_HEAD: Final = b'{"v":1,"token":"'
_TOKEN_ENDS: Final = len(_HEAD) + 16
_HOLDS_S: Final = 0.2
"""How long an answer may be given again: it is also a matter of time what is free."""
LATER_S: Final = 0.05
"""How long what was answered may wait to be settled."""


@dataclass(frozen=True, slots=True)
class _Known:
    at_s: float
    clues: Clues
    request: Request
    advice: tuple[Advice, ...]
    answer: bytes


class Repeats:
    """Answers to remember, and submissions that are still to be told to the engine.

    Args:
        engine: told of them before it is told anything else.
        later: has a function called in `LATER_S`.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        engine: Engine,
        later: Callable[[Callable[[], None]], object],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._engine = engine
        self._later = later
        self._clock = clock
        self._known: dict[bytes, _Known] = {}
        self._waiting: list[tuple[float, str, _Known]] = []
        engine.before = self.news

    def answer(self, line: bytes) -> bytes | None:
        """What was answered to the same question a moment ago; None if that does not hold."""
        known = self._known.get(line[_TOKEN_ENDS:])
        if known is None or not line.startswith(_HEAD):
            return None
        token = line[len(_HEAD) : _TOKEN_ENDS].decode(errors="replace")
        now_s = self._clock()
        if not TOKEN.fullmatch(token) or not 0 <= now_s - known.at_s < _HOLDS_S:
            self.news()
            return None
        if not self._waiting:
            self._later(self.settle)
        self._waiting.append((now_s, token, known))
        for one in known.advice:
            self._engine.ahead(replace(one, token=token))
        return known.answer

    def keep(
        self,
        line: bytes,
        clues: Clues,
        request: Request,
        advice: Sequence[Advice],
        answer: bytes,
    ) -> None:
        """A question that was answered; only a refusal is worth keeping."""
        if not line.startswith(_HEAD) or not advice:
            return
        if all(one.reason is not Reason.ADVISED for one in advice):
            known = _Known(self._clock(), clues, request, tuple(advice), answer)
            self._known[line[_TOKEN_ENDS:]] = known

    def settle(self) -> None:
        """Tell the engine of all that were answered, in the order they came."""
        waiting, self._waiting = self._waiting, []
        for at_s, token, known in waiting:
            self._engine.submit(JobSubmitted(at_s, replace(known.request, token=token)))
            asked = replace(known.clues.request, token=token)
            self._engine.asked(replace(known.clues, request=asked))

    def news(self) -> None:
        """Something else is heard: first comes what came first, and nothing is known any more."""
        self._known.clear()
        self.settle()
