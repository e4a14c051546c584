# SPDX-License-Identifier: Apache-2.0
"""What earlier runs of the same program by the same user took: the plainest thing to learn. Pure.

No model: the most memory any of them took, the median of their times. It is what is said of a
family that has too few runs for a model of its own.
"""

from __future__ import annotations

from collections import deque
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from slipstream.core.estimate import Basis, Estimate
from slipstream.estimator.defaults import safe_default

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipstream.estimator.features import Features
    from slipstream.estimator.runs import Run

MOST_RUNS: Final = 50
"""Of a family: what it was like long ago counts no more."""
MOST_FAMILIES: Final = 5_000
_MARGIN: Final = 1.1


class Families:
    """The latest runs of each family, in memory."""

    def __init__(self) -> None:
        self._runs: dict[str, deque[Run]] = {}

    def learn(self, runs: Iterable[Run]) -> None:
        """Take these in, the oldest first. Only runs that had their GPUs to themselves count."""
        for run in runs:
            if run.alone:
                kept = self._runs.pop(run.family, None) or deque(maxlen=MOST_RUNS)
                kept.append(run)
                self._runs[run.family] = kept  # the last one of all now
                while len(self._runs) > MOST_FAMILIES:
                    del self._runs[next(iter(self._runs))]

    def estimate(self, features: Features) -> Estimate | None:
        """What a job of that family needs, if one has run."""
        runs = self._runs.get(features.family)
        if not runs:
            return None
        default = safe_default(features)
        memory_mib = _known(one.gpu_memory_mib for one in runs)
        uses = _known(one.gpu_use_pct for one in runs)
        times = _known(one.run_s for one in runs)
        host_mib = _known(one.host_memory_mib for one in runs)
        return Estimate(
            basis=Basis.FAMILY,
            runs=len(runs),
            gpus=default.gpus if features.numbers.get("ask.gpus") else _usual_gpus(runs),
            gpu_memory_mib=round(max(memory_mib) * _MARGIN) if memory_mib else None,
            gpu_use_pct=round(fmean(uses), 1) if uses else default.gpu_use_pct,
            gpu_use_spread_pct=_mean(one.gpu_use_spread_pct for one in runs) or 0.0,
            network_mbps=max(
                _known(one.network_mbps for one in runs), default=default.network_mbps
            ),
            cpus=default.cpus,
            host_memory_mib=default.host_memory_mib
            or (round(max(host_mib) * _MARGIN) if host_mib else None),
            run_s=median(times) if times else None,
            run_low_s=min(times, default=0.0),
            run_high_s=default.run_high_s,
            launch_s=_median(one.launch_s for one in runs),
            train_s=_median(one.train_s for one in runs),
            save_s=_median(one.save_s for one in runs),
        )


def _usual_gpus(runs: Iterable[Run]) -> int:
    return max(1, round(median(one.gpus for one in runs)))


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return median(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = _known(values)
    return round(fmean(known), 1) if known else None
