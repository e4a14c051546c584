# SPDX-License-Identifier: Apache-2.0
"""One policy over one trace, from files to figures; several of them on all cores."""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.core.cluster.brain import Brain
from slipstream.simulator import measured, names, policies, report, traces, workload
from slipstream.simulator.engine import Engine
from slipstream.simulator.guarding import NodeGuard
from slipstream.simulator.journal import Recorder
from slipstream.simulator.shape import Shape, equal, sized
from slipstream.simulator.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from slipstream.core.cluster.rules import Rule
    from slipstream.simulator.engine import Policy
    from slipstream.simulator.report import Report

PHILLY = Path("philly/philly-2017-09-to-11.csv")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Everything a simulation depends on: the same setting gives the same figures."""

    data: Path
    """The folder with what was measured."""
    trace: Path
    policy: str = names.OURS
    most_jobs: int | None = None
    cluster: Shape | None = None
    """A cluster that there is; the next three make one up."""
    nodes: int | None = None
    load_pct: float = 100.0
    """Sizes the cluster if `nodes` is None."""
    gpus_per_node: int = 8
    seed: int = 1
    mix: workload.Mix = field(default_factory=workload.Mix)
    without: tuple[Rule, ...] = ()
    journal: Path | None = None
    """Where to write down what our policy was told and said."""


def run(setting: Setting, tell: Callable[[float], None] | None = None) -> Report:
    """Simulate it; `tell` is called with the part that is done."""
    known = measured.read(setting.data)
    trace = traces.read(setting.trace, setting.most_jobs)
    if not trace:
        raise traces.TraceError(f"{setting.trace}: no job in it has a GPU")
    shape = _shape(setting, trace)
    fitting = [job for job in trace if shape.holds(job.gpus)]
    if not fitting:
        raise traces.TraceError(f"{setting.trace}: all its jobs are larger than the cluster")
    jobs = workload.made(fitting, known, seed=setting.seed, mix=setting.mix)
    world = World(shape, known, NodeGuard(known), guarded=policies.guarded(setting.policy))
    policy = policies.made(setting.policy, jobs, shares(trace), setting.without)
    measures = setting.policy in policies.MEASURES
    with _recorded(policy, setting.journal) as listening:
        engine = Engine(world, listening, measures=measures, tell=tell)
        began_s = time.process_time()
        engine.run(jobs)
    return report.of(
        world,
        setting.policy,
        without=[str(rule) for rule in setting.without],
        left_out=len(trace) - len(fitting),
        busy_gpu_s=engine.busy_gpu_s_at_last_submission,
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
    if setting.cluster is not None:
        return setting.cluster
    if setting.nodes is not None:
        return equal(setting.nodes, setting.gpus_per_node)
    return sized(trace, setting.load_pct, setting.gpus_per_node)


@contextmanager
def _recorded(policy: Policy, journal: Path | None) -> Iterator[Policy]:
    """With its journal, if one is wanted and it is ours."""
    if journal is None or not isinstance(policy, Brain):
        yield policy
        return
    with journal.open("w") as file:
        yield Recorder(policy, file)
