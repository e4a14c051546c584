# SPDX-License-Identifier: Apache-2.0
"""Gandiva as its paper has it: affinity, turns, packing by trial, moves into holes.

Nobody waits for a GPU while a node may be over-subscribed: jobs take turns there. A cluster has no
more jobs than its nodes' memory can keep parked: height 4.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import Role
from slipstream.core.cluster.commands import Move, Start
from slipstream.core.cluster.events import JobCame, JobLeft, JobProfiled, NodeCame, PairMeasured

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipstream.core.cluster.asks import Ask, Place
    from slipstream.core.cluster.commands import ClusterCommand
    from slipstream.core.cluster.events import ClusterEvent

_MOST_HEIGHT: Final = 4
_MOST_TRIED: Final = 100
_HOUR_S: Final = 3600.0


@dataclass(slots=True, eq=False)
class Job:
    """A job, its GPUs and in which turn it is there."""

    ask: Ask
    use_pct: float
    memory_mib: int
    gpus: tuple[int, ...] = ()
    turn: int = 0
    moved_at_s: float = float("-inf")


class Gandiva:
    """No owners, no tenants, no priorities."""

    def __init__(self) -> None:
        self._on: list[list[Job]] = []
        self._places: list[Place] = []
        self._nodes: list[list[int]] = []
        self._jobs: dict[str, Job] = {}
        self._queue: deque[Job] = deque()
        self._turns = 0
        self._memory_mib = 0
        self._failed: dict[tuple[str, str], float] = {}
        self._now_s = 0.0

    def handle(self, event: ClusterEvent) -> list[ClusterCommand]:
        """Take in what happened."""
        self._now_s = event.at_s
        match event:
            case NodeCame():
                self._nodes.append(list(range(len(self._on), len(self._on) + event.gpus)))
                self._places += [(event.node, index) for index in range(event.gpus)]
                self._on += [[] for _ in range(event.gpus)]
                self._memory_mib = event.memory_mib
            case JobCame():
                ask = event.ask
                job = self._jobs[ask.ref] = Job(ask, ask.use_pct, ask.memory_mib)
                self._queue.append(job)
                return list(self._starts())
            case JobLeft():
                job = self._jobs.pop(event.ref)
                left = job.gpus
                self._stand(job)
                return [*self._starts(), *self._fill(left)]
            case JobProfiled():
                return self._pack(event)
            case PairMeasured():
                return self._judge(event)
        return []

    def wakes_at_s(self) -> float | None:
        """Never."""
        return None

    def _starts(self) -> Iterator[ClusterCommand]:
        refused: set[int] = set()
        waiting: deque[Job] = deque()
        for tried, job in enumerate(self._queue):
            skipped = tried >= _MOST_TRIED or job.ask.gpus in refused
            gpus = None if skipped else self._gpus(job)
            if gpus is None:
                refused.add(job.ask.gpus)
                waiting.append(job)
                continue
            self._sit(job, gpus, self._own_turn(gpus))
            yield Start(job.ask.ref, self._named(gpus), Role.OWNER, job.turn)
        self._queue = waiting

    def _gpus(self, job: Job) -> tuple[int, ...] | None:
        """Same affinity, none yet, any free GPUs even scattered, then over-subscribed nodes."""
        per_node, count = len(self._nodes[0]), job.ask.gpus
        each = min(count, per_node)
        nodes = sorted(
            (self._affinity(node) not in (0, count), self._height(node), at)
            for at, node in enumerate(self._nodes)
        )
        for most in range(_MOST_HEIGHT):
            found: list[int] = []
            for strange, _, at in nodes:
                low = [gpu for gpu in self._nodes[at] if len(self._on[gpu]) <= most]
                if len(low) >= each and not (strange and most == 1):
                    found += sorted(low, key=lambda gpu: (len(self._on[gpu]), gpu))[:each]
                if len(found) >= count:
                    return tuple(found[:count])
            if most == 0:
                free = [gpu for gpu, ours in enumerate(self._on) if not ours]
                if len(free) >= count:
                    return tuple(free[:count])
        return None

    def _affinity(self, node: list[int]) -> int:
        return next((ours[0].ask.gpus for gpu in node if (ours := self._on[gpu])), 0)

    def _height(self, node: list[int]) -> int:
        return sum(len(self._on[gpu]) for gpu in node)

    def _own_turn(self, gpus: tuple[int, ...]) -> int:
        """On free GPUs any, on others one that nobody has."""
        if not any(self._on[gpu] for gpu in gpus):
            return 0
        self._turns += 1
        return self._turns

    def _pack(self, event: JobProfiled) -> list[ClusterCommand]:
        """A job of one GPU that alternates there joins the turn of the least using job."""
        job = self._jobs[event.ref]
        job.use_pct, job.memory_mib = event.use_pct, event.memory_mib
        if len(job.gpus) != 1 or len(self._on[job.gpus[0]]) < 2:  # noqa: PLR2004 (a pair)
            return []
        ours = self._on[job.gpus[0]]
        others = [one for one in ours if one is not job and self._may_pack(job, one, ours)]
        if not others:
            return []
        partner = min(others, key=lambda one: (one.use_pct, one.ask.ref))
        job.turn = partner.turn
        return [Move(job.ask.ref, self._named(job.gpus), Role.OWNER, job.turn)]

    def _may_pack(self, job: Job, one: Job, ours: list[Job]) -> bool:
        alone = sum(other.turn == one.turn for other in ours) == 1
        fits = job.memory_mib + one.memory_mib <= self._memory_mib
        return alone and fits and self._failed.get(_pair(job, one), 0.0) <= self._now_s

    def _judge(self, event: PairMeasured) -> list[ClusterCommand]:
        """Undo a pair that is slower together than in turns."""
        one, other = self._jobs.get(event.ref), self._jobs.get(event.other)
        if one is None or other is None or one.turn != other.turn:
            return []
        turns = len({job.turn for job in self._on[other.gpus[0]]})
        if (event.rate + event.other_rate) * turns > 1.0 or len(other.gpus) > 1:
            return []
        self._failed[_pair(one, other)] = self._now_s + _HOUR_S
        self._turns += 1
        other.turn = self._turns
        return [Move(other.ask.ref, self._named(other.gpus), Role.OWNER, other.turn)]

    def _fill(self, gpus: tuple[int, ...]) -> Iterator[ClusterCommand]:
        """A job that waits its turn elsewhere comes to a GPU that is free now."""
        holes = [gpu for gpu in gpus if not self._on[gpu]]
        for hole in holes:
            tallest = max(range(len(self._on)), key=lambda gpu: (len(self._on[gpu]), -gpu))
            able = [
                job
                for job in self._on[tallest]
                if len(job.gpus) == 1 and self._now_s - job.moved_at_s > _HOUR_S / 6
            ]
            if len(self._on[tallest]) < 2 or not able:  # noqa: PLR2004 (a pair)
                return
            job = able[-1]
            self._stand(job)
            self._sit(job, (hole,), 0)
            job.moved_at_s = self._now_s
            yield Move(job.ask.ref, self._named((hole,)), Role.OWNER, 0)

    def _sit(self, job: Job, gpus: tuple[int, ...], turn: int) -> None:
        job.gpus, job.turn = gpus, turn
        for gpu in gpus:
            self._on[gpu].append(job)

    def _stand(self, job: Job) -> None:
        for gpu in job.gpus:
            self._on[gpu].remove(job)

    def _named(self, gpus: tuple[int, ...]) -> tuple[Place, ...]:
        return tuple(self._places[gpu] for gpu in gpus)


def _pair(one: Job, other: Job) -> tuple[str, str]:
    a, b = sorted((one.ask.family, other.ask.family))
    return a, b
