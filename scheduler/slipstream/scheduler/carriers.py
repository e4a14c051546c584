# SPDX-License-Identifier: Apache-2.0
"""What carries advice to Slurm, and which of the two is in use.

The board is written whether anybody reads it or not: that costs little, and a wrapper that comes
finds all of it. Soft hold acts only while nobody does.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import TYPE_CHECKING

from slipstream.scheduler.sink import SinkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipstream.core.advice import Advice
    from slipstream.scheduler.sink import AdviceSink

_LOG = logging.getLogger(__name__)


class Carrier(StrEnum):
    """As the setting spells it."""

    AUTO = "auto"
    """The board while the select wrapper is loaded, soft hold while not."""
    BOARD = "board"
    HOLD = "hold"


class Choice:
    """Which carrier is in use now.

    Args:
        wanted: the setting.
        wrapper_is_loaded: looks; may raise OSError.
    """

    def __init__(self, wanted: Carrier, wrapper_is_loaded: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._wrapper_is_loaded = wrapper_is_loaded
        self._last: Carrier | None = None

    def in_use(self) -> Carrier:
        """BOARD or HOLD."""
        found = self._wanted if self._wanted is not Carrier.AUTO else self._found()
        if found is not self._last:
            _LOG.info("advice is carried out by %s (carrier = %s)", found, self._wanted)
            self._last = found
        return found

    def _found(self) -> Carrier:
        try:
            return Carrier.BOARD if self._wrapper_is_loaded() else Carrier.HOLD
        except OSError as error:
            _LOG.warning("whether the select wrapper is loaded cannot be seen: %s", error)
            return self._last or Carrier.BOARD


class Carriers:
    """Advice to several sinks at once; each must take it."""

    def __init__(self, *sinks: AdviceSink) -> None:
        self._sinks = sinks

    def ahead(self, advice: Advice) -> None:
        """The first of a job that is not in the queue yet, to all."""
        self._each(lambda sink: sink.ahead(advice))

    def advise(self, advice: Advice) -> None:
        """Give this advice to all."""
        self._each(lambda sink: sink.advise(advice))

    def withdraw(self, token: str, task: int | None) -> None:
        """Take it back from all."""
        self._each(lambda sink: sink.withdraw(token, task))

    def replace(self, advice: Sequence[Advice]) -> None:
        """Exactly this, everywhere."""
        self._each(lambda sink: sink.replace(advice))

    def _each(self, do: Callable[[AdviceSink], None]) -> None:
        refused: list[SinkError] = []
        for sink in self._sinks:
            try:
                do(sink)
            except SinkError as error:
                refused.append(error)
        if refused:
            raise refused[0]
