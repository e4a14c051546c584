# SPDX-License-Identifier: Apache-2.0
"""What sharing a GPU has cost: learnt from runs that did not have theirs to themselves. Pure.

Beside others the host works as fast as ever, and the GPU's part of a mini-batch is stretched:

    time beside others = time alone + GPU time · (stretch - 1)

The time alone and the GPU's part are what the model says of the same job, so that a shared run
tells one number, its stretch, whatever its size. Throttling by the coordinator is in it; what a job
was parked is not. Who the others were is not known to the history: this is what was usual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from slipstream.estimator.model import Sharing
from slipstream.estimator.predicting import said_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipstream.estimator.model import Model
    from slipstream.estimator.runs import Run

MOST_STRETCH: Final = 20.0
_LEAST_USE: Final = 0.05
"""Of a job that hardly touches its GPU nothing can be told of sharing it."""
_ALL_PCT: Final = 100.0


def sharing_of(model: Model, runs: Iterable[Run]) -> Sharing:
    """What shared runs tell, by what the model says they would have been alone."""
    told = (_stretch(model, run) for run in runs if not run.alone)
    stretches = [stretch for stretch in told if stretch is not None]
    if not stretches:
        return Sharing()
    return Sharing(len(stretches), round(float(np.median(stretches)), 3))


def _stretch(model: Model, run: Run) -> float | None:
    said = said_of(model, run.gpus, run.numbers, run.categories)
    if said is None or run.minibatch_ms is None:
        return None
    alone_ms, use_pct = said.middle("minibatch_ms"), said.middle("gpu_use_pct")
    if alone_ms is None or use_pct is None or use_pct < _ALL_PCT * _LEAST_USE:
        return None
    longer = run.minibatch_ms / alone_ms - 1.0
    return min(max(1.0, 1.0 + longer * _ALL_PCT / use_pct), MOST_STRETCH)
