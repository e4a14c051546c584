# SPDX-License-Identifier: Apache-2.0
"""One policy over one trace, from files to figures; several of them on all cores."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.simulator import measured, policies, report, traces, workload
from slipstream.simulator.engine import Engine
from slipstream.simulator.guarding import NodeGuard
from slipstream.simulator.shape import Shape, sized
from slipstream.simulator.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from slipstream.core.cluster.rules import Rule
    from slipstream.simulator.report import Report

PHILLY = Path("philly/philly-2017-09-to-11.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything a simulation depends on: the same setting gives the same figures."""

    data: Path
    """The folder with what was measured."""
    trace: Path
    policy: str = policies.OURS
    most_jobs: int | None = None
    nodes: int | None = None
    load_pct: float = 100.0
    """Sizes the cluster if `nodes` is None."""
    gpus_per_node: int = 8
    seed: int = 1
    mix: workload.Mix = field(default_factory=workload.Mix)
    without: tuple[Rule, ...] = ()


def run(setting: Setting, tell: Callable[[float], None] | None = None) -> Report:
    """Simulate it; `tell` is called with the part that is done."""
    known = measured.read(setting.data)
    trace = traces.read(setting.trace, setting.most_jobs)
    if not trace:
        raise traces.TraceError(f"{setting.trace}: no job in it has a GPU")
    jobs = workload.made(trace, known, seed=setting.seed, mix=setting.mix)
    world = World(
        _shape(setting, trace),
        known,
        NodeGuard(known),
        guarded=policies.guarded(setting.policy),
    )
    policy = policies.made(setting.policy, jobs, shares(trace), setting.without)
    engine = Engine(world, policy, measures=setting.policy in policies.MEASURES, tell=tell)
    began_s = time.process_time()
    engine.run(jobs)
    return report.of(
        world,
        setting.policy,
        without=[str(rule) for rule in setting.without],
        busy_gpu_s=engine.busy_gpu_s_at_last_submission,
        span_s=jobs[-1].ask.submitted_at_s,
        events=engine.events,
        cpu_s=time.process_time() - began_s,
    )


def compare(
    settings: Sequence[Setting],
) -> Iterator[tuple[Setting, Report]]:
    """All of them on all cores, each as it is done."""
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        runs = {pool.submit(run, setting): setting for setting in settings}
        for done in as_completed(runs):
            yield runs[done], done.result()


def shares(trace: Sequence[traces.TraceJob]) -> Mapping[str, float]:
    """Philly's quotas for Philly's tenants; in another trace all tenants have the same."""
    tenants = sorted({job.tenant for job in trace})
    quotas = {name: float(nodes) for name, nodes in traces.PHILLY_QUOTA_NODES.items()}
    if any(name in quotas for name in tenants):
        return quotas
    return dict.fromkeys(tenants, 1.0)


def _shape(setting: Setting, trace: Sequence[traces.TraceJob]) -> Shape:
    if setting.nodes is not None:
        return Shape(nodes=setting.nodes, gpus_per_node=setting.gpus_per_node)
    return sized(trace, setting.load_pct, setting.gpus_per_node)
