# SPDX-License-Identifier: Apache-2.0
"""What jobs that run send over the uplinks of racks: measured by their nodes, or estimated. Pure.

Only where the site says what an uplink carries; of Slurm nobody can know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from slipstream.core.network.gangs import SERVERS
from slipstream.core.network.traffic import between
from slipstream.core.records import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.core.events import NodeReported
    from slipstream.core.records import JobRecord
    from slipstream.core.state import State

_STEP_MBPS: Final = 100.0
"""What is sent varies: within one of these it counts as equal."""


@dataclass(frozen=True, slots=True)
class Wires:
    """What each rack's uplink carries, 0 if nobody says, and what is sent over which of them."""

    uplink_mbps: float = 0.0
    sent: tuple[tuple[str, float], ...] = ()


def seen(state: State, reports: Mapping[str, NodeReported]) -> Wires:
    """As of now; `reports` are those that count."""
    carries = state.rules.uplink_mbps
    if not carries:
        return Wires()
    sent: dict[str, float] = {}
    for record in state.jobs.values():
        for rack, mbps in _of(state, record, reports).items():
            sent[rack] = sent.get(rack, 0.0) + mbps
    return Wires(carries, tuple(sorted(sent.items())))


def _of(state: State, record: JobRecord, reports: Mapping[str, NodeReported]) -> dict[str, float]:
    sight = record.sight
    if sight is None or record.phase is not Phase.RUNNING or len(sight.nodes) == 1:
        return {}
    request, topology = state.requests.get(record.token), state.topology
    racks = [rack.name if (rack := topology.rack_of(at)) else at for at in sight.nodes]
    if len(set(racks)) == 1:
        return {}
    number = str(sight.number)
    measured = [
        job.measured.network_mbps
        for at in sight.nodes
        if at in reports
        for job in reports[at].jobs
        if job.ref == number and job.measured and job.measured.network_mbps
    ]
    estimate = request.estimate if request else None
    mbps = max(measured, default=(estimate.network_mbps if estimate else 0.0) or 0.0)
    servers = any(name in SERVERS for name, _ in request.roles) if request else False
    return between(racks, round(mbps / _STEP_MBPS) * _STEP_MBPS, int(servers))
