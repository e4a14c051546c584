# SPDX-License-Identifier: Apache-2.0
"""What each job of this node has taken so far: for the history that estimates are made from.

Everything is a total, a peak or a mean since this start of the job was first seen, so that a report
that is lost costs nothing while another one follows. Totals are on disk, too: after a restart of
this daemon they go on from there. When the last process of a start has left, its last figures are
told until the scheduler has had them twice.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass, field
from math import sqrt
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from slipstream.coordinator import training_counts
from slipstream.coordinator.processes import number
from slipstream.coordinator.store import replace_file
from slipstream.coordinator.training_counts import TrainingCounts
from slipstream.wire.control_block import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from slipstream.coordinator.blocks import Block
    from slipstream.coordinator.gpus import ProcessUse
    from slipstream.coordinator.processes import ProcFs
    from slipstream.coordinator.seats import Seat, Task
    from slipstream.wire.control_block import Progress

_log = logging.getLogger(__name__)

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
_SAVE_EVERY_S: Final = 5.0
_MOST_ENDED: Final = 256
"""Starts that have ended whose last figures wait for a scheduler."""
_TIMES_TOLD: Final = 2
"""A scheduler that is killed over the first has the second."""
_VERSION: Final = 1
_TELLS_WITHIN_S: Final = 10.0
"""How long a task may take from its start to its own program."""
_KEPT: Final = (
    *("alone", "alone_on_node", "gpu_memory_mib", "busy_s", "gpus", "restart", "began"),
    *("parked_s", "share_s", "shared_s", "lived_s", "host_memory_mib", "waited_s"),
)
"""What is written down of a meter, beside what its processes have trained."""


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
    resident_mib: int | None = None
    """What its processes have on the fullest of its GPUs now; None: NVML was not asked yet."""
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
    counts: TrainingCounts = field(default_factory=TrainingCounts)
    """What its processes have trained, those that have left too."""
    restart: int | None = None
    """How often Slurm had requeued the job before this start; None: nobody could read it yet."""
    began: int = 0
    """When its first task here began, in clock ticks."""
    parked_s: float = 0.0
    share_s: float = 0.0
    """Seconds of training times the share that was allowed in them (1 is all of the GPU)."""
    shared_s: float = 0.0
    """Seconds of training so far, as this daemon saw them go by."""
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
        present = [page for page in self.counts.present() if page.first_boundary_ns]
        trained = present or self.counts.trained()
        if not trained:
            return 0, 0
        first_ns = max(page.first_boundary_ns for page in trained)
        return first_ns, min(page.last_boundary_ns for page in trained)

    def figures(self) -> dict[str, Any]:
        """Totals of this start for the report: they only grow."""
        counts = self.counts
        found = {
            "minibatch": counts.minibatches,
            "restart": self.restart,
            "began": self.began,
            "resumed_at": counts.resumed_at,
            "waited_s": round(self.waited_s, 1),
            "parked_s": round(self.parked_s, 1),
            "share_s": round(self.share_s, 1),
            "shared_s": round(self.shared_s, 1),
        }
        return {**found, **self._times()}

    def _times(self) -> dict[str, float]:
        """How long it launched, trained and saved, as far as it has come."""
        counts = self.counts
        if not counts.crews:
            return {}
        times_ns = {
            "launch_s": counts.launch_ns,
            "train_s": counts.train_ns,
            "save_s": counts.save_ns,
        }
        return {name: round(one / 1e9, 3) for name, one in times_ns.items()}

    def told(self) -> dict[str, Any]:
        """For the event; what was not measured is left out."""
        trained = self.counts.trained()
        found: dict[str, Any] = {
            "alone": self.alone,
            "finished": bool(trained) and all(page.phase == Phase.ENDED for page in trained),
            "gpus": self.gpus,
            "busy_s": round(self.busy_s, 3),
            "ranks": self.counts.ranks,
            "cpu_s": round(sum(self.cpu_s.values()), 2),
            "lived_s": round(self.lived_s, 2),
            "host_memory_mib": self.host_memory_mib or None,
            "gpu_memory_mib": self.gpu_memory_mib or None,
        }
        if self.use.weight_s:
            found["gpu_use_pct"] = round(self.use.mean, 2)
            found["gpu_use_spread_pct"] = round(self.use.spread, 2)
        if trained:
            found["minibatches"] = self.counts.minibatches
            found["minibatch_ms"] = max(map(_minibatch_ms, trained)) or None
        if self.wire and self.wire.seconds and self.alone_on_node:
            found["sent_mib"] = round(self.wire.sent_bytes / _MIB, 3)
            found["network_mbps"] = round(self.wire.sent_bytes * 8e-6 / self.wire.seconds, 3)
        found |= self._times()
        return {name: value for name, value in found.items() if value is not None}

    def kept(self) -> dict[str, Any]:
        """What a restart of this daemon must not lose."""
        return {**{name: getattr(self, name) for name in _KEPT}, "counts": self.counts.as_data()}


@dataclass(slots=True)
class Ended:
    """The last figures of a start whose processes have all left."""

    told: dict[str, Any]
    times_told: int = 0


class Measuring:
    """The meters of all jobs that have a seat here.

    Args:
        procfs: who lives here.
        path: where totals are kept over a restart; None: nowhere.
    """

    def __init__(self, procfs: ProcFs, path: Path | None = None) -> None:
        self.meters: dict[int, JobMeter] = {}
        self.ended: list[Ended] = []
        """Starts whose last process has left, while the scheduler may not know of it."""
        self.on_gpu: dict[int, set[int]] = {}
        """The processes of each job that hold memory of a GPU now."""
        self._procfs = procfs
        self._path = path
        self._saved: object = None
        self._save_due_s = 0.0
        self._waits_at_s: float | None = None
        self._jobs: dict[int, int] = {}
        """Which job a process on a GPU is of; 0 for none of ours."""

    def look(
        self,
        seats: Mapping[int, Seat],
        blocks: Iterable[Block],
        uses: Sequence[ProcessUse] | None,
        now_s: float | None = None,
        *,
        tells: Collection[str] = (),
    ) -> None:
        """Take in what is so now; the last figures of jobs that have left are kept to be told.

        `uses` is what NVML told, None before it was asked for the first time. `tells`: the GPUs of
        which it is known which process uses them.
        """
        now_s = time.monotonic() if now_s is None else now_s
        self._let_go(seats)
        self.meters = {job: self.meters.get(job) or JobMeter() for job in seats}
        pages: dict[int, dict[str, Progress]] = {job: {} for job in seats}
        for block in blocks:
            if block.identity.job_id in pages and block.progress.phase != Phase.UNCLAIMED:
                pages[block.identity.job_id][_page_name(block)] = block.progress
        for job, told in pages.items():
            self.meters[job].counts.looked(told)
        self._neighbours(seats)
        if uses is not None:
            self._gpu(seats, uses, tells, now_s)
        for job, seat in seats.items():
            meter = self.meters[job]
            meter.gpus = max(meter.gpus, len(seat.gpu_uuids))
            if meter.restart is None:
                self._identify(meter, seat)
            if now_s >= meter.due_s:
                self._processes(meter, seat, now_s)
                young = meter.lived_s < _YOUNG_S
                meter.due_s = now_s + (_OFTEN_S if young else _SELDOM_S)
        if now_s >= self._save_due_s:
            self._save_due_s = now_s + _SAVE_EVERY_S
            self.save()

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
                if Phase.PARKED in phases:
                    meter.parked_s += past_s
            elif Phase.TRAINING in phases:
                meter.waited_s += past_s * (1 - share_pct(job) / 100)
                meter.share_s += past_s * share_pct(job) / 100
                meter.shared_s += past_s

    def page_left(self, block: Block) -> None:
        """The last that a process said."""
        meter = self.meters.get(block.identity.job_id)
        if meter and block.progress.phase != Phase.UNCLAIMED:
            meter.counts.left(_page_name(block), block.progress)
            self._save_due_s = 0.0

    def _identify(self, meter: JobMeter, seat: Seat) -> None:
        """Which start of the job this is: what Slurm told its first task."""
        for task in sorted(seat.tasks, key=lambda one: one.started_ticks):
            environment = self._procfs.environment(task.pid)
            meter.began = meter.began or task.started_ticks
            if "SLURM_JOB_ID" in environment:  # before that it has not come to its own program
                meter.restart = number(environment.get("SLURM_RESTART_COUNT", "")) or 0
                return
        if meter.lived_s > _TELLS_WITHIN_S:  # its user has taken these variables away
            meter.restart = 0

    # --- over the end of a job, and a restart of this daemon ------------------------------------

    def _let_go(self, seats: Mapping[int, Seat]) -> None:
        for job in self.meters.keys() - seats.keys():
            meter = self.meters[job]
            told = {"job_id": job, "phase": "ended", **meter.figures(), "measured": meter.told()}
            self.ended.append(Ended(told))
            self._save_due_s = 0.0
        del self.ended[:-_MOST_ENDED]

    def was_told(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """The scheduler has taken these last figures."""
        for one in self.ended:
            one.times_told += any(one.told is report for report in reports)
        self.ended = [one for one in self.ended if one.times_told < _TIMES_TOLD]
        self._save_due_s = 0.0

    def save(self) -> None:
        """Write totals down, if there is anything new."""
        content = {
            "v": _VERSION,
            "jobs": {str(job): one.kept() for job, one in self.meters.items()},
            "ended": [asdict(one) for one in self.ended],
        }
        if self._path is None or content == self._saved:
            return
        try:
            replace_file(self._path, content)
            self._saved = content
        except OSError as error:
            _log.warning("%s cannot be written, a restart would lose totals: %s", self._path, error)

    def recall(self, seats: Mapping[int, Seat]) -> None:
        """Take up what an earlier coordinator wrote; of jobs that have left, as ended."""
        if self._path is None:
            return
        try:
            content = json.loads(self._path.read_text())
            if content["v"] != _VERSION:
                raise ValueError(f"version {content['v']}")  # noqa: TRY301 (told like the others)
            self.ended = [Ended(**one) for one in content["ended"]]
            self.meters = {int(job): _meter(one) for job, one in content["jobs"].items()}
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            _log.warning("%s holds no totals, they begin anew: %r", self._path, error)
            self.meters, self.ended = {}, []
        # A job that was requeued meanwhile has tasks that began later: another start of it.
        same = {
            job: seat
            for job, seat in seats.items()
            if job in self.meters and not _is_another_start(self.meters[job], seat)
        }
        self._let_go(same)
        self.meters = {job: one for job, one in self.meters.items() if job in same}

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
        self.on_gpu = {}
        for use in uses:
            job = self._job_of(use.pid, tasks)
            if job not in self.meters:  # none of ours, or left behind by a job that is gone
                continue
            self.on_gpu.setdefault(job, set()).add(use.pid)
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


def _meter(told: Mapping[str, Any]) -> JobMeter:
    counts = training_counts.from_data(told["counts"])
    return JobMeter(counts=counts, **{name: told[name] for name in _KEPT})


def _is_another_start(meter: JobMeter, seat: Seat) -> bool:
    began = [task.started_ticks for task in seat.tasks]
    return bool(meter.began and began) and min(began) > meter.began


def _page_name(block: Block) -> str:
    """Of one job: its step, its task and who asked for it."""
    return block.path.name


def _minibatch_ms(page: Progress) -> float:
    """The mean from its first boundary to its latest, without what it waited or saved."""
    away_ns = page.baton_waited_ns + page.parked_ns + page.paused_ns - page.gated_ns
    trained_ns = page.last_boundary_ns - page.first_boundary_ns - away_ns
    return round(max(0, trained_ns) / max(1, page.minibatches - 1) / 1e6, 4)
