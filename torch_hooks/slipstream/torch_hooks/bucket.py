# SPDX-License-Identifier: Apache-2.0
"""A share of a device by a token bucket: time fills it, use empties it, and who emptied it waits.

The same bucket as in the native gate, for where that cannot be had: it is asked at boundaries,
which always works, or where the device's work is launched.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SLICE_NS = 8_000_000
REST_UNTIL_NS = 9_000_000  # a little more: who wakes too early would nap again
FULL_NS = 16_000_000
LONGEST_SLEEP_NS = 100_000_000


class Bucket:
    """Keeps whoever asks it to a share of the time; `used_ns` says how much was used so far."""

    def __init__(
        self,
        share_pct: Callable[[], int],
        used_ns: Callable[[], int],
        *,
        now_ns: Callable[[], int] = time.monotonic_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.slept_ns = 0
        self._share_pct = share_pct
        self._used_ns = used_ns
        self._now_ns = now_ns
        self._sleep = sleep
        self._balance_ns = SLICE_NS // 2  # on the average of what it will be
        self._settled_ns = now_ns()
        self._settled_used_ns = used_ns()

    def wait(self) -> None:
        """Come back when there is time in the bucket, or at once if the share is all of it."""
        began_ns = self._now_ns()
        self._settle()
        if self._balance_ns <= 0:
            while self._share_pct() < 100 and self._balance_ns < SLICE_NS:  # noqa: PLR2004 (percent)
                self._sleep(self._missing_ns() / 1e9)
                self._settle()
        self.slept_ns += self._now_ns() - began_ns

    def _missing_ns(self) -> int:
        share = self._share_pct()
        missing_ns = (
            (REST_UNTIL_NS - self._balance_ns) * 100 // share if share > 0 else LONGEST_SLEEP_NS
        )
        return min(missing_ns, LONGEST_SLEEP_NS)

    def _settle(self) -> None:
        now_ns, used_ns = self._now_ns(), self._used_ns()
        earned_ns = (now_ns - self._settled_ns) * self._share_pct() // 100
        self._balance_ns += earned_ns - (used_ns - self._settled_used_ns)
        self._balance_ns = min(self._balance_ns, FULL_NS)
        self._settled_ns, self._settled_used_ns = now_ns, used_ns
