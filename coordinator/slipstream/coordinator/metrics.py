# SPDX-License-Identifier: Apache-2.0
"""What Prometheus reads: taken from the state at the moment it is asked for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from slipstream.coordinator import network
from slipstream.coordinator.events import job_report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric

    from slipstream.coordinator.daemon import Coordinator

_ASK_WITHIN_S: Final = 2.0
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class State(Collector):
    """One coordinator, as metrics."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def collect(self) -> Iterator[Metric]:
        """Called at each scrape."""
        told = (self._gpus(), self._jobs(), self._reflexes(), self._daemon(), _network())
        for family in itertools.chain.from_iterable(told):
            yield self._labelled(family)

    def _labelled(self, family: Metric) -> Metric:
        """With the cluster and the host, and a job's number as `jobid`.

        `job` is what Prometheus calls its own scrape jobs: it renames ours.
        """
        settings = self._coordinator.settings
        here = {"cluster": settings.cluster, "host": settings.node}
        family.samples = [
            sample._replace(
                labels={
                    **sample.labels,
                    **({"jobid": sample.labels["job"]} if "job" in sample.labels else {}),
                    **here,
                }
            )
            for sample in family.samples
        ]
        return family

    def _gpus(self) -> Iterator[Metric]:
        window = self._coordinator.window
        use = GaugeMetricFamily("slipstream_gpu_use_pct", "Mean use over 10 s", labels=["gpu"])
        memory = GaugeMetricFamily(
            "slipstream_gpu_memory_used_bytes", "Memory in use", labels=["gpu"]
        )
        joinable = GaugeMetricFamily(
            "slipstream_gpu_takes_guests", "0 if its owner keeps guests away", labels=["gpu"]
        )
        for gpu in window.latest():
            use.add_metric([str(gpu.index)], window.use_pct(gpu.uuid))
            memory.add_metric([str(gpu.index)], gpu.memory_used_mib * (1 << 20))
            owner = self._coordinator.owned.get(gpu.uuid)
            joinable.add_metric([str(gpu.index)], owner is None or owner.takes_guests)
        yield from (use, memory, joinable)

    def _jobs(self) -> Iterator[Metric]:
        seats = GaugeMetricFamily("slipstream_node_jobs", "Jobs on this node", labels=["role"])
        done = CounterMetricFamily(
            "slipstream_job_minibatches", "Mini-batches done", labels=["job"]
        )
        phase = GaugeMetricFamily(
            "slipstream_job_phase", "1 for its phase", labels=["job", "phase"]
        )
        roles = [seat.role.name.lower() for seat in self._coordinator.seats.values()]
        for role in sorted(set(roles)):
            seats.add_metric([role], roles.count(role))
        for job, pages in self._coordinator.progress().items():
            told = job_report(job, pages)
            meter = self._coordinator.measuring.meters.get(job)
            total = meter.counts.minibatches if meter else told["minibatch"]
            done.add_metric([str(job)], total)
            phase.add_metric([str(job), told["phase"]], 1)
        yield from (seats, done, phase)
        yield GaugeMetricFamily(
            "slipstream_unattached_jobs",
            "Jobs that train or use the GPU without our hooks",
            value=len(self._coordinator.unattached.reasons()),
        )

    def _reflexes(self) -> Iterator[Metric]:
        """What owners lose, what guests may use, and what was decided."""
        reflexes = self._coordinator.reflexes
        slowdown = GaugeMetricFamily(
            "slipstream_owner_slowdown_pct", "Lost to guests", labels=["job", "guaranteed"]
        )
        error = GaugeMetricFamily(
            "slipstream_owner_slowdown_error_pct", "95 % of it lie within", labels=["job"]
        )
        alone = GaugeMetricFamily(
            "slipstream_owner_minibatch_alone_seconds", "Without guests", labels=["job"]
        )
        for one in reflexes.guarantees():
            slowdown.add_metric([str(one.job_id), str(one.guaranteed).lower()], one.slowdown_pct)
            error.add_metric([str(one.job_id)], one.error_pct)
            alone.add_metric([str(one.job_id)], one.baseline_ms / 1e3)
        share = GaugeMetricFamily("slipstream_job_share_pct", "Of its GPUs' time", labels=["job"])
        cap = GaugeMetricFamily("slipstream_job_cap_bytes", "0: none", labels=["job"])
        for job in self._coordinator.seats:
            wanted = reflexes.wanted(job)
            share.add_metric([str(job)], 0 if wanted.parked else wanted.share_pct)
            cap.add_metric([str(job)], wanted.cap_bytes)
        said = CounterMetricFamily(
            "slipstream_node_commands",
            "Decided, and carried out in enforce",
            labels=["kind", "why"],
        )
        for (kind, reason), count in sorted(reflexes.commands.items()):
            said.add_metric([kind, reason], count)
        yield from (slowdown, error, alone, share, cap, said)

    def _daemon(self) -> Iterator[Metric]:
        one = self._coordinator
        counts = {
            "slipstream_node_requests_answered": one.socket.answered,
            "slipstream_node_requests_refused": one.socket.refused,
            "slipstream_events_sent": one.link.sent,
            "slipstream_events_failed": one.link.failed,
            "slipstream_link_joins": one.link.joined,
            "slipstream_block_faults": one.block_faults(),
            "slipstream_device_grants_refused": one.grants_refused,
            "slipstream_guests_stopped": one.orders.times_stopped,
            "slipstream_unattached_lines_failed": one.unattached.lines_failed,
            "slipstream_nvml_errors": one.nvml_errors,
            "slipstream_checkpoints_spilled": one.checkpoints.spilled,
            "slipstream_moves_prepared": one.preparing.fetched,
            "slipstream_moves_prepared_bytes": one.preparing.fetched_bytes,
        }
        yield GaugeMetricFamily(
            "slipstream_link_up", "1 while the scheduler hears us", value=one.link.is_up
        )
        used, room = one.checkpoints.room()
        yield GaugeMetricFamily("slipstream_ramdisk_used_bytes", "By checkpoints", value=used)
        yield GaugeMetricFamily(
            "slipstream_ramdisk_room_bytes", "What it may hold at the moment", value=room
        )
        for name, value in counts.items():
            yield CounterMetricFamily(name, name.replace("_", " ") + " in all", value=value)


def _network() -> Iterator[Metric]:
    """What the node's own devices carried."""
    received = CounterMetricFamily(
        "slipstream_network_received_bytes", "By this device", labels=["device"]
    )
    sent = CounterMetricFamily("slipstream_network_sent_bytes", "By this device", labels=["device"])
    errors = CounterMetricFamily(
        "slipstream_network_errors", "Spoiled or dropped, both ways", labels=["device"]
    )
    for one in network.devices():
        received.add_metric([one.name], one.received_bytes)
        sent.add_metric([one.name], one.sent_bytes)
        errors.add_metric([one.name], one.errors)
    yield from (received, sent, errors)


class MetricsServer:
    """Answers any HTTP request with the metrics."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(State(coordinator))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            async with asyncio.timeout(_ASK_WITHIN_S):
                await reader.readuntil(b"\r\n\r\n")
                body = generate_latest(self._registry)
                head = (
                    f"HTTP/1.1 200 OK\r\nContent-Type: {_CONTENT_TYPE}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a scraper that went away will come back
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
