# SPDX-License-Identifier: Apache-2.0
"""Slurm for whoever changes jobs: a controller that does not answer is left alone for a while.

A request to one that is away takes 9 s, and the enactor has one thread: what waits behind it is
refused at once instead, and asked for again by the machine as far as that is still wanted. The
poller asks by itself, at its own pace.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, cast

from slipstream.core.breaker import Breaker
from slipstream.slurm_plugin.errors import Kind, SlurmError

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.slurm_plugin.protocol import Slurm

_LOG = logging.getLogger(__name__)
_FREE: Final = ("ping", "version")
"""What costs nothing, and tells nothing by failing."""
_NO_ANSWER: Final = (Kind.UNREACHABLE, Kind.TIMED_OUT, Kind.NO_COMMAND)


class Guard:
    """A breaker before Slurm. Used by any thread.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.breaker = Breaker()

    def over(self, slurm: Slurm) -> Slurm:
        """The same Slurm, asked only while it is not left alone; else `SlurmError` at once."""
        return cast("Slurm", _Guarded(slurm, self))

    def found(self) -> None:
        """The poller has had an answer."""
        with self._lock:
            self.breaker = self.breaker.found(self._clock())

    def ask(self, name: str, request: Callable[[], Any]) -> Any:  # noqa: ANN401 (whatever it answers)
        """One request, if there may be one."""
        with self._lock:
            allowed, self.breaker = self.breaker.asked(self._clock())
            left_s = self.breaker.paused_s(self._clock())
        if not allowed:
            text = f"Slurm did not answer: left alone for {left_s:.0f} s"
            raise SlurmError((name,), text, Kind.UNREACHABLE)
        try:
            answer = request()
        except SlurmError as error:
            if error.kind in _NO_ANSWER:
                self._failed()
            else:
                self._answered()
            raise
        self._answered()
        return answer

    def _failed(self) -> None:
        with self._lock:
            self.breaker = told = self.breaker.failed(self._clock())
        if told.is_open:
            left_s = told.paused_s(self._clock())
            text = "%d requests without an answer: Slurm is left alone for %.0f s"
            _LOG.warning(text, told.failures, left_s)

    def _answered(self) -> None:
        with self._lock:
            was_open, self.breaker = self.breaker.is_open, self.breaker.answered()
        if was_open:
            _LOG.info("Slurm answers: jobs are changed again")


class _Guarded:
    """Every request of the protocol, each through the guard."""

    def __init__(self, slurm: Slurm, guard: Guard) -> None:
        self._slurm = slurm
        self._guard = guard

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (a method of the protocol)
        method = getattr(self._slurm, name)
        if name in _FREE:
            return method
        return lambda *given, **named: self._guard.ask(name, lambda: method(*given, **named))
