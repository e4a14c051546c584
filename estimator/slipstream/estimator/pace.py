# SPDX-License-Identifier: Apache-2.0
"""When a model is fitted anew. Pure.

Liquid fits after every 3 runs. So do we while a family is small; then when a tenth more has come,
and at once when new runs contradict the model.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

FEWEST_RUNS: Final = 8
EVERY: Final = 3
SHARE: Final = 0.1


class Verdict(StrEnum):
    """What new runs call for."""

    NOTHING = "nothing"
    LOOK = "look"
    """Whether the model still holds."""
    FIT = "fit"


def verdict_of(newer: int, fitted_from: int | None) -> Verdict:
    """Of so many runs newer than the model, which rests on so many; None: there is no model."""
    if fitted_from is None:
        return Verdict.FIT if newer >= FEWEST_RUNS else Verdict.NOTHING
    if newer < EVERY:
        return Verdict.NOTHING
    return Verdict.FIT if newer >= SHARE * fitted_from else Verdict.LOOK
