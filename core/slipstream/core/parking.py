# SPDX-License-Identifier: Apache-2.0
"""What operators park, and release: orders that stand until they are taken back. Pure.

Which job is on its GPU is decided on its node, every 100 ms. An operator's word is one more thing
the node's machine is told: here it is kept, and told to the job's first node again and again. A
node that hears nothing of it for a while lets the job go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.core.classes import JobClass, Role
from slipstream.core.reasons import Reason
from slipstream.core.records import Phase

if TYPE_CHECKING:
    from slipstream.core.events import ParkAsked
    from slipstream.core.records import JobRecord
    from slipstream.core.state import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """One order."""

    key: str
    since_s: float
    until_s: float | None = None
    """When it ends by itself; None: when somebody takes it back."""
    why: str = ""


def refusal(state: State, event: ParkAsked) -> Reason | None:
    """Why a job is not parked, or not released; None if it is."""
    if not event.parked:
        return None if event.key in state.parked else Reason.NOT_PARKED
    record = state.jobs.get(event.key)
    if record is not None and record.phase in (Phase.ENDED, Phase.COMPLETING):
        return Reason.TRAINING_OVER
    if record is None or record.phase is not Phase.RUNNING or record.sight is None:
        return Reason.PARKS_ONLY_RUNNING
    if not record.token:
        return Reason.LEFT_TO_SLURM
    return state.why_idle or _against(state, record)


def asked(state: State, event: ParkAsked) -> None:
    """Keep an order, or forget it."""
    if refusal(state, event) is not None:
        return
    if event.parked:
        state.parked[event.key] = Parked(
            key=event.key, since_s=event.at_s, until_s=event.until_s, why=event.why
        )
        state.put(state.jobs[event.key].noted(event.at_s, f"parked by an operator: {event.why}"))
    else:
        _release(state, event.key, event.at_s, f"released: {event.why}")


def overdue(state: State, at_s: float) -> None:
    """An order that was given for so long is over."""
    for one in list(state.parked.values()):
        if one.until_s is not None and one.until_s <= at_s:
            _release(state, one.key, at_s, "released: its time is over")


def due_at_s(state: State) -> list[float]:
    """When orders end by themselves."""
    return [one.until_s for one in state.parked.values() if one.until_s is not None]


def by_node(state: State) -> dict[str, tuple[int, ...]]:
    """The numbers of jobs that stand parked, by the node that decides about each."""
    found: dict[str, list[int]] = {}
    for key in state.parked if state.advising else ():
        record = state.jobs.get(key)
        sight = record.sight if record and record.phase is Phase.RUNNING else None
        if sight and sight.nodes:
            found.setdefault(sight.nodes[0], []).append(sight.number)
    return {node: tuple(sorted(numbers)) for node, numbers in found.items()}


def _against(state: State, record: JobRecord) -> Reason | None:
    """What the job is, and what its node says of it."""
    assert record.sight is not None  # noqa: S101 (refusal has looked)
    request = state.requests[record.token]
    upgraded = state.upgrades.get(record.key)
    shares = request.job_class is JobClass.SHARED
    if not shares and (request.role is Role.OWNER or (upgraded and upgraded.counts)):
        return Reason.PARKS_NO_OWNER
    if record.key in state.moves:
        return Reason.MOVING
    if not shares and len(record.sight.nodes) != 1:
        return Reason.PARKS_ONE_NODE_ONLY
    report = state.reports.get(record.sight.nodes[0])
    number = str(record.sight.number)
    told = [job for job in (report.jobs if report else ()) if job.ref == number and job.minibatch]
    if report is None or not told:
        return Reason.PARKS_ONLY_TRAINING
    if all(job.phase == "ended" for job in told):
        return Reason.TRAINING_OVER
    return None if report.enforces else Reason.PARKS_NOT_THERE


def _release(state: State, key: str, at_s: float, text: str) -> None:
    del state.parked[key]
    if record := state.jobs.get(key):
        state.put(record.noted(at_s, text))
