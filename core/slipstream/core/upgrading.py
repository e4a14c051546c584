# SPDX-License-Identifier: Apache-2.0
"""A guest becomes the owner of the GPUs it sits on, where it sits: another job holds them. Pure.

What a running job holds of Slurm cannot change. So a small job, the placeholder, takes the GPUs,
and node and scheduler take the guest for their owner while it lives. It is asked for where GPUs and
quota are free, and until it is there, or is not had soon, the guest counts as owner already: nobody
else is given them. Whatever happens to either, the guest trains on, as the guest it is to Slurm.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import Mode
from slipstream.core.commands import GiveBack, Upgrade
from slipstream.core.records import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from slipstream.core.commands import Command
    from slipstream.core.events import CommandRefused
    from slipstream.core.mirror import Mirror
    from slipstream.core.records import JobRecord
    from slipstream.core.sights import NodeSight
    from slipstream.core.state import State

PATIENCE_S: Final = 30.0
"""A placeholder that has not got the guest's GPUs by then is not had."""
AGAIN_S: Final = 600.0
"""Before the same guest is tried again."""
_MOST_ASKED: Final = 4
"""Placeholders that are waited for at one time."""


class Hold(StrEnum):
    """How far an upgrade has come."""

    ASKED = "asked"
    HELD = "held"
    OVER = "over"
    """It was not to be, or is no more: the guest is one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgraded:
    """One guest, the GPUs that are or will be its own, and who holds them for it."""

    key: str
    token: str
    number: str
    run: int
    node: str
    gpus: tuple[int, ...]
    hold: Hold = Hold.ASKED
    since_s: float

    @property
    def counts(self) -> bool:
        """Whether the guest is an owner for all decisions."""
        return self.hold is not Hold.OVER


def wishes(state: State, mirror: Mirror, at_s: float) -> list[Command]:
    """Guests that become owners now, before anybody new is given GPUs; the brain hears of each."""
    commands: list[Command] = []
    if state.mode is not Mode.ENFORCE or not state.advising or state.slurm_away:
        return commands
    while sum(one.hold is Hold.ASKED for one in state.upgrades.values()) < _MOST_ASKED:
        able = (state.jobs.get(key) for key in mirror.upgradable())
        found = (_wish(state, record, at_s) for record in able if record)
        wish = next((one for one in found if one), None)
        if wish is None:
            break
        commands.append(wish)
        mirror.look(state, at_s)
    return commands


def counted(nodes: Mapping[str, NodeSight], state: State) -> dict[str, NodeSight]:
    """The nodes, with GPUs that placeholders were asked for as if these had them."""
    found = dict(nodes)
    for one in state.upgrades.values():
        node = found.get(one.node)
        holder = _holder(state, one) if one.hold is Hold.ASKED else None
        has_it = holder is not None and holder.phase is Phase.RUNNING
        if one.hold is Hold.ASKED and node is not None and not has_it:
            used = min(node.gpus, node.gpus_used + len(one.gpus))
            found[one.node] = replace(node, gpus_used=used)
    return found


def looked(state: State, at_s: float) -> list[Command]:
    """Slurm was looked at: who has got a placeholder, who has lost it, and which are too many."""
    commands: list[Command] = []
    for one in list(state.upgrades.values()):
        if one.counts:
            commands += _followed(state, one, at_s)
    wanted = {one.number for one in state.upgrades.values() if one.counts}
    for record in _placeholders(state):
        number = record.sight.holds_for if record.sight else ""
        if number not in wanted:
            commands.append(GiveBack(record.token, record.key))
        wanted.discard(number)  # one is enough
    return list(dict.fromkeys(commands))


def waited_for(state: State, at_s: float) -> list[Command]:
    """Who may have got a placeholder without a look at Slurm.

    A guest that went to the GPU which is held for it changes nothing there: only its node tells.
    """
    asked = [one for one in state.upgrades.values() if one.hold is Hold.ASKED]
    return [command for one in asked for command in _followed(state, one, at_s)]


def overdue(state: State, at_s: float) -> list[Command]:
    """What was asked for and is not had is given up."""
    late = [one for one in state.upgrades.values() if _is_late(one, at_s)]
    return [command for one in late for command in _over(state, one, at_s, "none was had in time")]


def refused(state: State, event: CommandRefused) -> None:
    """Slurm would not start a placeholder."""
    for one in list(state.upgrades.values()):
        asked = one.token == event.token and one.hold is Hold.ASKED
        if asked and event.concerns(one.key, one.number):
            _over(state, one, event.at_s, event.text)


def due_at_s(state: State) -> list[float]:
    """When to look at those that are waited for."""
    asked = (one for one in state.upgrades.values() if one.hold is Hold.ASKED)
    return [one.since_s + PATIENCE_S for one in asked]


def _wish(state: State, record: JobRecord, at_s: float) -> Command | None:
    sight = record.sight
    gpus = _sits_on(state, record, at_s) if _may(state, record, at_s) else ()
    if sight is None or not gpus or not _has_room(state, record, len(gpus)):
        return None
    one = Upgraded(
        key=record.key,
        token=record.token,
        number=str(sight.number),
        run=sight.submitted_at_s,
        node=sight.nodes[0],
        gpus=gpus,
        since_s=at_s,
    )
    state.upgrades[one.key] = one
    where = f"GPU {_listed(gpus)} of {one.node}"
    state.put(record.noted(at_s, f"is to own {where}: a placeholder is asked for"))
    return Upgrade(
        token=one.token,
        number=one.number,
        node=one.node,
        gpus=len(gpus),
        partition=sight.partition,
        priority=sight.priority,
        ends_at_s=sight.ends_at_s,
    )


def _may(state: State, record: JobRecord, at_s: float) -> bool:
    sight, before = record.sight, state.upgrades.get(record.key)
    if record.phase is not Phase.RUNNING or sight is None or len(sight.nodes) != 1:
        return False
    if record.key in state.moves or record.key in state.parked:
        return False
    return before is None or (before.hold is Hold.OVER and at_s - before.since_s >= AGAIN_S)


def _sits_on(state: State, record: JobRecord, at_s: float) -> tuple[int, ...]:
    """The GPUs of a job of one node, as that tells; none if it does not."""
    assert record.sight is not None  # noqa: S101 (_may has looked)
    (name,) = record.sight.nodes
    report = state.reports.get(name)
    if report is None or report.at_s <= at_s - state.rules.report_s:
        return ()
    number = str(record.sight.number)
    return tuple(
        gpu.index for gpu in report.gpus if number in gpu.guest_jobs or number == gpu.owner_job
    )


def _has_room(state: State, record: JobRecord, gpus: int) -> bool:
    """Whether Slurm has as many GPUs, and a CPU, for a placeholder there."""
    assert record.sight is not None  # noqa: S101 (_may has looked)
    (name,) = record.sight.nodes
    if any(one.hold is Hold.ASKED and one.node == name for one in state.upgrades.values()):
        return False  # which GPU each of two will get nobody knows
    node = state.nodes.get(name)
    if node is None or not node.takes_jobs:
        return False
    return node.gpus - node.gpus_used >= gpus and node.cpus > node.cpus_used


def _followed(state: State, one: Upgraded, at_s: float) -> list[Command]:
    """How an upgrade goes on, by what Slurm shows of the guest and its placeholder."""
    record, holder = state.jobs.get(one.key), _holder(state, one)
    there = (Phase.RUNNING, Phase.SUSPENDED)
    sight = record.sight if record and record.phase in there else None
    if sight is None or sight.nodes != (one.node,) or sight.submitted_at_s != one.run:
        return _over(state, one, at_s, "it runs there no more")
    if _is_taken(state, one):
        return _over(state, one, at_s, "another job has got its GPU")
    if holder is None or holder.sight is None:
        if one.hold is Hold.HELD:
            return _over(state, one, at_s, "its placeholder has ended")
        return []
    held = tuple(sorted(index for _, index in holder.sight.gpu_places))
    if one.hold is Hold.ASKED and holder.phase is Phase.RUNNING:
        here = _sits_on(state, state.jobs[one.key], at_s)
        if held in (one.gpus, here):
            state.upgrades[one.key] = replace(one, gpus=held, hold=Hold.HELD, since_s=at_s)
            text = f"owns GPU {_listed(held)} of {one.node}: job {holder.key} holds it"
            state.put(state.jobs[one.key].noted(at_s, text))
    return []


def _over(state: State, one: Upgraded, at_s: float, why: str) -> list[Command]:
    """It is a guest, and nobody holds a GPU for it."""
    state.upgrades[one.key] = replace(one, hold=Hold.OVER, since_s=at_s)
    record, holder = state.jobs.get(one.key), _holder(state, one)
    if record is not None and record.phase is Phase.RUNNING:
        stays = "stays a guest" if one.hold is Hold.ASKED else "is a guest again"
        state.put(record.noted(at_s, f"{stays}: {why}"))
    return [GiveBack(holder.token, holder.key)] if holder else []


def _is_late(one: Upgraded, at_s: float) -> bool:
    return one.hold is Hold.ASKED and one.since_s + PATIENCE_S <= at_s


def _is_taken(state: State, one: Upgraded) -> bool:
    """Whether Slurm gave its GPU to somebody before its placeholder."""
    theirs = {(one.node, index) for index in one.gpus}
    return any(
        theirs & {*record.sight.gpu_places}
        for record in state.jobs.values()
        if record.sight
        and record.sight.holds_for != one.number
        and record.phase in (Phase.RUNNING, Phase.SUSPENDED, Phase.COMPLETING)
    )


def _holder(state: State, one: Upgraded) -> JobRecord | None:
    return next(
        (job for job in _placeholders(state) if job.sight and job.sight.holds_for == one.number),
        None,
    )


def _placeholders(state: State) -> Iterator[JobRecord]:
    """Those that wait or run; the others hold nothing any more."""
    for key in state.placeholders:
        record = state.jobs.get(key)
        if record and record.phase in (Phase.WAITING, Phase.RUNNING, Phase.SUSPENDED):
            yield record


def _listed(gpus: tuple[int, ...]) -> str:
    return ",".join(map(str, gpus))
