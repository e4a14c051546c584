# SPDX-License-Identifier: Apache-2.0
"""How many GPUs a job is best run on, from how its family was measured to scale. Pure.

A mini-batch of a data-parallel job trains on a batch per GPU: the time for the same work is the
time of a mini-batch over the number of GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

WITHIN: Final = 1.25
"""The smallest number of GPUs that takes at most so many times as long as the fastest."""


def smallest_good(times: Mapping[int, float], within: float = WITHIN) -> int:
    """Of numbers of GPUs with the time that the same work takes; 1 if nothing is known."""
    if not times:
        return 1
    best = min(times.values())
    return min(gpus for gpus, time in times.items() if time <= within * best)
