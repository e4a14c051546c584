# SPDX-License-Identifier: Apache-2.0
"""Nodes and who is on them, from what Slurm and coordinators tell, as the brain knows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.core.classes import JobClass, Role
from slipstream.core.cluster.asks import Ask
from slipstream.core.cluster.events import GpuSeen, NodeSeen, Sitter
from slipstream.core.seats import guests_of, owners_of, shut_gpus

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from slipstream.core.events import NodeReported
    from slipstream.core.records import JobRecord
    from slipstream.core.seats import Crowd
    from slipstream.core.sights import GpuUse, JobSight, NodeSight, Request

_USE_STEP_PCT: Final = 10
"""Use within one of these counts as equal: it is noise, and advice should not follow noise."""
_MEMORY_PARTS: Final = 64
"""Of a GPU's memory, what counts as equal."""


def felt(report: NodeReported | None) -> Hashable:
    """What decisions see of a report: two that are felt alike decide alike."""
    if report is None:
        return None
    return (
        tuple(
            (
                _use(gpu),
                _memory(gpu),
                gpu.memory_mib,
                gpu.takes_guests,
                gpu.owner_job,
                *gpu.guest_jobs,
            )
            for gpu in report.gpus
        ),
        tuple((job.ref, job.restorable) for job in report.jobs),
        report.packed,
    )


def node_seen(
    node: NodeSight,
    crowd: Crowd,
    requests: Mapping[str, Request],
    report: NodeReported | None,
    at_s: float,
) -> NodeSeen:
    """All of one node."""
    uses = report.gpus if report else ()
    owners = owners_of(node, crowd.owners, uses)
    shut = shut_gpus(owners, requests, report.gpus if report else None)
    guests = guests_of(node, crowd.guests, uses, shut, crowd.upgraded)
    measured = {gpu.index: gpu for gpu in uses}
    restorable = {job.ref for job in report.jobs if job.restorable} if report else set()
    gpus = []
    for index in range(node.gpus):
        use = measured.get(index)
        gpus.append(
            GpuSeen(
                use_pct=float(_use(use)) if use else None,
                memory_used_mib=_memory(use) if use else 0,
                takes_guests=index not in shut,
            )
        )
    held: dict[str, tuple[JobRecord | None, list[int]]] = {}
    for index in sorted(owners):
        owner = owners[index]
        key = owner.key if owner else f"{node.name}?{index}"
        held.setdefault(key, (owner, []))[1].append(index)
    sitters = [
        _sitter(key, one, tuple(at), Role.OWNER, requests, restorable, _alone(one, at, measured))
        for key, (one, at) in held.items()
    ]
    sitters += [
        _sitter(
            record.key if record else f"{node.name}?guest{number}",
            record,
            at,
            Role.GUEST,
            requests,
            restorable,
            None,
        )
        for number, (record, at) in enumerate(guests)
    ]
    return NodeSeen(
        at_s=at_s,
        node=node.name,
        gpus=tuple(gpus),
        memory_mib=max((gpu.memory_mib for gpu in uses), default=0),
        seats=node.slots // node.gpus if node.gpus else 0,
        takes_jobs=node.takes_jobs,
        drained=node.drained,
        sitters=tuple(sitters),
    )


def _sitter(
    key: str,
    record: JobRecord | None,
    gpus: tuple[int, ...],
    role: Role,
    requests: Mapping[str, Request],
    restorable: set[str],
    use_pct: float | None,
) -> Sitter:
    request = requests.get(record.token) if record else None
    sight = record.sight if record else None
    estimate = request.estimate if request and request.estimate else None
    known = estimate if estimate and estimate.is_known else None
    ask = Ask(
        ref=key,
        tenant=(sight.account if sight else "") or (request.account if request else ""),
        gpus=_charged(request, sight, len(gpus), role),
        submitted_at_s=float(sight.submitted_at_s) if sight else 0.0,
        job_class=request.job_class if request else _unknown(role),
        use_pct=use_pct if use_pct is not None else known.gpu_use_pct if known else 0.0,
        memory_mib=(known.gpu_memory_mib if known else 0) or 0,
        family=request.name if request else "",
        restorable=bool(sight and request and request.moves and str(sight.number) in restorable),
        shares=request.shares if request else True,  # whom they keep away is said of their GPUs
        role=role,
    )
    return Sitter(ask, gpus, role, record.since_s if record else 0.0)


def _charged(request: Request | None, sight: JobSight | None, gpus: int, role: Role) -> int:
    """GPUs that count as its own: what an elastic job has beyond what it asked for is borrowed."""
    held = max(gpus, sight.gpus if sight and role is Role.OWNER else 0)
    grown = request is not None and request.size > request.gpus.count
    return min(held, request.gpus.count) if request and grown else held


def _unknown(role: Role) -> JobClass:
    return JobClass.GUARANTEED if role is Role.OWNER else JobClass.OPPORTUNISTIC


def _alone(
    owner: JobRecord | None, indices: Sequence[int], measured: Mapping[int, GpuUse]
) -> float | None:
    """What an owner that is alone on its GPUs uses of them, if somebody measured.

    Of several nodes each would say something else, and the last one would be believed.
    """
    places = owner.sight.gpu_places if owner and owner.sight else ()
    if len({name for name, _ in places}) > 1:
        return None
    here = [measured[index] for index in indices if index in measured]
    if not here or any(gpu.guest_jobs for gpu in here):
        return None
    return sum(map(_use, here)) / len(here)


def _use(gpu: GpuUse) -> int:
    return int(gpu.use_pct // _USE_STEP_PCT) * _USE_STEP_PCT


def _memory(gpu: GpuUse) -> int:
    part_mib = max(1, gpu.memory_mib // _MEMORY_PARTS)
    return -(-gpu.memory_used_mib // part_mib) * part_mib
