# SPDX-License-Identifier: Apache-2.0
"""What the errors on unseen configurations say of a label: its score, and its safe bound. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from slipstream.estimator.drift import RECENT, is_drift
from slipstream.estimator.model import Score

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slipstream.estimator.labels import Label

    Array = NDArray[np.float64]

_SKILL: Final = 0.3
"""What of the variance the model of all must explain for families it has not seen."""


def score_of(
    label: Label, wanted: Array, unseen: Array, ended_s: Array, *, by_family: bool
) -> Score:
    """How good a label is, and whether it is good enough to be used."""
    off = wanted - unseen
    spread = float(np.var(wanted))
    skill = 1.0 - float(np.mean(off**2)) / spread if spread > 0 else 1.0
    measured, said = label.unbent(wanted), label.unbent(unseen)
    variance = float(np.var(measured))
    order = np.argsort(ended_s, kind="stable")
    recent, before = np.abs(off[order[-RECENT:]]), np.abs(off[order[:-RECENT]])
    why = ""
    if by_family and skill < _SKILL:
        why = "says too little of families it has not seen"
    elif len(before) >= RECENT and is_drift(recent.tolist(), float(np.expm1(np.median(before)))):
        why = f"the last {len(recent)} runs are unlike those before"
    return Score(
        runs=len(off),
        error=float(np.expm1(np.median(np.abs(off)))),
        recent_error=float(np.expm1(np.median(recent))),
        r2=1.0 - float(np.mean((measured - said) ** 2)) / variance if variance > 0 else 1.0,
        off=why,
    )


def quantile_of(off: Array, quantile: float) -> float:
    """As split conformal prediction takes it: the next larger of the ordered errors."""
    ordered = np.sort(off)
    if quantile < 0.5:  # noqa: PLR2004
        return -quantile_of(-off, 1.0 - quantile)
    if quantile == 0.5:  # noqa: PLR2004
        return float(np.median(ordered))
    at = int(np.ceil((len(ordered) + 1) * quantile)) - 1
    if at >= len(ordered):  # too few to know: half as much again as the worst
        return 1.5 * max(float(ordered[-1]), 0.0)
    return float(ordered[at])
