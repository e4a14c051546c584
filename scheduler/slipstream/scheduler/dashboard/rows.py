# SPDX-License-Identifier: Apache-2.0
"""Jobs and nodes as the rows that browsers get: short lists in the order of the columns. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from slipstream.core.records import Phase
from slipstream.core.sights import Training
from slipstream.scheduler.views import NOT_ATTACHED, STANDS_STILL, role_of, state_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream.core.events import NodeReported
    from slipstream.core.records import JobRecord
    from slipstream.core.sights import NodeSight
    from slipstream.core.state import State

Row = list[Any]
JOB_COLUMNS: Final = (
    *("key", "name", "user", "account", "partition", "class", "role", "phase", "reason"),
    *("slurm_reason", "nodes", "advised", "gpus", "slots", "asked", "since_s", "submitted_s"),
    *("priority", "does", "minibatch", "minibatch_ms", "share_pct", "alone_ms", "slowdown_pct"),
)
NODE_COLUMNS: Final = (
    *("name", "rack", "state", "takes_jobs", "gpus", "gpus_used", "slots", "slots_used"),
    *("reported_s", "devices"),
)
DEVICE_COLUMNS: Final = ("index", "use_pct", "used_mib", "mib", "owner", "guests", "takes_guests")
_MOST_NAME: Final = 160
"""Users choose names; all of it is on the job's own page."""
_MOST_NODES: Final = 4
_NO_TRAINING: Final = (None,) * 6


def job_row(state: State, record: JobRecord, training: Training | None) -> Row:
    """One job."""
    sight = record.sight
    request = state.requests.get(record.token)
    waits = record.phase in (Phase.WAITING, Phase.SUBMITTED)
    advice = state.advice.get(record.advice_key) if waits else None
    asked = request.gpus if request else None
    return [
        record.key,
        clipped(sight.name if sight else (request.name if request else "")),
        sight.user if sight else "",
        sight.account if sight else (request.account if request else ""),
        sight.partition if sight else (request.partition if request else ""),
        request.job_class if request else "",
        role_of(state, record) or "",
        record.phase,
        record.reason,
        sight.slurm_reason if sight and waits else "",
        several(sight.nodes) if sight else "",
        several(advice.nodes) if advice else "",
        sight.gpus if sight else 0,
        sight.slots if sight else 0,
        asked.count * (request.nodes_min if request and asked.per == "node" else 1) if asked else 0,
        record.since_s,
        sight.submitted_at_s if sight else record.since_s,
        sight.priority if sight else 0,
        *_trained(state, record, training),
    ]


def _trained(state: State, record: JobRecord, training: Training | None) -> tuple[Any, ...]:
    """What it does now, and its figures: those stay when it has ended."""
    figures = state.figures.get(record.key)
    if training is None and figures is None:
        return _NO_TRAINING
    now = training or Training(ref="")
    still = state_of(state, record, training)
    return (
        still if still in STANDS_STILL else _does(now),
        figures.total.minibatches if figures else now.minibatch,
        now.minibatch_ms or (figures.minibatch_ms if figures else None),
        now.share_pct,
        figures.alone_ms if figures else now.alone_ms,
        figures.slowdown_pct if figures else now.slowdown_pct,
    )


def _does(now: Training) -> str:
    return NOT_ATTACHED if now.unattached else now.phase


def node_row(
    state: State,
    node: NodeSight,
    report: NodeReported | None,
    owners: Mapping[int, str],
) -> Row:
    """One node with its GPUs, those that only Slurm knows too."""
    rack = state.topology.rack_of(node.name)
    return [
        node.name,
        rack.name if rack else "",
        node.state,
        node.takes_jobs,
        node.gpus,
        node.gpus_used,
        node.slots,
        node.slots_used,
        report.at_s if report else None,
        _devices(state, node, report, owners),
    ]


def _devices(
    state: State, node: NodeSight, report: NodeReported | None, owners: Mapping[int, str]
) -> list[Row]:
    if report is None:
        return [[at, None, None, None, owners.get(at), [], True] for at in range(node.gpus)]
    return [
        [
            gpu.index,
            round(gpu.use_pct),
            gpu.memory_used_mib,
            gpu.memory_mib,
            owners.get(gpu.index) or named(state, gpu.owner_job),
            [named(state, job) for job in gpu.guest_jobs],
            gpu.takes_guests,
        ]
        for gpu in report.gpus
    ]


def named(state: State, number: str | None) -> str | None:
    """A job as people know it: nodes know tasks of arrays by numbers of their own."""
    found = state.numbered(number) if number else None
    return found.key if found else number


def clipped(name: str) -> str:
    """A name that fits a row."""
    return name if len(name) <= _MOST_NAME else f"{name[:_MOST_NAME]}…"


def several(nodes: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = len(nodes) - _MOST_NODES
    return ", ".join(nodes[:_MOST_NODES]) + (f" +{more}" if more > 0 else "")
