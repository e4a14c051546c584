# SPDX-License-Identifier: Apache-2.0
"""What each job of this node has taken so far: for the history that estimates are made from.

Everything is a total, a peak or a mean since the job was first seen, so that a report that is lost
costs nothing while another one follows. After a restart of this daemon the kernel and the pages
still tell most of it, and means go on from then.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from slipstream.wire.control_block import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from slipstream.coordinator.blocks import Block
    from slipstream.coordinator.gpus import ProcessUse
    from slipstream.coordinator.processes import ProcFs
    from slipstream.coordinator.seats import Seat, Task
    from slipstream.wire.control_block import Progress

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_MIB: Final = 1 << 20
_YOUNG_S: Final = 20.0
_OFTEN_S: Final = 0.1
_SELDOM_S: Final = 2.0
"""A young job is looked at at each tick: it may be a short one."""
_MOST_PROCESSES: Final = 1024
_MOST_WAITING: Final = 600
_LONGEST_TICK_S: Final = 5.0
"""More than that between two looks is no waiting: this daemon was stopped."""
_WAITS: Final = {Phase.PAUSED, Phase.PARKED, Phase.WAITING_FOR_BATON}
_NOT_YET_OR_OVER: Final = {Phase.UNCLAIMED, Phase.IMPORTING, Phase.LOADING, Phase.ENDED}


@dataclass(slots=True)
class _Spread:
    """Mean and spread of samples of different lengths."""

    weight_s: float = 0.0
    sum: float = 0.0
    squares: float = 0.0

    def add(self, value: float, length_s: float) -> None:
        self.weight_s += length_s
        self.sum += value * length_s
        self.squares += value * value * length_s

    @property
    def mean(self) -> float:
        return self.sum / self.weight_s

    @property
    def spread(self) -> float:
        return sqrt(max(0.0, self.squares / self.weight_s - self.mean**2))


class _Sample(NamedTuple):
    """GPU use from one moment to another."""

    use_pct: float
    from_ns: int
    to_ns: int


@dataclass(slots=True)
class _Wire:
    """What the node sent while the job trained."""

    began_s: float
    began_bytes: int
    boundary_ns: int
    """The latest when this was told."""
    seconds: float = 0.0
    sent_bytes: int = 0


@dataclass(slots=True)
class JobMeter:
    """One job on this node."""

    alone: bool = True
    """No other job has had one of its GPUs."""
    alone_on_node: bool = True
    gpu_memory_mib: float = 0.0
    resident_mib: int = 0
    """What its processes have on the fullest of its GPUs now."""
    gpu_pids: frozenset[int] = frozenset()
    """Its processes that have anything there."""
    quiet_since_s: float | None = None
    """Since when none of them has used a GPU; None: they do, or no driver says so."""
    use: _Spread = field(default_factory=_Spread)
    waiting: list[_Sample] = field(default_factory=list)
    """Samples of which it is not known yet whether the training went on beyond them."""
    busy_s: float = 0.0
    """How long GPUs worked for it, all of them together."""
    gpus: int = 0
    pages: dict[Path, Progress] = field(default_factory=dict)
    """What each of its processes said last."""
    cpu_s: dict[Task, float] = field(default_factory=dict)
    lived_s: float = 0.0
    host_memory_mib: int = 0
    wire: _Wire | None = None
    due_s: float = 0.0
    waited_s: float = 0.0
    """How long it stood still, or was kept to a part of what it could do."""

    def sampled(self, sample: _Sample) -> None:
        """Use between the first boundary and the latest counts: neither launching nor leaving."""
        self.busy_s += sample.use_pct / 100 * (sample.to_ns - sample.from_ns) / 1e9
        self.waiting.append(sample)
        first_ns, latest_ns = self.boundaries()
        for one in [one for one in self.waiting if one.to_ns <= latest_ns]:
            self.waiting.remove(one)
            if first_ns <= one.from_ns:
                self.use.add(one.use_pct, (one.to_ns - one.from_ns) / 1e9)
        del self.waiting[:-_MOST_WAITING]

    def boundaries(self) -> tuple[int, int]:
        """When the last of its processes began to train, and when the first one last did."""
        trained = [page for page in self.pages.values() if page.first_boundary_ns]
        if not trained:
            return 0, 0
        first_ns = max(page.first_boundary_ns for page in trained)
        return first_ns, min(page.last_boundary_ns for page in trained)

    def told(self) -> dict[str, Any]:
        """For the event; what was not measured is left out."""
        trained = [page for page in self.pages.values() if page.first_boundary_ns]
        found: dict[str, Any] = {
            "alone": self.alone,
            "finished": bool(trained) and all(page.phase == Phase.ENDED for page in trained),
            "gpus": self.gpus,
            "busy_s": round(self.busy_s, 3),
            "ranks": len(trained),
            "cpu_s": round(sum(self.cpu_s.values()), 2),
            "lived_s": round(self.lived_s, 2),
            "host_memory_mib": self.host_memory_mib or None,
            "gpu_memory_mib": self.gpu_memory_mib or None,
        }
        if self.use.weight_s:
            found["gpu_use_pct"] = round(self.use.mean, 2)
            found["gpu_use_spread_pct"] = round(self.use.spread, 2)
        if trained:
            found["minibatches"] = min(page.minibatches for page in trained)
            found["minibatch_ms"] = max(map(_minibatch_ms, trained)) or None
        if self.wire and self.wire.seconds and self.alone_on_node:
            found["sent_mib"] = round(self.wire.sent_bytes / _MIB, 3)
            found["network_mbps"] = round(self.wire.sent_bytes * 8e-6 / self.wire.seconds, 3)
        return {name: value for name, value in found.items() if value is not None}


class Measuring:
    """The meters of all jobs that have a seat here."""

    def __init__(self, procfs: ProcFs) -> None:
        self.meters: dict[int, JobMeter] = {}
        self._procfs = procfs
        self._waits_at_s: float | None = None
        self._jobs: dict[int, int] = {}
        """Which job a process on a GPU is of; 0 for none of ours."""

    def look(
        self,
        seats: Mapping[int, Seat],
        blocks: Iterable[Block],
        uses: Sequence[ProcessUse],
        now_s: float | None = None,
        *,
        tells: Collection[str] = (),
    ) -> None:
        """Take in what is so now, and forget jobs that have left.

        `tells`: the GPUs of which it is known which process uses them.
        """
        now_s = time.monotonic() if now_s is None else now_s
        self.meters = {job: self.meters.get(job) or JobMeter() for job in seats}
        for block in blocks:
            self.page(block)
        self._neighbours(seats)
        self._gpu(seats, uses, tells, now_s)
        for job, seat in seats.items():
            meter = self.meters[job]
            meter.gpus = max(meter.gpus, len(seat.gpu_uuids))
            if now_s >= meter.due_s:
                self._processes(meter, seat, now_s)
                young = meter.lived_s < _YOUNG_S
                meter.due_s = now_s + (_OFTEN_S if young else _SELDOM_S)

    def count_waits(
        self,
        progress: Mapping[int, Sequence[Progress]],
        share_pct: Callable[[int], int],
        now_s: float | None = None,
    ) -> None:
        """Add what each job has lost to others since this was last asked.

        A job stands still when all its processes do that train, by the pages of those that live
        (`progress`). Of a job that is held to a share the rest counts, which is the most it can
        have lost.
        """
        now_s = time.monotonic() if now_s is None else now_s
        since_s, self._waits_at_s = self._waits_at_s, now_s
        past_s = 0.0 if since_s is None else min(now_s - since_s, _LONGEST_TICK_S)
        for job, meter in self.meters.items():
            phases = _phases_of_training(progress.get(job, ()))
            if phases and phases <= _WAITS:
                meter.waited_s += past_s
            elif Phase.TRAINING in phases:
                meter.waited_s += past_s * (1 - share_pct(job) / 100)

    def page(self, block: Block) -> None:
        """What a process said; called once more when it has ended."""
        meter = self.meters.get(block.identity.job_id)
        if meter and block.progress.phase != Phase.UNCLAIMED:
            meter.pages[block.path] = block.progress

    def _neighbours(self, seats: Mapping[int, Seat]) -> None:
        on: dict[str, list[int]] = {}
        # One whose processes have left keeps its seat for a moment, and takes nothing.
        here = {job: seat for job, seat in seats.items() if seat.tasks}
        for job, seat in here.items():
            for uuid in seat.gpu_uuids:
                on.setdefault(uuid, []).append(job)
        for jobs in on.values():
            for job in jobs if len(jobs) > 1 else ():
                self.meters[job].alone = False
        for job in here if len(here) > 1 else ():
            self.meters[job].alone_on_node = False

    def _gpu(
        self,
        seats: Mapping[int, Seat],
        uses: Sequence[ProcessUse],
        tells: Collection[str],
        now_s: float,
    ) -> None:
        tasks = {task.pid: job for job, seat in seats.items() for task in seat.tasks}
        held: dict[tuple[int, str], int] = {}
        pids: dict[int, set[int]] = {}
        shares: dict[tuple[int, str], float] = {}
        spans: dict[str, tuple[int, int]] = {}
        for use in uses:
            job = self._job_of(use.pid, tasks)
            if not job:
                continue
            key = (job, use.uuid)
            pids.setdefault(job, set()).add(use.pid)
            held[key] = held.get(key, 0) + use.memory_bytes
            if use.to_ns:
                shares[key] = shares.get(key, 0.0) + use.use_pct
                spans[use.uuid] = (use.from_ns, use.to_ns)
        self._jobs = {use.pid: self._jobs[use.pid] for use in uses if use.pid in self._jobs}
        for (job, _), nbytes in held.items():
            meter = self.meters[job]
            meter.gpu_memory_mib = max(meter.gpu_memory_mib, round(nbytes / _MIB, 3))
        for (job, uuid), use_pct in shares.items():
            self.meters[job].sampled(_Sample(use_pct, *spans[uuid]))
        for job, seat in seats.items():
            mine = [nbytes for (one, _), nbytes in held.items() if one == job]
            self.meters[job].resident_mib = max(mine, default=0) // _MIB
            self.meters[job].gpu_pids = frozenset(pids.get(job, ()))
            self._quiet(self.meters[job], seat, shares, spans, tells, now_s)

    def _quiet(
        self,
        meter: JobMeter,
        seat: Seat,
        shares: Mapping[tuple[int, str], float],
        spans: Mapping[str, tuple[int, int]],
        tells: Collection[str],
        now_s: float,
    ) -> None:
        """A process that is not on a GPU does not use it; what no driver tells counts as use."""
        told = {uuid: shares[seat.job_id, uuid] for one, uuid in shares if one == seat.job_id}
        if not seat.gpu_uuids or not {*seat.gpu_uuids} <= {*tells} or any(told.values()):
            meter.quiet_since_s = None
        elif meter.quiet_since_s is None and told:
            meter.quiet_since_s = max(spans[uuid][0] for uuid in told) / 1e9
        elif meter.quiet_since_s is None and not meter.gpu_pids:
            meter.quiet_since_s = now_s

    def _job_of(self, pid: int, tasks: Mapping[int, int]) -> int:
        """By its ancestors: what a page says of its process is its user's word only."""
        if pid not in self._jobs:
            at, seen = pid, 0
            while at > 1 and at not in tasks and seen < _MOST_PROCESSES:
                kin = self._procfs.kin(at)
                at, seen = (kin.parent if kin else 0), seen + 1
            self._jobs[pid] = tasks.get(at, 0)
        return self._jobs[pid]

    def _processes(self, meter: JobMeter, seat: Seat, now_s: float) -> None:
        resident = 0
        now_ticks = time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_S
        for task in seat.tasks:
            spent = [self._procfs.spent(pid) for pid in self._procfs.family(task.pid)]
            cpu_s = sum(one.cpu_ticks for one in spent) / _TICKS_PER_S
            meter.cpu_s[task] = max(cpu_s, meter.cpu_s.get(task, 0.0))
            resident += sum(one.resident_pages for one in spent)
            lived_s = (now_ticks - task.started_ticks) / _TICKS_PER_S
            meter.lived_s = max(meter.lived_s, lived_s)
        resident_mib = resident * _PAGE_BYTES // _MIB
        meter.host_memory_mib = max(meter.host_memory_mib, resident_mib)
        _, latest_ns = meter.boundaries()
        if not seat.tasks or not latest_ns:
            return
        sent = self._procfs.sent_bytes(seat.tasks[0].pid)
        if sent is None:
            return
        wire = meter.wire = meter.wire or _Wire(now_s, sent, latest_ns)
        if latest_ns != wire.boundary_ns:
            wire.boundary_ns = latest_ns
            wire.seconds = now_s - wire.began_s
            wire.sent_bytes = sent - wire.began_bytes


def _phases_of_training(pages: Sequence[Progress]) -> set[Phase]:
    """What the processes do that decide whether a job waits.

    Those that have trained. Before the first mini-batch of any: those that have come as far as
    that. A launcher (torchrun, accelerate, deepspeed) has a page, too; it loads for ever and is
    not asked.
    """
    alive = [page for page in pages if page.phase not in _NOT_YET_OR_OVER]
    trained = [page for page in pages if page.minibatches and page.phase != Phase.ENDED]
    return {page.shown_phase for page in trained or alive}


def _minibatch_ms(page: Progress) -> float:
    """The mean from its first boundary to its latest, without what it waited or saved."""
    away_ns = page.baton_waited_ns + page.parked_ns + page.paused_ns - page.gated_ns
    trained_ns = page.last_boundary_ns - page.first_boundary_ns - away_ns
    return round(max(0, trained_ns) / max(1, page.minibatches - 1) / 1e6, 4)
