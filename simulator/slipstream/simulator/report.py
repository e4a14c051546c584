# SPDX-License-Identifier: Apache-2.0
"""What a simulated policy was worth, in figures."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.core.classes import JobClass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.simulator.world import Run, World

_CURVE_POINTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One policy on one workload and cluster; times are in seconds from a job's submission."""

    policy: str
    without: tuple[str, ...]
    gpus: int
    jobs: int
    left_out: int
    """Jobs of the trace that are larger than the cluster."""
    completion_mean_s: float
    completion_p50_s: float
    completion_p99_s: float
    queueing_mean_s: float
    """Until it first has GPUs."""
    queueing_worst_s: float
    guaranteed_queueing_mean_s: float
    """Of guaranteed jobs alone."""
    first_minibatches_mean_s: float
    """Until its first 100 mini-batches are done."""
    makespan_s: float
    use_pct: float
    """GPUs with a job on them, from the first submission to the last."""
    owner_slowdown_mean_pct: float
    """Of guaranteed jobs while they own their GPUs."""
    owner_slowdown_worst_pct: float
    fairness: float
    """Jain's index over tenants of completion over the time alone; 1 is the same for all."""
    tenant_slowdown: dict[str, float]
    """Each tenant's mean completion over its mean time alone."""
    moves: int
    parks: int
    events: int
    cpu_s: float
    curve_s: tuple[float, ...]
    """Completion times at evenly spaced ranks, for plots."""

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {"v": 1, **dataclasses.asdict(self)}


def of(
    world: World,
    policy: str,
    *,
    without: Sequence[str] = (),
    left_out: int = 0,
    busy_gpu_s: float,
    events: int,
    cpu_s: float,
) -> Report:
    """Read it all from a world that has come to its end."""
    runs = list(world.runs.values())
    completion = sorted(_completion_s(run) for run in runs)
    queueing = [_queueing_s(run) for run in runs]
    guaranteed = [run for run in runs if run.job.ask.job_class is JobClass.GUARANTEED]
    slowed = [
        100.0 * (run.owned_s / run.owned_done_s - 1.0)
        for run in guaranteed
        if run.owned_done_s > 0.0
    ]
    tenants = _tenants(runs)
    span_s = max(run.job.ask.submitted_at_s for run in runs)
    return Report(
        policy=policy,
        without=tuple(without),
        gpus=world.shape.gpus,
        jobs=len(runs),
        left_out=left_out,
        completion_mean_s=statistics.fmean(completion),
        completion_p50_s=_ranked(completion, 0.5),
        completion_p99_s=_ranked(completion, 0.99),
        queueing_mean_s=statistics.fmean(queueing),
        queueing_worst_s=max(queueing),
        guaranteed_queueing_mean_s=statistics.fmean(
            [_queueing_s(run) for run in guaranteed] or [0.0]
        ),
        first_minibatches_mean_s=statistics.fmean(
            (run.first_at_s or 0.0) - run.job.ask.submitted_at_s for run in runs
        ),
        makespan_s=world.now_s,
        use_pct=100.0 * busy_gpu_s / max(1.0, span_s * world.shape.gpus),
        owner_slowdown_mean_pct=statistics.fmean(slowed) if slowed else 0.0,
        owner_slowdown_worst_pct=max(slowed, default=0.0),
        fairness=_jain(list(tenants.values())),
        tenant_slowdown=tenants,
        moves=sum(run.moves for run in runs),
        parks=sum(run.parks for run in runs),
        events=events,
        cpu_s=cpu_s,
        curve_s=tuple(_ranked(completion, at / _CURVE_POINTS) for at in range(_CURVE_POINTS)),
    )


def _completion_s(run: Run) -> float:
    if run.ended_at_s is None:
        raise RuntimeError(f"job {run.job.ask.ref} has not ended")
    return run.ended_at_s - run.job.ask.submitted_at_s


def _queueing_s(run: Run) -> float:
    return (run.started_at_s or 0.0) - run.job.ask.submitted_at_s


def _ranked(ordered: Sequence[float], part: float) -> float:
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def _tenants(runs: Sequence[Run]) -> dict[str, float]:
    of: dict[str, list[Run]] = {}
    for run in runs:
        of.setdefault(run.job.ask.tenant, []).append(run)
    return {
        name: sum(_completion_s(run) for run in theirs) / sum(run.job.run_s for run in theirs)
        for name, theirs in sorted(of.items())
    }


def _jain(values: Sequence[float]) -> float:
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))
