# SPDX-License-Identifier: Apache-2.0
"""The node machine at work: seats, pages and NVML go in, what each job may use comes out.

It decides in every mode. Only in `enforce` does anything reach a page; else the log says what would
have been done.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from slipstream.core.classes import JobClass, Mode
from slipstream.core.classes import Role as CoreRole
from slipstream.core.node import events
from slipstream.core.node.commands import Hold, Park, Return, SetCap, SetShare, Unpark
from slipstream.core.node.events import NodeJob, Standing
from slipstream.core.node.machine import NodeMachine
from slipstream.wire.control_block import Capability, Held, Phase, Request, Role

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from slipstream.coordinator.blocks import Block
    from slipstream.coordinator.gangs import Call, Gangs
    from slipstream.coordinator.gpus import GpuSample
    from slipstream.coordinator.joining import Owner
    from slipstream.coordinator.measuring import JobMeter
    from slipstream.coordinator.seats import Seat
    from slipstream.coordinator.tenants import Tenant
    from slipstream.core.node.commands import NodeCommand
    from slipstream.core.node.events import NodeEvent
    from slipstream.core.node.pulse import Guarantee
    from slipstream.core.node.rules import NodeRules

_log = logging.getLogger(__name__)

_MIB: Final = 1 << 20
_HURRY_S: Final = 5.0
"""How long a job may take to the boundary it was hurried to before that is given up."""
_ENDS_WITHIN_S: Final = 2.0
"""How long others wait closely for the process of a training that has ended."""
_AWAY: Final = (Phase.PARKED, Phase.PAUSED)
_WAITS: Final = (Request.PAUSE, Request.PARK, Request.HOLD)
_PARKS: Final = (Request.PARK, Request.HOLD)
_BUSY: Final = frozenset(Phase) - {
    *(Phase.UNCLAIMED, Phase.IMPORTING, Phase.LOADING, Phase.ENDED),
}
_OFF: Final = (Standing.PARKED, Standing.LOADING, Standing.HELD)
_TURNS: Final = (Park, Hold, Return, Unpark)
_CLASSES: Final = {str(one): one for one in JobClass}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a job is to be told."""

    share_pct: int = 100
    cap_bytes: int = 0
    parked: bool = False
    held: bool = False
    """Parked, and it reaches no boundary: it begins no device operation."""
    returns: bool = False
    """Its turn is next: it stands still on its GPUs."""
    hurried_until_s: float = 0.0
    """Its cap cannot wait: it is stopped at its next boundary, for a moment."""


FREE: Final = Wanted()


class Reflexes:
    """One node's machine, its events made of what the coordinator sees."""

    def __init__(self, mode: Mode, rules: NodeRules | None = None) -> None:
        self.mode = mode
        self.off = False
        """The kill switch is thrown: nobody is slowed, and nobody waits for a turn."""
        self.machine = NodeMachine(rules)
        self.commands: Counter[tuple[str, str]] = Counter()
        """How many there were, by kind and reason."""
        self._wanted: dict[int, Wanted] = {}
        self._jobs: dict[int, NodeJob] = {}
        self._gpus: dict[str, int] = {}
        self._reported: dict[int, events.JobReported] = {}
        self._ended_at_s: dict[int, float] = {}
        """Trainings that are over, while their processes are not."""
        self._at_s = 0.0

    @property
    def enforces(self) -> bool:
        """Whether what is decided is carried out."""
        return self.mode is Mode.ENFORCE and not self.off

    @property
    def hurries(self) -> bool:
        """Whether somebody waits for a job to park, to come to its boundary or to be gone."""
        if any(self._at_s < since_s + _ENDS_WITHIN_S for since_s in self._ended_at_s.values()):
            return True
        return any(
            one.hurried_until_s or one.returns or (one.parked and self._is_in_the_way(job))
            for job, one in self._wanted.items()
        )

    def wanted(self, job_id: int, *, is_capped: bool = False) -> Wanted:
        """What a job is to be told; nothing but in `enforce`.

        Switched off, caps are kept: without one a job would fail where its neighbours' memory is.
        For the same reason a job that `is_capped` from a time in which the mode was `enforce` keeps
        its cap in any mode, until the machine would lift it.
        """
        wanted = self._wanted.get(job_id, FREE)
        if self.enforces:
            return wanted
        keeps = is_capped or self.mode is Mode.ENFORCE
        return replace(FREE, cap_bytes=wanted.cap_bytes) if keeps else FREE

    def would_be(self, job_id: int) -> Wanted:
        """What it is to be told, or would be."""
        return self._wanted.get(job_id, FREE)

    def guarantees(self) -> list[Guarantee]:
        """What owners lost to guests; only where guests did as they were told."""
        return self.machine.guarantees() if self.enforces else []

    def pairs(self) -> list[dict[str, Any]]:
        """What the scheduler hears of guests that share a GPU nobody owns, once measured."""
        return [
            {
                "jobs": list(one.jobs),
                "rates": [round(rate, 3) for rate in one.rates],
                "apart": one.apart,
            }
            for one in (self.machine.packings.verdicts() if self.enforces else ())
        ]

    def told(self, job_id: int) -> dict[str, Any]:
        """What the scheduler hears of a job beside how far it is."""
        if job_id not in self.machine.jobs:
            return {}
        wanted = self.would_be(job_id)
        found: dict[str, Any] = {
            "share_pct": 0 if wanted.parked or wanted.returns else wanted.share_pct,
            "cap_mib": wanted.cap_bytes // _MIB,
            "node_reason": str(self.machine.why(job_id)),
        }
        if holder := self.machine.turn_holder(job_id):
            found["turn_holder"] = holder[0]
            found["turn_since_s"] = round(time.time() - (self._at_s - holder[1]), 1)
        for one in self.guarantees():
            if one.job_id == job_id:
                found["guarantee"] = {
                    "guaranteed": one.guaranteed,
                    "alone_ms": round(one.baseline_ms, 3),
                    "slowdown_pct": round(one.slowdown_pct, 2),
                    "error_pct": round(one.error_pct, 2),
                }
        return found

    # --- in -------------------------------------------------------------------------------------

    def seated(self, at_s: float, gpus: Iterable[GpuSample], jobs: Iterable[NodeJob]) -> None:
        """Who is here now, and on which GPUs."""
        there = {gpu.uuid: gpu.memory_mib for gpu in gpus}
        for uuid in sorted(self._gpus.keys() - there.keys()):
            self._tell(events.GpuLost(at_s, uuid))
        for uuid, memory_mib in there.items():
            if self._gpus.get(uuid) != memory_mib:
                self._tell(events.GpuFound(at_s, uuid, memory_mib))
        self._gpus = there
        now = {job.job_id: job for job in jobs}
        for job_id in sorted(self._jobs.keys() - now.keys()):
            self._wanted.pop(job_id, None)
            self._reported.pop(job_id, None)
            self._tell(events.JobLeft(at_s, job_id))
        before, self._jobs = self._jobs, now
        for job_id in sorted(now):
            if before.get(job_id) != now[job_id]:
                self._tell(events.JobArrived(at_s, now[job_id]))

    def heard(
        self,
        at_s: float,
        pages: Mapping[int, Sequence[Block]],
        gpus: Sequence[GpuSample],
        meters: Mapping[int, JobMeter] | None = None,
    ) -> None:
        """How far everybody is; what has not changed is told only of whom somebody waits for."""
        measured = meters or {}
        self._at_s = at_s
        self._ended_at_s = {
            job_id: self._ended_at_s.get(job_id, at_s)
            for job_id in self._jobs
            if _is_over(pages.get(job_id, ()))
        }
        for job_id in self._jobs:
            told = report(at_s, job_id, pages.get(job_id, ()), gpus, measured.get(job_id))
            before = self._reported.get(job_id)
            # Somebody waits for it: where it is already, it says so again.
            asked = self.machine.wheel.waits_for(job_id)
            if asked or before is None or replace(before, at_s=at_s) != told:
                self._reported[job_id] = told
                self._tell(told)
            self._calm(at_s, job_id, pages.get(job_id, ()))
        due_s = self.machine.wakes_at_s()
        if due_s is not None and due_s <= at_s:
            self._tell(events.TimerFired(at_s))

    def called(self, at_s: float, calls: Mapping[int, Call]) -> None:
        """What the leaders of gangs on other nodes have decided about their turns here."""
        for job_id, call in sorted(calls.items()):
            member = self.machine.wheel.members.get(job_id)
            said = (call.runs, call.returns and not call.runs)
            if member and (member.called, member.called_back) != said:
                told = events.TurnCalled(at_s, job_id, runs=said[0], returns=said[1])
                self._tell(told)

    def ordered(self, at_s: float, parked: Collection[int]) -> None:
        """Whom operators have parked; told until it is so: a job may come after its order."""
        for job_id in sorted(self._jobs):
            if self.machine.is_ordered_away(job_id) != (job_id in parked):
                self._tell(events.ParkOrdered(at_s, job_id, parked=job_id in parked))

    def _calm(self, at_s: float, job_id: int, pages: Sequence[Block]) -> None:
        """A job that was hurried to its boundary is there, or was given time enough."""
        wanted = self._wanted.get(job_id, FREE)
        if not wanted.hurried_until_s:
            return
        busy = [page for page in pages if page.progress.phase in _BUSY]
        stands = all(page.progress.phase in _AWAY and heard_all(page) for page in busy)
        if stands or at_s >= wanted.hurried_until_s:
            self._wanted[job_id] = replace(wanted, hurried_until_s=0.0)

    def _is_in_the_way(self, job_id: int) -> bool:
        """Whether it uses its GPUs, or still has memory there."""
        told = self._reported.get(job_id)
        return told is not None and told.standing not in _OFF

    # --- out ------------------------------------------------------------------------------------

    def _tell(self, event: NodeEvent) -> None:
        for command in self.machine.handle(event):
            self._take(command, event.at_s)

    def _take(self, command: NodeCommand, at_s: float) -> None:
        before = self._wanted.get(command.job_id, FREE)
        match command:
            case SetShare():
                after = replace(before, share_pct=command.share_pct)
            case SetCap():
                until_s = at_s + _HURRY_S if command.at_once else before.hurried_until_s
                after = replace(before, cap_bytes=command.cap_mib * _MIB, hurried_until_s=until_s)
            case Park():
                after = replace(before, parked=True, returns=False)
            case Hold():
                after = replace(before, parked=True, held=True, returns=False)
            case Return():
                after = replace(before, parked=False, held=False, returns=True)
            case Unpark():
                after = replace(before, parked=False, held=False, returns=False)
        self._wanted[command.job_id] = after
        kind = type(command).__name__.lower()
        self.commands[kind, str(command.reason)] += 1
        said = "" if self.enforces else "would be: "
        level = logging.INFO if isinstance(command, _TURNS) else logging.DEBUG
        _log.log(level, "%s%s", said, command)


def node_jobs(
    seats: Mapping[int, Seat],
    tenants: Mapping[int, Tenant],
    owned: Mapping[str, Owner],
    gangs: Gangs,
    *,
    hooked: Iterable[int],
) -> list[NodeJob]:
    """The jobs of a node as its machine knows them.

    An owner without hooks that takes guests all the same, as the site says, cannot be protected
    and is left out.
    """
    attached = set(hooked)
    held: dict[int, list[str]] = {}
    takes: dict[int, bool] = {}
    for uuid, owner in sorted(owned.items()):
        held.setdefault(owner.job_id, []).append(uuid)
        takes[owner.job_id] = owner.takes_guests
    found = []
    for job_id, uuids in held.items():
        is_hooked = takes[job_id] and job_id in attached
        if is_hooked or not takes[job_id]:
            job_class = _class_of(seats.get(job_id), JobClass.GUARANTEED)
            found.append(
                _job(job_id, job_class, CoreRole.OWNER, uuids, is_hooked, tenants.get(job_id))
            )
    for job_id, seat in seats.items():
        if seat.role == Role.GUEST and seat.tasks and seat.gpu_uuids and job_id not in held:
            job_class = _class_of(seat, JobClass.OPPORTUNISTIC)
            # One that takes turns is held before it has attached its hooks.
            found.append(
                _job(
                    *(job_id, job_class, CoreRole.GUEST, seat.gpu_uuids, True),
                    tenants.get(job_id),
                )
            )
    return [
        replace(one, gang=gangs.nodes(one.job_id), leads=gangs.follows(one.job_id) is None)
        for one in found
    ]


def _job(
    job_id: int,
    job_class: JobClass,
    role: CoreRole,
    uuids: Sequence[str],
    is_hooked: bool,  # noqa: FBT001 (the same)
    tenant: Tenant | None,
) -> NodeJob:
    weight = tenant.carrier.get("weight", "") if tenant else ""
    return NodeJob(
        job_id=job_id,
        job_class=job_class,
        role=role,
        gpus=tuple(uuids),
        hooked=is_hooked,
        weight=min(16, max(1, int(weight))) if weight.isdigit() else 1,
    )


def _class_of(seat: Seat | None, default: JobClass) -> JobClass:
    return _CLASSES.get(seat.class_name, default) if seat else default


def report(
    at_s: float,
    job_id: int,
    pages: Sequence[Block],
    gpus: Sequence[GpuSample],
    meter: JobMeter | None = None,
) -> events.JobReported:
    """A job as its slowest process that trains says; users may write anything into their pages."""
    told = _as_it_trains(at_s, job_id, pages, gpus)
    attached = _at_work(pages)
    held = len(attached) == 1 and _is_held(attached[0])
    stands = told.standing in (Standing.PARKED, Standing.STILL)
    return replace(
        told,
        standing=Standing.HELD if held and not stands else told.standing,
        resident_mib=meter.resident_mib if meter else told.memory_mib,
        quiet_since_s=meter.quiet_since_s if meter else None,
        can_hold=_can_hold(attached, meter),
        wants_gpu=not held or attached[0].progress.held >= Held.WAITED_FOR,
    )


def _at_work(pages: Sequence[Block]) -> list[Block]:
    """Those that train, or those that load: a launcher (torchrun) has a page and loads for ever."""
    loading = [page for page in pages if page.progress.phase == Phase.LOADING]
    return [page for page in pages if page.progress.phase in _BUSY] or loading


def _can_hold(attached: Sequence[Block], meter: JobMeter | None) -> bool:
    """Whether all of a job would stand still: one process, and no other of it on a GPU.

    Ranks are not held: one may have begun a collective that another is kept from, and those have
    time limits.
    """
    if len(attached) != 1 or Capability.HOLDABLE not in attached[0].progress.capabilities:
        return False
    return meter is None or meter.gpu_pids <= {attached[0].progress.pid}


def _is_held(page: Block) -> bool:
    """Whether it begins no device operation, as it is asked."""
    return page.directive.request == Request.HOLD and page.progress.held != Held.NO


def _as_it_trains(
    at_s: float, job_id: int, pages: Sequence[Block], gpus: Sequence[GpuSample]
) -> events.JobReported:
    busy = [page for page in pages if page.progress.phase in _BUSY]
    if not busy:
        return events.JobReported(
            at_s=at_s,
            job_id=job_id,
            standing=Standing.LOADING,
            is_starting=_is_starting([page.progress.phase for page in pages]),
        )
    slowest = min(busy, key=lambda page: page.progress.minibatches).progress
    away_ns = slowest.saving_ns + slowest.baton_waited_ns + slowest.parked_ns + slowest.paused_ns
    pids = {page.progress.pid for page in busy}
    held = [sum(mib for pid, mib in gpu.processes if pid in pids) for gpu in gpus]
    return events.JobReported(
        at_s=at_s,
        job_id=job_id,
        standing=_standing(busy),
        minibatches=slowest.minibatches,
        boundary_at_s=slowest.last_boundary_ns / 1e9,
        away_s=away_ns / 1e9,
        memory_mib=max(held, default=0),
        spilled_mib=max(page.progress.away_bytes for page in busy) // _MIB,
    )


def _is_starting(phases: Sequence[int]) -> bool:
    """Whether all of it is before the end of torch's import, after which it looks at its page."""
    return Phase.IMPORTING in phases and all(one <= Phase.IMPORTING for one in phases)


def _is_over(pages: Sequence[Block]) -> bool:
    """Whether all that trained have ended; a launcher (torchrun) is there for a while longer."""
    busy = any(page.progress.phase in _BUSY for page in pages)
    return not busy and any(page.progress.phase == Phase.ENDED for page in pages)


def _standing(busy: Sequence[Block]) -> Standing:
    """Off the GPU counts only what has heard the latest: who was just called back may be late."""
    told = [page.progress for page in busy]
    if all(_is_off(page) for page in busy):
        return Standing.PARKED
    if all(one.phase in _AWAY for one in told):
        return Standing.STILL
    return Standing.TRAINING if min(one.minibatches for one in told) else Standing.LOADING


def _is_off(page: Block) -> bool:
    """Whether it is off the GPU and stays there: who has heard that it may go on is on its way."""
    told, asked = page.progress, page.directive.request
    held_before_use = told.phase == Phase.PAUSED and not told.minibatches and asked in _WAITS
    # One that could not be parked stands still with its memory: nothing more can be had of it.
    emptied = told.phase == Phase.PARKED or Capability.PARKABLE not in told.capabilities
    off = asked in _PARKS and emptied
    return told.phase in _AWAY and (off or held_before_use) and heard_all(page)


def heard_all(page: Block) -> bool:
    """Whether the process has read what it was last asked for."""
    return page.progress.directive_epoch == page.directive.epoch
