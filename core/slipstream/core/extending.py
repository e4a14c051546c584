# SPDX-License-Identifier: Apache-2.0
"""Time that a job stood still or was held back for others is given back to its limit. Pure.

A guest yields to owners, a `shared` job to its peers: Slurm's clock runs on meanwhile. Nodes tell
for how long; shortly before the limit Slurm is asked for another one. It is an absolute one, so
that to ask twice is the same as once; what Slurm has not done is asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import JobClass, Mode, Role
from slipstream.core.commands import Extend
from slipstream.core.records import Phase

if TYPE_CHECKING:
    from slipstream.core.commands import Command
    from slipstream.core.events import CommandRefused, NodeReported
    from slipstream.core.records import JobRecord
    from slipstream.core.state import State

SOON_S: Final = 600.0
"""Only jobs so near to their limit are given more: most end before that."""
_MINUTE_S: Final = 60
"""Slurm counts limits in minutes."""
_AGAIN_S: Final = 60.0
"""Between two requests for one job."""
_REFUSED_S: Final = 600.0
"""After one that was refused: its partition has a longest time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """For how long one run of a job has waited for others, and what of it was given back."""

    key: str
    run: int
    """When Slurm took it for submitted: a requeued job's clock begins anew."""
    node: str
    told_s: float = 0.0
    """What its node last told: a coordinator that was started anew counts from 0."""
    owed_s: float = 0.0
    given_s: int = 0
    from_s: int = 0
    """The limit that was to be extended last; while Slurm shows it, that was not done."""
    more_s: int = 0
    asked_at_s: float = 0.0


def reported(state: State, report: NodeReported) -> list[Command]:
    """A node tells how long its jobs have waited: one near its limit is given that."""
    commands: list[Command] = []
    for job in report.jobs:
        record = state.numbered(job.ref) if job.waited_s > 0.0 else None
        if record is None or not _counts(state, record, report.node):
            continue
        wait = _longer(state, record, report.node, job.waited_s)
        state.waits[record.key] = wait
        if state.advising and state.mode is Mode.ENFORCE and not state.slurm_away:
            commands += _extended(state, record, wait, report.at_s)
    return commands


def refused(state: State, event: CommandRefused) -> None:
    """Slurm would not, or must not: its limit is what it was, and stays so for a while."""
    for record in list(state.with_token(event.token)):
        wait = state.waits.get(record.key)
        if wait and wait.more_s and event.concerns(record.key):
            later_s = event.at_s + _REFUSED_S - _AGAIN_S
            state.waits[record.key] = replace(wait, asked_at_s=later_s)
            text = f"its time limit stays: {event.text}"
            state.put(record.explained(record.reason, event.at_s, text))


def _counts(state: State, record: JobRecord, node: str) -> bool:
    """Whether it yields to others; of a gang, which waits in step, its first node counts."""
    request = state.requests.get(record.token)
    if request is None or record.sight is None or record.phase is not Phase.RUNNING:
        return False
    yields = request.role is Role.GUEST or request.job_class is JobClass.SHARED
    return yields and record.sight.nodes[:1] == (node,)


def _longer(state: State, record: JobRecord, node: str, waited_s: float) -> Wait:
    assert record.sight is not None  # noqa: S101 (_counts has looked)
    run = record.sight.submitted_at_s
    wait = state.waits.get(record.key)
    if wait is None or wait.run != run:
        wait = Wait(key=record.key, run=run, node=node)
    goes_on = wait.node == node and waited_s >= wait.told_s
    more_s = waited_s - wait.told_s if goes_on else waited_s
    return replace(wait, node=node, told_s=waited_s, owed_s=wait.owed_s + more_s)


def _extended(state: State, record: JobRecord, wait: Wait, at_s: float) -> list[Command]:
    """Ask for what is owed, in whole minutes."""
    sight = record.sight
    if sight is None or sight.time_limit_s is None or sight.ends_at_s is None:
        return []
    if at_s - wait.asked_at_s < _AGAIN_S or sight.ends_at_s - at_s > SOON_S:
        return []
    limit_s = sight.time_limit_s
    # What was asked for and is not so was lost, or refused.
    given_s = wait.given_s - (wait.more_s if limit_s == wait.from_s else 0)
    owed_s = wait.owed_s - given_s
    if owed_s < state.rules.extend_from_s:
        return []
    more_s = _MINUTE_S * -int(-owed_s // _MINUTE_S)
    state.waits[record.key] = replace(
        wait, given_s=given_s + more_s, from_s=limit_s, more_s=more_s, asked_at_s=at_s
    )
    text = (
        f"waited {wait.owed_s:.0f} s for others in all: "
        f"its time limit becomes {(limit_s + more_s) // _MINUTE_S} min"
    )
    state.put(record.noted(at_s, text))
    return [Extend(record.token, record.key, wait.run, limit_s + more_s)]
