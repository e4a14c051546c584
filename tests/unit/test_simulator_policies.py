# SPDX-License-Identifier: Apache-2.0
"""Every policy brings every job of a small trace to its end, and what is reported adds up."""

from __future__ import annotations

import pytest

from simulator_rig import KINDS, trace
from slipstream.core.cluster.rules import Rule
from slipstream.simulator import html, names, policies, report, workload
from slipstream.simulator.engine import Engine
from slipstream.simulator.guarding import NodeGuard
from slipstream.simulator.shape import Shape, equal, node
from slipstream.simulator.world import World

pytestmark = pytest.mark.unit

SHARES = {"a": 1.0, "b": 1.0, "c": 2.0}
JOBS = workload.made(trace(), KINDS, seed=1)
GUARD = NodeGuard(KINDS)


def simulated(name: str, *without: Rule, nodes: int = 1) -> tuple[World, report.Report]:
    """On nodes of eight GPUs: on one of them the trace is far too much."""
    made = World(equal(nodes), KINDS, GUARD, guarded=policies.guarded(name))
    policy = policies.made(name, JOBS, SHARES, without)
    engine = Engine(made, policy, measures=name in policies.MEASURES)
    engine.run(JOBS)
    figures = report.of(
        made,
        name,
        busy_gpu_s=engine.busy_gpu_s_at_last_submission,
        events=engine.events,
        cpu_s=0.0,
    )
    return made, figures


@pytest.mark.parametrize("name", names.NAMES)
@pytest.mark.parametrize("nodes", [1, 3])
def test_every_job_ends_and_none_before_its_work_is_done(name: str, nodes: int) -> None:
    """Nobody is faster than alone, nobody is left."""
    made, figures = simulated(name, nodes=nodes)
    for run in made.runs.values():
        assert run.ended_at_s is not None
        assert run.ended_at_s - run.job.ask.submitted_at_s >= run.job.run_s * 0.999
    assert figures.jobs == len(JOBS)
    assert made.busy_gpus == 0


@pytest.mark.parametrize("name", names.NAMES)
def test_nodes_may_be_unequal(name: str) -> None:
    """As those of a live cluster are: every job still ends, none before its work is done."""
    shape = Shape((node("small", 2), node("large", 8), node("middle", 4, gpu_mib=10_000)))
    made = World(shape, KINDS, GUARD, guarded=policies.guarded(name))
    policy = policies.made(name, JOBS, SHARES)
    Engine(made, policy, measures=name in policies.MEASURES).run(JOBS)
    for run in made.runs.values():
        assert run.ended_at_s is not None
        assert run.ended_at_s - run.job.ask.submitted_at_s >= run.job.run_s * 0.999


@pytest.mark.parametrize("rule", [*Rule])
def test_ours_works_without_any_one_rule(rule: Rule) -> None:
    """Each can be switched off to see what it is worth."""
    _, figures = simulated("slipstream", rule)
    assert figures.completion_mean_s > 0


def test_the_same_simulation_gives_the_same_figures() -> None:
    """Virtual time has no noise."""
    assert simulated("slipstream")[1] == simulated("slipstream")[1]


def test_ours_beats_stock_slurm_where_more_is_asked_for_than_there_is() -> None:
    """Completion and first mini-batches, on the overloaded node."""
    ours, stock = simulated("slipstream")[1], simulated("backfill")[1]
    assert ours.completion_mean_s < stock.completion_mean_s
    assert ours.first_minibatches_mean_s < stock.first_minibatches_mean_s


def test_backfill_never_delays_the_first_that_waits() -> None:
    """The first gang waits no longer than in strict order."""
    strict, filled = simulated("fifo")[0], simulated("backfill")[0]
    first = next(job.ask.ref for job in JOBS if job.ask.gpus == 8)
    assert filled.runs[first].started_at_s == strict.runs[first].started_at_s


def test_guaranteed_owners_are_hardly_slowed_by_ours() -> None:
    """By the node machine, which tolerates three percent."""
    assert 0.0 <= simulated("slipstream")[1].owner_slowdown_mean_pct < 3.0


def test_progress_is_told_now_and_then_until_all_is_done() -> None:
    """What the bar on the terminal shows."""
    parts: list[float] = []
    made = World(equal(1), KINDS, GUARD)
    Engine(made, policies.made("fifo", JOBS, SHARES), tell=parts.append).run(JOBS)
    assert parts == sorted(parts)
    assert len(parts) > 10
    assert parts[-1] == 1.0


def test_an_unknown_policy_is_told_the_known_ones() -> None:
    """A typing error is no policy."""
    with pytest.raises(ValueError, match="'fido'; known: fifo, backfill"):
        policies.made("fido", JOBS, SHARES)


def test_the_page_is_one_file_with_its_plots() -> None:
    """Nothing is loaded from elsewhere."""
    page = html.page([simulated("fifo")[1], simulated("slipstream")[1]], "a title", "about <it>")
    assert page.count("<svg") == 1
    assert "about &lt;it&gt;" in page
    assert "src=" not in page
