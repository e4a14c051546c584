# SPDX-License-Identifier: Apache-2.0
"""A trace made complete: what it does not tell of a job is drawn, from one seed, and stated.

* kind of training: each of the measured ones is as likely.
* class: a fifth `guaranteed`, three fifths `shared`, a fifth `auto`. A trace has none; a fifth
  keeps the guaranteed work of every tenant near its quota; the rest is exploration.
* elastic: nobody, unless a part is asked for; those may grow to twice their GPUs.
* use and memory are *predicted* before they are measured: off by a tenth (standard deviation).
* time limit, if the trace has none: users ask for a round time of at least twice of what they need.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from slipstream.core.classes import JobClass
from slipstream.core.cluster.asks import Ask
from slipstream.simulator.measured import GPU_MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.simulator.measured import Measured
    from slipstream.simulator.traces import TraceJob

_HOUR_S: Final = 3600.0
_ROUND_LIMITS_S: Final = tuple(
    hours * _HOUR_S for hours in (0.5, 1, 2, 4, 8, 12, 24, 48, 96, 168, 336, 720, 1440, 2880)
)
_LIMIT_OVER_RUN: Final = 2.0
_OFF: Final = 0.1
FIRST_MINIBATCHES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """How jobs are divided over the classes, in percent; the rest is `shared`."""

    guaranteed_pct: float = 20.0
    auto_pct: float = 20.0
    elastic_pct: float = 0.0
    """Of all jobs: those that may run with up to twice their GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One job: what policies are told (`ask`), and what is true and only the world knows."""

    ask: Ask
    run_s: float
    """Alone on its GPUs, on as few nodes as it can be."""
    kind: int
    use_pct: float
    memory_mib: int
    first_s: float
    """Of `run_s`, until its first mini-batches are done."""


def made(
    trace: Sequence[TraceJob], measured: Measured, *, seed: int, mix: Mix | None = None
) -> list[Workload]:
    """The same trace and seed give the same workload."""
    rng = np.random.default_rng(seed)
    mix = mix or Mix()
    kinds = rng.integers(len(measured.kinds), size=len(trace))
    classes = rng.uniform(0.0, 100.0, size=len(trace))
    off = rng.normal(1.0, _OFF, size=(len(trace), 2))
    elastic = rng.uniform(0.0, 100.0, size=len(trace)) < mix.elastic_pct
    return [
        _one(
            job,
            measured,
            int(kinds[at]),
            _class(float(classes[at]), mix),
            off[at].tolist(),
            elastic_max=2 * job.gpus * int(elastic[at]),
        )
        for at, job in enumerate(trace)
    ]


def _one(
    job: TraceJob,
    measured: Measured,
    kind: int,
    job_class: JobClass,
    off: Sequence[float],
    *,
    elastic_max: int,
) -> Workload:
    of = measured.kinds[kind]
    ask = Ask(
        ref=job.ref,
        tenant=job.tenant,
        gpus=job.gpus,
        submitted_at_s=job.submitted_at_s,
        job_class=job_class,
        use_pct=min(100.0, max(1.0, of.use_pct * off[0])),
        memory_mib=int(min(GPU_MIB, max(1.0, of.memory_mib * off[1]))),
        family=of.name,
        limit_s=job.limit_s or _limit_s(job.run_s),
        elastic_max=elastic_max,
    )
    return Workload(
        ask=ask,
        run_s=job.run_s,
        kind=kind,
        use_pct=of.use_pct,
        memory_mib=of.memory_mib,
        first_s=min(job.run_s, FIRST_MINIBATCHES / of.minibatches_per_s),
    )


def _class(drawn: float, mix: Mix) -> JobClass:
    if drawn < mix.guaranteed_pct:
        return JobClass.GUARANTEED
    return JobClass.AUTO if drawn < mix.guaranteed_pct + mix.auto_pct else JobClass.SHARED


def _limit_s(run_s: float) -> float:
    wanted_s = run_s * _LIMIT_OVER_RUN
    return next((limit_s for limit_s in _ROUND_LIMITS_S if limit_s >= wanted_s), wanted_s)
