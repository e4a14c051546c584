# SPDX-License-Identifier: Apache-2.0
"""What the machine knows, as plain data for the API. Pure; units in the names."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from slipstream.core import attaching, packing
from slipstream.core.answers import estimated
from slipstream.core.classes import JobClass, Role
from slipstream.core.figures import Figures, taken
from slipstream.core.node.reasons import SENTENCE as NODE_SENTENCE
from slipstream.core.node.reasons import NodeReason
from slipstream.core.placement import need_of
from slipstream.core.reasons import SENTENCE, Reason, from_slurm
from slipstream.core.records import Phase
from slipstream.core.seats import Crowd, crowds, holders, owners_of, shut_gpus
from slipstream.core.sights import Training
from slipstream.core.upgrading import Hold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.core.parking import Parked
    from slipstream.core.records import JobRecord
    from slipstream.core.sights import NodeSight, Request
    from slipstream.core.state import State

View = dict[str, Any]
_MOST_NODES_EXPLAINED: Final = 8
NODE_REASONS: Final = frozenset(map(str, NodeReason))


def job(state: State, record: JobRecord, training: Training | None) -> View:
    """One job, with what its hooks told."""
    sight = record.sight
    request = state.requests.get(record.token)
    advice = state.advice.get(record.advice_key)
    waits = record.phase in (Phase.WAITING, Phase.SUBMITTED)
    need = need_of(request) if request else None
    return {
        "job": sight.ref if sight else None,
        "token": record.token or None,
        "name": sight.name if sight else (request.name if request else ""),
        "user": sight.user if sight else "",
        "uid": sight.uid if sight else (request.uid if request else None),
        "account": sight.account if sight else (request.account if request else ""),
        "partition": sight.partition if sight else (request.partition if request else ""),
        "priority": sight.priority if sight else 0,
        "submitted_at_s": sight.submitted_at_s if sight else record.since_s,
        "class": request.job_class if request else None,
        "role": role_of(state, record),
        "gpus_asked": f"{request.gpus.per}:{request.gpus.count}" if request else None,
        "gpus_in_all": need.seats_in_all if need else None,
        "estimate": _estimate(request),
        "elastic": list(request.elastic) if request and request.elastic else None,
        "gpus": sight.gpus if sight else 0,
        "slots": sight.slots if sight else 0,
        "phase": record.phase,
        "state": state_of(state, record, training),
        "since_s": record.since_s,
        "reason": reason_of(state, record),
        "slurm_reason": sight.slurm_reason if sight else "",
        "nodes": list(sight.nodes) if sight else [],
        "advised_nodes": list(advice.nodes) if advice and waits else [],
        "training": _progress(training, state.figures.get(record.key)),
    }


WAITS_FOR_TURN: Final = "waits_for_turn"
PAUSED: Final = "paused"
PARKED: Final = "parked"
NOT_ATTACHED: Final = "not_attached"
"""Shown for a job whose processes train or use the GPU without our hooks."""
STANDS_STILL: Final = (WAITS_FOR_TURN, PAUSED, PARKED)
"""What a job that runs for Slurm may do instead of running."""
_TURNS: Final = frozenset(
    {
        *(NodeReason.WAITS_FOR_TURN, NodeReason.NEXT_TURN, NodeReason.HIGHER_PRIORITY),
        *(NodeReason.GANG_CALLED, NodeReason.TAKEN_APART),
        *(NodeReason.HELD_IDLE, NodeReason.HELD_BUSY),
    }
)


def state_of(state: State, record: JobRecord, training: Training | None) -> str:
    """Its phase, but for a job that has its place in Slurm and stands still there.

    `waits_for_turn`: another job has the GPU for now. `parked`: its GPU memory is in host memory,
    by an operator's order or for an owner. `paused`: it stands still with its memory in place.
    """
    if record.phase is not Phase.RUNNING or training is None:
        return record.phase
    does = training.phase
    if does not in ("paused", "parked", "waiting_for_baton"):
        return record.phase
    if record.key in state.parked or training.node_reason == NodeReason.OPERATOR:
        return PARKED if does == "parked" else PAUSED
    if does == "waiting_for_baton" or training.node_reason in _TURNS:
        return WAITS_FOR_TURN
    return PARKED if does == "parked" else PAUSED


def reason_of(state: State, record: JobRecord) -> Reason:
    """As the machine has it, or that an operator has parked it: to Slurm it runs."""
    parked = record.key in state.parked and record.phase is Phase.RUNNING
    return Reason.PARKED if parked else record.reason


def role_of(state: State, record: JobRecord) -> Role | None:
    """As what it counts: a guest whose GPUs are held for it owns them."""
    request, upgraded = state.requests.get(record.token), state.upgrades.get(record.key)
    if request is None:
        return None
    return Role.OWNER if upgraded and upgraded.hold is Hold.HELD else request.role


def _estimate(request: Request | None) -> View | None:
    """What is known of a job before it has run."""
    estimate = request.estimate if request else None
    if estimate is None or not estimate.is_known:
        return None
    names = ("gpu_use_pct", "gpu_memory_mib", "run_s")
    return {name: getattr(estimate, name) for name in names}


def why(state: State, name: str) -> View | None:
    """All there is to say about one job, by its number or its token; None if nobody knows it.

    The task of an array is known by 12_3 and by Slurm's own number of it, as in 15. An array's
    number stands for its first task that is known.
    """
    record = _named(state, name)
    if record is None:
        return None
    advice = state.advice.get(record.advice_key)
    sight = record.sight
    request = state.requests.get(record.token)
    estimate = request.estimate if request else None
    return {
        **job(state, record, training_of(state).get(str(sight.number)) if sight else None),
        "sentence": SENTENCE[reason_of(state, record)],
        "estimate": {**asdict(estimate), "text": estimated(estimate)} if estimate else None,
        "stands_for": _stands_for(state, record),
        "because": _because(state, record),
        "slurm_says": _slurm_says(record),
        "slurm_text": sight.slurm_text if sight else "",
        "advice": None
        if advice is None
        else {
            "nodes": list(advice.nodes),
            "tasks_per_node": advice.tasks_per_node,
            "strength": advice.strength,
            "until_s": advice.until_s,
        },
        "story": [{"at_s": line.at_s, "text": line.text} for line in record.story],
    }


def nodes(state: State) -> list[View]:
    """Every node with its GPUs."""
    owners = {
        place: record.key for place, record in holders(state.jobs.values(), state.upgrades).items()
    }
    refs = {str(one.sight.number): one.key for one in state.jobs.values() if one.sight}
    return [_node(state, state.nodes[name], owners, refs) for name in sorted(state.nodes)]


def mode(state: State) -> View:
    """What is carried out."""
    return {
        "mode": state.mode,
        "switched_off": state.switched_off,
        "advising": state.advising,
        "slurm_away": state.slurm_away,
    }


def training_of(state: State) -> dict[str, Training]:
    """What hooks told, by the number the nodes know a job by; of several nodes the slowest."""
    told = [one for report in state.reports.values() for one in report.jobs]
    told.sort(key=lambda one: -(one.minibatch or 0))
    return {one.ref: one for one in told}


def _progress(training: Training | None, figures: Figures | None) -> View | None:
    """What a job does now, and its totals over all its starts; those stay when it has ended."""
    if training is None and figures is None:
        return None
    now = training or Training(ref="", phase="ended")
    kept = figures or taken(Figures(key=""), "", now)
    total = kept.total
    trained = kept.launch_s is not None
    return {
        "phase": now.phase,
        "minibatch": total.minibatches,
        "minibatches_again": total.again,
        "minibatch_ms": now.minibatch_ms or kept.minibatch_ms,
        "import_s": kept.import_s,
        "launch_s": kept.launch_s,
        "train_s": total.train_s if trained else None,
        "save_s": total.save_s if trained else None,
        "restorable": now.restorable if training else kept.restorable,
        "waited_s": total.waited_s,
        "parked_s": total.parked_s,
        "starts": total.starts,
        "moves": total.moves,
        "share_pct": now.share_pct,
        "share_mean_pct": total.share_pct,
        "cap_mib": now.cap_mib,
        "node_reason": now.node_reason or None,
        "node_sentence": _node_sentence(now),
        "turn_holder": now.turn_holder,
        "turn_since_s": now.turn_since_s,
        "unattached": kept.unattached or None,
        "unattached_sentence": attaching.sentence(kept.unattached) if kept.unattached else None,
        "alone_ms": kept.alone_ms,
        "slowdown_pct": kept.slowdown_pct,
        "slowdown_error_pct": kept.slowdown_error_pct,
        "gpu_memory_mib": kept.gpu_memory_mib,
        "gpu_use_pct": kept.gpu_use_pct,
    }


def _node_sentence(training: Training) -> str | None:
    """A coordinator of a later version may have reasons that this one has no sentence for."""
    known = training.node_reason in NODE_REASONS
    return NODE_SENTENCE[NodeReason(training.node_reason)] if known else None


def _because(state: State, record: JobRecord) -> list[str]:
    """More about a reason, where there is more to tell."""
    if reason_of(state, record) is Reason.PARKED:
        return _order(state.parked[record.key])
    if record.reason is Reason.NO_GUEST_SEAT:
        return [*_against_guests(state), *packing.against(state, record)]
    return _quota(state, record) if record.reason is Reason.OVER_QUOTA else []


def _order(parked: Parked) -> list[str]:
    """Why it was parked, and for how long if that was said."""
    minutes = ((parked.until_s or parked.since_s) - parked.since_s) / 60
    return [parked.why, f"for {minutes:.0f} min"] if minutes else [parked.why]


def _quota(state: State, record: JobRecord) -> list[str]:
    """What an account has, and what its jobs own of it."""
    request = state.requests[record.token]
    shares = dict(state.rules.shares)
    gpus = sum(node.gpus for node in state.nodes.values() if node.takes_jobs)
    quota = int(gpus * shares.get(request.account, 0.0) / max(1e-9, sum(shares.values())))
    owned = 0
    for one in {
        other.key: other for other in holders(state.jobs.values(), state.upgrades).values()
    }.values():
        asked = state.requests.get(one.token)
        shared = asked is not None and asked.job_class is JobClass.SHARED
        if one.sight and one.sight.account == request.account and not shared:
            owned += one.sight.gpus
    return [f"account {request.account or 'none'}: {owned} of {quota} GPUs"]


def _against_guests(state: State) -> list[str]:
    """What each node has against guests now."""
    here = crowds(state.jobs.values(), state.requests, state.upgrades)
    told = []
    for name, node in sorted(state.nodes.items()):
        report = state.reports.get(name)
        held = owners_of(node, here.get(name, Crowd()).owners, report.gpus if report else ())
        why = shut_gpus(held, state.requests, report.gpus if report else None)
        for gpu in report.gpus if report else ():
            if gpu.use_pct >= state.rules.guest_below_pct:
                why.setdefault(gpu.index, f"GPU {gpu.index} is used {gpu.use_pct:.0f} %")
        if why:
            told.append(f"{name}: {', '.join(dict.fromkeys(why[at] for at in sorted(why)))}")
    more = len(told) - _MOST_NODES_EXPLAINED
    return told[:_MOST_NODES_EXPLAINED] + ([f"{more} more nodes"] if more > 0 else [])


def _node(
    state: State,
    node: NodeSight,
    owners: Mapping[tuple[str, int], str],
    refs: Mapping[str, str],
) -> View:
    """Jobs by Slurm's own names: owners as Slurm has them, for plain jobs are known to it alone."""
    report = state.reports.get(node.name)
    return {
        "node": node.name,
        "state": node.state,
        "takes_jobs": node.takes_jobs,
        "gpus": node.gpus,
        "gpus_used": node.gpus_used,
        "slots": node.slots,
        "slots_used": node.slots_used,
        "cpus": node.cpus,
        "cpus_used": node.cpus_used,
        "reported_at_s": report.at_s if report else None,
        "devices": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "use_pct": gpu.use_pct,
                "memory_used_mib": gpu.memory_used_mib,
                "memory_mib": gpu.memory_mib,
                "owner_job": owners.get(
                    (node.name, gpu.index), refs.get(gpu.owner_job or "", gpu.owner_job)
                ),
                "guest_jobs": [refs.get(job, job) for job in gpu.guest_jobs],
                "takes_guests": gpu.takes_guests,
            }
            for gpu in (report.gpus if report else ())
        ],
    }


def _named(state: State, name: str) -> JobRecord | None:
    """By its number or token; an array's number stands for its first task that is known.

    Slurm's own number of a task comes last: an array's number is also that of one of its tasks.
    """
    if found := state.jobs.get(name):
        return found
    tasks = [one for key, one in state.jobs.items() if key.startswith(f"{name}_")]
    first = min([*tasks, *state.with_token(name)], key=by_number, default=None)
    return first or state.numbered(name)


def _stands_for(state: State, record: JobRecord) -> str:
    """What a guest that its node has stopped waits for; nothing if it goes on."""
    number = str(record.sight.number) if record.sight else ""
    owners = holders(state.jobs.values(), state.upgrades)
    for node, report in sorted(state.reports.items()):
        if not any(job.ref == number and job.phase == "paused" for job in report.jobs):
            continue
        for gpu in report.gpus:
            if number in gpu.guest_jobs and not gpu.takes_guests:
                holder = owners.get((node, gpu.index))
                owner = holder.key if holder else gpu.owner_job
                return f"GPU {gpu.index} of {node}: its owner, job {owner}, takes no guests"
    return ""


def _slurm_says(record: JobRecord) -> str:
    """Slurm's own reason for a job that waits, with what it means if it is more than a queue."""
    sight = record.sight
    if sight is None or record.phase is not Phase.WAITING or not sight.slurm_reason:
        return ""
    meaning = from_slurm(sight.slurm_reason)
    if meaning is None or meaning is Reason.SLURM_ONLY or meaning is record.reason:
        return sight.slurm_reason
    return f"{sight.slurm_reason}: {SENTENCE[meaning]}"


def by_number(record: JobRecord) -> tuple[int, ...]:
    """12 before 12_3 before 100; announced jobs last."""
    if record.sight is None:
        return (1, int(record.since_s))
    return (0, *(int(part) for part in record.key.split("_")))
