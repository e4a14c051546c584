# SPDX-License-Identifier: Apache-2.0
"""How long a training saves: `torch.save`, timed and otherwise left as it is."""

from __future__ import annotations

import functools
import sys
from time import monotonic_ns
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Saving:
    """Times torch.save until it is removed."""

    def __init__(self, saved: Callable[[int], None]) -> None:
        """`saved` is called with the nanoseconds that each save took, and must not raise."""
        self._torch = vars(sys.modules["torch"])
        self._original = original = self._torch["save"]

        @functools.wraps(original)
        def save(*arguments: object, **named: object) -> object:
            began_ns = monotonic_ns()
            try:
                return original(*arguments, **named)
            finally:
                saved(monotonic_ns() - began_ns)

        self._timed = self._torch["save"] = save

    def remove(self) -> None:
        """Leave torch.save as it was, unless somebody else has wrapped it since."""
        if self._torch["save"] is self._timed:
            self._torch["save"] = self._original
