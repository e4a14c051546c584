# SPDX-License-Identifier: Apache-2.0
"""What the dashboard remembers: told of every event in the machine's thread, and quick about it."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, Any, Final

from slipstream.core.events import ClusterSeen, NodeReported, StateRestored
from slipstream.core.records import Phase
from slipstream.core.seats import holders
from slipstream.core.sights import Standing
from slipstream.scheduler.dashboard.curves import Curves
from slipstream.scheduler.dashboard.lanes import Lanes, Who
from slipstream.scheduler.dashboard.ledger import Ledger
from slipstream.scheduler.dashboard.rows import named
from slipstream.scheduler.dashboard.shadow import Sample, Shadow

if TYPE_CHECKING:
    from slipstream.core.events import Event
    from slipstream.core.moves import Saga
    from slipstream.core.sights import GpuUse, JobSight
    from slipstream.core.state import State

CURVE: Final = (
    *("at_s", "minibatch_ms", "alone_ms", "share_pct", "gpu_memory_mib", "slowdown_pct"),
)
TOTALS: Final = ("at_s", "use_pct", "owned", "guests", "waiting", "running")
_MOST_TOTALS: Final = 720
_TOTALS_EVERY_S: Final = 5.0
_MOST_MOVES: Final = 500
_MOST_OUTCOMES: Final = 500
_HERE: Final = (Standing.RUNNING, Standing.SUSPENDED, Standing.COMPLETING)


class Past:
    """Lanes, curves, moves and how estimates turned out."""

    def __init__(self) -> None:
        self.lanes = Lanes()
        self.ledger = Ledger()
        self.shadow = Shadow()
        self.curves = Curves(len(CURVE) - 1)
        self.totals: deque[list[float | None]] = deque(maxlen=_MOST_TOTALS)
        self.moves: deque[dict[str, Any]] = deque(maxlen=_MOST_MOVES)
        self.outcomes: deque[dict[str, Any]] = deque(maxlen=_MOST_OUTCOMES)
        self._moving: dict[str, dict[str, Any]] = {}
        self._running: dict[str, dict[str, Any]] = {}
        """Jobs that run, with what was estimated and measured so far."""
        self._owned: dict[str, dict[int, str]] = {}
        """Slurm's word on who holds which GPU of a node."""

    def told(self, event: Event, state: State) -> None:
        """After the machine has decided about it."""
        match event:
            case NodeReported():
                self._reported(event, state)
            case ClusterSeen():
                self._looked(event, state)
            case StateRestored():
                return
        self._follow_moves(state, event.at_s)

    def is_due(self, at_s: float) -> bool:
        """Whether it is time for a sample."""
        return not self.totals or at_s - (self.totals[-1][0] or 0.0) >= _TOTALS_EVERY_S

    def sample(
        self, state: State, at_s: float, would: Sample | None = None
    ) -> list[float | None] | None:
        """The cluster as a whole, every few seconds, and what would be; None in between."""
        if not self.is_due(at_s):
            return None
        uses = [gpu.use_pct for one in state.reports.values() for gpu in one.gpus]
        phases = Counter(one.phase for one in state.jobs.values())
        point: list[float | None] = [
            at_s,
            sum(uses) / len(uses) if uses else None,
            sum(node.gpus_used for node in state.nodes.values()),
            sum(node.slots_used for node in state.nodes.values()),
            phases[Phase.WAITING] + phases[Phase.SUBMITTED],
            phases[Phase.RUNNING],
        ]
        self.totals.append(point)
        self.ledger.sample(state, at_s, would or Sample())
        return point

    def _reported(self, report: NodeReported, state: State) -> None:
        does = {named(state, one.ref): one.phase for one in report.jobs}
        for gpu in report.gpus:
            here = self._sitters(report.node, gpu, does, state)
            self.lanes.seen((report.node, gpu.index), report.at_s, here)
        for training in report.jobs:
            key = named(state, training.ref) or training.ref
            took = training.measured
            memory_mib = took.gpu_memory_mib if took else None
            self.curves.add(
                key,
                report.at_s,
                (
                    training.minibatch_ms or None,
                    training.alone_ms,
                    training.share_pct,
                    memory_mib,
                    training.slowdown_pct,
                ),
            )
        self._measured(report, state)

    def _measured(self, report: NodeReported, state: State) -> None:
        """What jobs have taken in all their starts, beside what was estimated of them."""
        for training in (*report.jobs, *report.ended):
            key = named(state, training.ref) or training.ref
            outcome, figures = self._running.get(key), state.figures.get(key)
            if outcome and figures and training.measured:
                outcome["measured"] = {
                    "gpu_memory_mib": figures.gpu_memory_mib,
                    "gpu_use_pct": figures.gpu_use_pct,
                    "run_s": figures.total.lived_s,
                }

    def _sitters(
        self, node: str, gpu: GpuUse, does: dict[str | None, str], state: State
    ) -> list[Who]:
        owner = self._owned.get(node, {}).get(gpu.index) or named(state, gpu.owner_job)
        sits = [Who(owner, "owner", does.get(owner) or "runs")] if owner else []
        guests = [named(state, job) or job for job in gpu.guest_jobs]
        return sits + [Who(job, "guest", does.get(job) or "runs") for job in guests if job != owner]

    def _looked(self, event: ClusterSeen, state: State) -> None:
        for node in event.nodes_gone:
            self.lanes.forget(node)
        if not (event.jobs or event.jobs_gone or event.complete):
            return
        self._own(owners(state), event.at_s, state)
        for sight in event.jobs:
            self._follow(sight, state)
        gone = [*event.jobs_gone, *(one.ref for one in event.jobs if one.standing not in _HERE)]
        if event.complete:
            gone += [key for key in self._running if key not in state.jobs]
        for key in gone:
            self._over(key, event.at_s)

    def _own(self, owned: dict[str, dict[int, str]], at_s: float, state: State) -> None:
        """Of nodes nobody reports about, Slurm's word is all there is."""
        for node in sorted(self._owned.keys() | owned.keys()):
            if self._owned.get(node) != owned.get(node) and node not in state.reports:
                here = owned.get(node, {})
                for index in sorted(self._owned.get(node, {}).keys() | here.keys()):
                    sits = [Who(here[index], "owner", "runs")] if index in here else []
                    self.lanes.seen((node, index), at_s, sits)
        self._owned = owned

    def _follow(self, sight: JobSight, state: State) -> None:
        request = state.requests.get(sight.request.token) if sight.request else None
        estimate = request.estimate if request else None
        if sight.standing is Standing.RUNNING and estimate and sight.ref not in self._running:
            self._running[sight.ref] = {
                "job": sight.ref,
                "basis": estimate.basis,
                "estimated": {
                    "gpu_memory_mib": estimate.gpu_memory_mib,
                    "gpu_use_pct": estimate.gpu_use_pct,
                    "run_s": estimate.run_s,
                },
            }

    def _over(self, key: str, at_s: float) -> None:
        outcome = self._running.pop(key, None)
        if outcome and "measured" in outcome:
            self.outcomes.append({**outcome, "ended_s": at_s})

    def _follow_moves(self, state: State, at_s: float) -> None:
        if not state.moves and not self._moving:
            return
        for key, saga in state.moves.items():
            if key not in self._moving:
                self._moving[key] = _move(saga)
                self.moves.append(self._moving[key])
            self._moving[key]["stage"] = saga.stage
        for key in [one for one in self._moving if one not in state.moves]:
            move = self._moving.pop(key)
            record = state.jobs.get(key)
            nodes = list(record.sight.nodes) if record and record.sight else []
            move |= {"ended_s": at_s, "arrived": nodes == move["target"]}


def owners(state: State) -> dict[str, dict[int, str]]:
    """Who holds which GPU, node by node, as Slurm has it."""
    owned: dict[str, dict[int, str]] = {}
    for (node, index), record in holders(state.jobs.values(), state.upgrades).items():
        owned.setdefault(node, {})[index] = record.key
    return owned


def _move(saga: Saga) -> dict[str, Any]:
    return {
        "job": saga.key,
        "began_s": saga.asked_at_s,
        "ended_s": None,
        "origin": list(saga.origin),
        "target": list(saga.target),
        "stage": saga.stage,
        "arrived": False,
    }
