# SPDX-License-Identifier: Apache-2.0
"""`auto` jobs that have waited too long for GPUs become guests, if the brain has a seat. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import JobClass, Mode, Per, Role
from slipstream.core.commands import MakeGuest
from slipstream.core.placement import Placement, need_of
from slipstream.core.reasons import Reason
from slipstream.core.records import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slipstream.core.commands import Command
    from slipstream.core.placement import Need
    from slipstream.core.planning import Verdict
    from slipstream.core.state import State

_AGAIN_S: Final = 60.0
"""After a swap that Slurm has not shown yet."""
_FOR_WANT_OF_GPUS: Final = (Reason.NO_FREE_GPU, Reason.OVER_QUOTA)


def swaps(
    state: State,
    verdicts: Iterable[Verdict],
    probe: Callable[[Need], Placement | Reason],
    at_s: float,
) -> tuple[list[Command], float | None]:
    """Who is a guest from now on; and when the next one has waited long enough."""
    commands: list[Command] = []
    due_s: float | None = None
    if not state.advising or state.mode is not Mode.ENFORCE or state.slurm_away:
        return commands, due_s
    for verdict in verdicts:
        record = verdict.record
        if verdict.found not in _FOR_WANT_OF_GPUS or not _may(state, verdict):
            continue
        long_s = record.since_s + state.rules.guest_after_s
        long_s = max(long_s, state.swapped.get(record.key, long_s - _AGAIN_S) + _AGAIN_S)
        if long_s > at_s:
            due_s = long_s if due_s is None else min(due_s, long_s)
            continue
        request = state.requests[record.token]
        need = need_of(request, record.sight)
        if need and isinstance(probe(replace(need, role=Role.GUEST)), Placement):
            state.swapped[record.key] = at_s
            waited = f"waited {at_s - record.since_s:.0f} s for GPUs: asks for guest seats"
            state.put(state.jobs[record.key].noted(at_s, waited))
            commands.append(MakeGuest(record.token, record.key, request.gpus.count))
    return commands, due_s


def _may(state: State, verdict: Verdict) -> bool:
    """Tasks of an array are left: what is said of one would be said of all."""
    record, request = verdict.record, state.requests[verdict.record.token]
    return (
        record.phase is Phase.WAITING
        and record.task is None
        and request.job_class is JobClass.AUTO
        and request.role is Role.OWNER
        and request.may_be_guest
        and request.gpus.per is Per.NODE
    )
