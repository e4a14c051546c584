# SPDX-License-Identifier: Apache-2.0
"""What two families of jobs did together on one GPU, remembered for a while."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipstream.core.cluster.jobs import Job

_BEST_GUESS: Final = 1.9
_LOSS_PER_PCT: Final = 0.006
"""What a percent of use together takes from both, for pairs nobody has measured: a line through
the pairs of Gavel's V100 table, which goes from 1.8 (nothing used) to 0.7 (all of it, twice)."""


@dataclass(slots=True)
class PairBook:
    """Speeds together, 2 being no loss at all; what is not known is guessed from use."""

    believed_s: float
    _told: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)

    def learn(self, one: Job, other: Job, total: float, at_s: float) -> None:
        """Two jobs were measured."""
        self._told[_key(one, other)] = (total, at_s)

    def remember(self, pairs: Iterable[tuple[str, str, float, float]]) -> None:
        """Believe these, and nothing else: families, their speeds together, and when."""
        self._told = {_sorted(one, other): (total, at_s) for one, other, total, at_s in pairs}

    def expected(self, one: Job, other: Job, at_s: float) -> float:
        """What they would do together."""
        told = self._told.get(_key(one, other)) if self._told else None
        if told is not None and at_s - told[1] <= self.believed_s:
            return told[0]
        return _BEST_GUESS - _LOSS_PER_PCT * (one.use_pct + other.use_pct)


def _key(one: Job, other: Job) -> tuple[str, str]:
    return _sorted(one.ask.family or one.ref, other.ask.family or other.ref)


def _sorted(one: str, other: str) -> tuple[str, str]:
    return (one, other) if one <= other else (other, one)
