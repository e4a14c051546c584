# SPDX-License-Identifier: Apache-2.0
"""Runs the commands that change jobs, and leaves a controller alone that does not answer.

A request to one that is away takes 9 s, and the enactor has one thread: what waits behind it is
refused at once instead, and asked for again by the machine as far as that is still wanted. The
poller asks by itself, at its own pace.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from slipstream.core.breaker import Breaker
from slipstream.slurm_plugin.classify import classify
from slipstream.slurm_plugin.errors import Kind, SlurmError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipstream.slurm_plugin.run import CommandRunner, Completed

_LOG = logging.getLogger(__name__)


class GuardedRunner:
    """Another runner, and a breaker before it. Used by any thread.

    Args:
        runner: runs the commands.
        clock: seconds since 1970.
    """

    def __init__(self, runner: CommandRunner, clock: Callable[[], float] = time.time) -> None:
        self._runner = runner
        self._clock = clock
        self._lock = threading.Lock()
        self.breaker = Breaker()

    def run(self, argv: Sequence[str], *, timeout_s: float, stdin: str = "") -> Completed:
        """Run it, unless Slurm is left alone: then `SlurmError` at once."""
        with self._lock:
            allowed, self.breaker = self.breaker.asked(self._clock())
            left_s = self.breaker.paused_s(self._clock())
        if not allowed:
            raise SlurmError(
                argv, f"Slurm did not answer: left alone for {left_s:.0f} s", Kind.UNREACHABLE
            )
        try:
            done = self._runner.run(argv, timeout_s=timeout_s, stdin=stdin)
        except SlurmError:
            self._failed()
            raise
        if done.exit_code and classify(done.said) is Kind.UNREACHABLE:
            self._failed()
        else:
            self._answered()
        return done

    def found(self) -> None:
        """The poller has had an answer."""
        with self._lock:
            self.breaker = self.breaker.found(self._clock())

    def _failed(self) -> None:
        with self._lock:
            self.breaker = self.breaker.failed(self._clock())
            told = self.breaker
        if told.is_open:
            left_s = told.paused_s(self._clock())
            _LOG.warning(
                "%d requests without an answer: Slurm is left alone for %.0f s",
                told.failures,
                left_s,
            )

    def _answered(self) -> None:
        with self._lock:
            was_open, self.breaker = self.breaker.is_open, self.breaker.answered()
        if was_open:
            _LOG.info("Slurm answers again: jobs are changed again")
