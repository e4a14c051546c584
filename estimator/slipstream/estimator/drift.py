# SPDX-License-Identifier: Apache-2.0
"""Whether a model still holds: errors of recent runs against the errors it had when it was fitted.

Programs change under the same name. A model that recent runs contradict is fitted anew at once; a
label that is as wrong on them even then is switched off, until its errors are of one kind again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from slipstream.estimator.labels import LABELS
from slipstream.estimator.predicting import said_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.estimator.model import Model
    from slipstream.estimator.runs import Run

RECENT: Final = 10
FEWEST: Final = 3
_WORSE: Final = 3.0
_ANYWAY: Final = float(np.log(1.2))
"""An error that small is no drift, however good the model was."""


def drifted(model: Model, runs: Sequence[Run]) -> dict[str, str]:
    """By label why it is off. `runs` are newer than the model, which has not seen them."""
    errors: dict[str, list[float]] = {}
    for run in sorted(runs, key=lambda run: run.ended_s)[-RECENT:]:
        said = said_of(model, run.gpus, run.numbers, run.categories) if run.alone else None
        if said is None:
            continue
        for at, label in enumerate(LABELS):
            measured = label.measured(run)
            if measured and model.known[at] and np.isfinite(said.bent[at]):
                off = abs(label.bend(measured) - said.bent[at])
                errors.setdefault(label.name, []).append(off)
    return {
        name: f"the last {len(off)} runs are {np.expm1(np.median(off)):.0%} off, "
        f"it was {model.scores[name].error:.0%}"
        for name, off in errors.items()
        if name in model.scores and is_drift(off, model.scores[name].error)
    }


def is_drift(recent: Sequence[float], own_error: float) -> bool:
    """Whether recent errors, as logarithms, are far beyond what is usual (0.1 is 10 %)."""
    limit = max(_WORSE * float(np.log1p(own_error)), _ANYWAY)
    return len(recent) >= FEWEST and float(np.median(recent)) > limit
