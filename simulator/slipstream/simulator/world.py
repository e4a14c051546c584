# SPDX-License-Identifier: Apache-2.0
"""The truth of a simulated cluster: who sits where, how fast each job is, what it has done.

Speeds change only when somebody comes to a GPU or leaves it; in between, nothing is computed.
A command that no real cluster could carry out is an error of the policy, and raises.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.core.classes import JobClass, Role
from slipstream.core.cluster.commands import (
    Downgrade,
    Move,
    Park,
    Resize,
    Start,
    Unpark,
    Upgrade,
)
from slipstream.simulator.shape import Costs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slipstream.core.cluster.asks import Place
    from slipstream.core.cluster.commands import ClusterCommand
    from slipstream.simulator.guarding import NodeGuard
    from slipstream.simulator.measured import Measured
    from slipstream.simulator.shape import Shape
    from slipstream.simulator.workload import Workload


class ImpossibleError(Exception):
    """A policy commanded what cannot be."""


@dataclass(slots=True, eq=False)
class Run:
    """One job's life so far."""

    job: Workload
    total_s: float
    """Work in all, in seconds alone; grows by what disturbances cost."""
    done_s: float = 0.0
    rate: float = 0.0
    at_s: float = 0.0
    """Until when `done_s` counts."""
    gpus: tuple[int, ...] = ()
    role: Role = Role.OWNER
    turn: int = 0
    left_gpus: tuple[int, ...] = ()
    """Where it was parked."""
    kept: bool = False
    """Parked in the memory of its nodes."""
    version: int = 0
    """Of its rate: an end foreseen at an older one does not come."""
    first_at_s: float | None = None
    """When its first mini-batches were done."""
    started_at_s: float | None = None
    ended_at_s: float | None = None
    owned_s: float = 0.0
    owned_done_s: float = 0.0
    moves: int = 0
    parks: int = 0


@dataclass(slots=True)
class World:
    """All jobs and GPUs at one time."""

    shape: Shape
    measured: Measured
    guarding: NodeGuard
    costs: Costs = field(default_factory=Costs)
    guarded: frozenset[JobClass] = frozenset()
    """The classes whose owners the nodes guard from their guests."""
    now_s: float = 0.0
    runs: dict[str, Run] = field(default_factory=dict)
    residents: list[list[Run]] = field(default_factory=list)
    busy_gpus: int = 0
    busy_gpu_s: float = 0.0
    _gpu_of: dict[Place, int] = field(default_factory=dict)
    _node_of: list[int] = field(default_factory=list)
    _memory_mib: list[int] = field(default_factory=list)
    _kept: list[int] = field(default_factory=list)
    """For each GPU: who was parked there and is still in its node's memory."""
    _largest: int = 0

    def __post_init__(self) -> None:
        self.residents = [[] for _ in range(self.shape.gpus)]
        self._kept = [0] * self.shape.gpus
        self._largest = self.shape.largest
        for at, node in enumerate(self.shape.nodes):
            for index in range(node.gpus):
                self._gpu_of[node.node, index] = len(self._gpu_of)
                self._node_of.append(at)
                self._memory_mib.append(node.memory_mib)

    def pass_to(self, at_s: float) -> None:
        """Let time pass."""
        self.busy_gpu_s += (at_s - self.now_s) * self.busy_gpus
        self.now_s = at_s

    def add(self, job: Workload) -> None:
        """A job has been submitted."""
        self.runs[job.ask.ref] = Run(job=job, total_s=job.run_s, at_s=self.now_s)

    def ends_at_s(self, run: Run) -> float:
        """When it will end at its present rate."""
        return self.now_s + max(0.0, run.total_s - run.done_s) / run.rate

    def end(self, run: Run) -> set[int]:
        """A job has done all its work; returns the GPUs it leaves."""
        self._accrue(run)
        run.ended_at_s = self.now_s
        if run.first_at_s is None:
            run.first_at_s = self.now_s
        return self._leave(run)

    def carry_out(self, commands: Iterable[ClusterCommand]) -> set[int]:
        """Do it all; returns the GPUs where somebody came or left."""
        touched: set[int] = set()
        for command in commands:
            run = self.runs[command.ref]
            if run.ended_at_s is not None:
                raise ImpossibleError(f"{command}: it has ended")
            self._accrue(run)
            touched.update(self._do(command, run))
        return touched

    def changed(self, gpus: Iterable[int]) -> list[Run]:
        """The jobs whose speed is another one after these GPUs were touched."""
        found: list[Run] = []
        seen: set[int] = set()
        for gpu in gpus:
            for run in self.residents[gpu]:
                if id(run) in seen:
                    continue
                seen.add(id(run))
                rate = self._rate(run)
                if rate != run.rate:
                    self._accrue(run)
                    run.rate = rate
                    run.version += 1
                    found.append(run)
        return found

    def pairs(self, gpus: Iterable[int]) -> list[tuple[Run, Run]]:
        """Who is together on these GPUs, two and two."""
        return [
            (ours[0], other) for gpu in gpus if (ours := self.residents[gpu]) for other in ours[1:]
        ]

    def _do(self, command: ClusterCommand, run: Run) -> set[int]:
        match command:
            case Start():
                if run.started_at_s is not None:
                    raise ImpossibleError(f"{command}: it was started before")
                run.started_at_s = self.now_s
                run.role, run.turn = command.role, command.turn
                return self._sit(run, command.places)
            case Park():
                if not run.gpus:
                    raise ImpossibleError(f"{command}: it has no GPU")
                run.parks += 1
                self._keep(run)
                return self._leave(run)
            case Unpark():
                run.total_s += self.costs.unpark_s if run.kept else self.costs.move_s
                self._forget(run)
                run.role = command.role
                return self._sit_on(run, run.left_gpus)
            case Move():
                run.total_s += self.costs.move_s
                run.moves += 1
                self._forget(run)
                left = self._leave(run)
                run.role, run.turn = command.role, command.turn
                return left | self._sit(run, command.places)
            case Resize():
                run.total_s += self.costs.move_s
                return self._leave(run) | self._sit(run, command.places)
            case Upgrade() | Downgrade():
                run.role = Role.OWNER if isinstance(command, Upgrade) else Role.GUEST
                return set(run.gpus)

    def _sit(self, run: Run, places: Sequence[Place]) -> set[int]:
        return self._sit_on(run, tuple(self._gpu_of[place] for place in places))

    def _sit_on(self, run: Run, gpus: tuple[int, ...]) -> set[int]:
        if run.gpus or not gpus or len(set(gpus)) != len(gpus):
            raise ImpossibleError(f"job {run.job.ask.ref} on {gpus}: it sits on {run.gpus}")
        run.gpus = gpus
        for gpu in gpus:
            ours = self.residents[gpu]
            self.busy_gpus += not ours
            ours.append(run)
            together = [one for one in ours if one.turn == run.turn]
            if (
                sum(one.job.memory_mib for one in together) > self._memory_mib[gpu]
                and len(together) > 1
            ):
                run.turn = 1 + max(one.turn for one in ours)  # it does not fit: they alternate
        return set(gpus)

    def _keep(self, run: Run) -> None:
        """It is parked in its nodes' memory, if there is room left."""
        run.left_gpus = run.gpus
        run.kept = all(self._kept[gpu] < self.costs.parked_per_gpu for gpu in run.gpus)
        for gpu in run.gpus:
            self._kept[gpu] += run.kept

    def _forget(self, run: Run) -> None:
        for gpu in run.left_gpus:
            self._kept[gpu] -= run.kept
        run.kept = False

    def _leave(self, run: Run) -> set[int]:
        for gpu in run.gpus:
            self.residents[gpu].remove(run)
            self.busy_gpus -= not self.residents[gpu]
        left = set(run.gpus)
        run.gpus, run.rate = (), 0.0
        run.version += 1
        return left

    def _accrue(self, run: Run) -> None:
        """Count what it has done since the last time."""
        past_s = self.now_s - run.at_s
        if past_s > 0.0 and run.rate > 0.0:
            before_s = run.done_s
            run.done_s += past_s * run.rate
            if run.first_at_s is None and run.done_s >= run.job.first_s:
                run.first_at_s = run.at_s + (run.job.first_s - before_s) / run.rate
            if run.role is Role.OWNER and run.job.ask.job_class is JobClass.GUARANTEED:
                run.owned_s += past_s
                run.owned_done_s += past_s * run.rate
        run.at_s = self.now_s

    def _rate(self, run: Run) -> float:
        """1 is its speed alone; the slowest of its GPUs counts."""
        rate = 1.0
        for gpu in run.gpus:
            ours = self.residents[gpu]
            if len(ours) > 1:
                rate = min(rate, self._beside(run, ours))
        if len(run.gpus) > 1:
            nodes = len({self._node_of[gpu] for gpu in run.gpus})
            if nodes > -(-len(run.gpus) // self._largest):
                rate *= self.measured.spread
        if len(run.gpus) != run.job.ask.gpus:
            rate *= len(run.gpus) / run.job.ask.gpus
        return rate

    def _guards(self, run: Run) -> bool:
        """Whether a node keeps others from slowing it."""
        return run.role is Role.OWNER and run.job.ask.job_class in self.guarded

    def _beside(self, run: Run, ours: Sequence[Run]) -> float:
        """Beside several, the losses multiply: pairs are all that was measured."""
        rate, kind = 1.0, run.job.kind
        for other in ours:
            if other is run or other.turn != run.turn:
                continue
            if self._guards(run):
                rate *= self.guarding.owner(kind, other.job.kind)
            elif self._guards(other):
                rate *= self.guarding.guest(other.job.kind, kind)
            else:
                rate *= self.measured.beside[kind][other.job.kind]
        turns = len({other.turn for other in ours})
        return rate * (1.0 - self.costs.turn_loss) / turns if turns > 1 else rate
