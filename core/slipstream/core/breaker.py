# SPDX-License-Identifier: Apache-2.0
"""When Slurm is left alone: after failures in a row nobody asks it anything for a while. Pure.

Then one request is made; if that fails, too, the while is twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

FAILURES: Final = 3
"""In a row, after which it is left alone."""
FIRST_S: Final = 5.0
LONGEST_S: Final = 60.0
TRIAL_S: Final = 30.0
"""How long the others wait for the one who tries: longer than a command is given."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """What is known of whoever is asked."""

    failures: int = 0
    """In a row, up to now."""
    until_s: float = 0.0
    """It is left alone until then."""
    trips: int = 0
    """How often that began."""

    @property
    def is_open(self) -> bool:
        """Whether it is left alone, but for one request now and then."""
        return self.failures >= FAILURES

    def paused_s(self, at_s: float) -> float:
        """For how long nothing is asked, from now on."""
        return max(0.0, self.until_s - at_s) if self.is_open else 0.0

    def asked(self, at_s: float) -> tuple[bool, Breaker]:
        """Whether a request may be made now, and what is so from then on."""
        if not self.is_open:
            return True, self
        if at_s < self.until_s:
            return False, self
        return True, replace(self, until_s=at_s + TRIAL_S)

    def failed(self, at_s: float) -> Breaker:
        """A request had no answer."""
        failures = self.failures + 1
        if failures < FAILURES:
            return replace(self, failures=failures)
        longer = min(failures - FAILURES, 16)  # beyond any bound by then
        until_s = at_s + min(FIRST_S * 2**longer, LONGEST_S)
        return Breaker(failures, until_s, self.trips + (failures == FAILURES))

    def answered(self) -> Breaker:
        """A request had an answer, whatever it said."""
        return Breaker(trips=self.trips)

    def found(self, at_s: float) -> Breaker:
        """Somebody else has had an answer: the next request need not wait."""
        return replace(self, until_s=min(self.until_s, at_s))
