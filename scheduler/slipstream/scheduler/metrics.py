# SPDX-License-Identifier: Apache-2.0
"""Prometheus metrics, read from the state when they are scraped: nothing is kept twice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from slipstream.core.classes import Mode
from slipstream.slurm_plugin.link import Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.core import Metric

    from slipstream.core.state import State
    from slipstream.scheduler.dashboard.feed import Feed
    from slipstream.scheduler.engine import Engine


def exposition(engine: Engine, behind: Callable[[], int], feed: Feed | None = None) -> bytes:
    """The text of /metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Now(engine, behind, feed))
    return generate_latest(registry)


class _Now(Collector):
    def __init__(self, engine: Engine, behind: Callable[[], int], feed: Feed | None) -> None:
        self._engine = engine
        self._behind = behind
        self._feed = feed

    def collect(self) -> Iterator[Metric]:
        state = self._engine.machine.state
        yield from _of_jobs(state)
        yield from _of_nodes(state)
        yield from self._of_daemon()
        mode = GaugeMetricFamily("slipstream_mode", "1 for the mode that is set.", labels=["mode"])
        for one in Mode:
            mode.add_metric([one], int(state.mode is one))
        yield mode
        yield _gauge("switched_off", "1 while the kill switch is thrown.", state.switched_off)
        yield _gauge("slurm_away", "1 while Slurm's controller does not answer.", state.slurm_away)

    def _of_daemon(self) -> Iterator[Metric]:
        counters = self._engine.counters
        yield _counter("events", "Events the machine was told.", counters.events)
        yield _counter("commands", "Commands it gave.", counters.commands)
        yield _counter("machine_errors", "Events it failed over.", counters.machine_errors)
        yield _counter("watch_errors", "Events the dashboard failed over.", counters.watch_errors)
        if self._feed is not None:
            yield _gauge("dashboard_browsers", "Browsers that look on.", len(self._feed))
            yield _counter("dashboard_resyncs", "Browsers too slow to follow.", self._feed.resyncs)
            would = self._feed.would
            yield _gauge("line_jobs", "Jobs in line for GPUs, with a flag or not.", would.waiting)
            yield _gauge("line_seatable_jobs", "Of them, if guests: with a seat.", would.seated)
            lack = "Of them, if guests: with a seat but for a CPU."
            yield _gauge("line_without_cpu_jobs", lack, would.without_cpu)
        yield _counter("submissions", "Submissions announced to us.", counters.submissions)
        yield _counter("bad_submissions", "Of them not understood.", counters.bad_submissions)
        yield _counter("bad_reports", "Node reports not understood.", counters.bad_reports)
        yield _counter("strangers", "Peers that were not allowed.", counters.strangers)
        yield _gauge("links", "Coordinators of other hosts that are there.", counters.links)
        yield _refused_links(counters.refused_links)
        yield _counter("refused", "Commands that could not be carried out.", counters.refused)
        breaker = counters.breaker
        yield _gauge("slurm_breaker_open", "1 while no job is changed in Slurm.", breaker.is_open)
        yield _counter("slurm_breaker_trips", "How often that began.", breaker.trips)
        failures = self._engine.estimator.failures
        yield _counter("estimator_failures", "Submissions it failed over.", failures)
        models = self._engine.estimator.models
        yield _gauge("estimator_models", "Models that are asked.", len(models.by_family))
        yield _gauge("estimator_bad_models", "Files that are no models.", len(models.bad))
        yield _counter("history_runs", "Runs written into the history.", counters.runs_written)
        yield _counter("history_lost", "What it could not keep.", counters.runs_lost)
        yield _counter("answer_seconds", "Time spent answering.", counters.answer_s_sum)
        yield _gauge("answer_seconds_max", "The slowest answer.", counters.answer_s_max)
        yield _gauge("journal_behind", "Events not on disk yet.", self._behind())


def _refused_links(counted: Counter[str]) -> Metric:
    family = CounterMetricFamily(
        "slipstream_links_refused", "What other hosts sent and was not believed.", labels=["why"]
    )
    for why in Refusal:
        family.add_metric([why], counted[why])
    return family


def _of_jobs(state: State) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "slipstream_jobs", "Jobs by phase and reason.", labels=["phase", "reason"]
    )
    counted = Counter((record.phase, record.reason) for record in state.jobs.values())
    for (phase, reason), number in sorted(counted.items()):
        family.add_metric([phase, reason], number)
    yield family
    yield _gauge("advice", "Jobs with advice on the board.", len(state.advice))
    yield _gauge("moves", "Moves under way.", len(state.moves))
    reported = sum(len(report.jobs) for report in state.reports.values())
    yield _gauge("reported_jobs", "Jobs that coordinators report about.", reported)


def _of_nodes(state: State) -> Iterator[Metric]:
    nodes = state.nodes.values()
    yield _gauge("gpus", "GPUs Slurm knows.", sum(node.gpus for node in nodes))
    yield _gauge("gpus_used", "GPUs that are owned.", sum(node.gpus_used for node in nodes))
    yield _gauge("slots", "Guest slots Slurm knows.", sum(node.slots for node in nodes))
    yield _gauge("slots_used", "Guest slots that are held.", sum(node.slots_used for node in nodes))


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"slipstream_{name}", text, value=float(value))


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"slipstream_{name}", text, value=float(value))
