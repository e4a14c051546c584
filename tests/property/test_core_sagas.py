# SPDX-License-Identifier: Apache-2.0
"""An elastic job in a small Slurm, a scheduler that may die over any command: its size is right.

Whatever is killed, refused or forgotten in whatever order, the job runs or waits, with a number of
GPUs that its user said; it is never started where it just left sooner than Slurm lets it; and when
all is quiet it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core_world import holds, node, request, sight, token
from slipstream.core import events
from slipstream.core.classes import Mode
from slipstream.core.commands import Requeue, Resize, Save, Start
from slipstream.core.machine import Machine
from slipstream.core.rules import Rules
from slipstream.core.sights import Standing, Training

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipstream.core.commands import Command
    from slipstream.core.events import Event
    from slipstream.core.sights import JobSight

pytestmark = pytest.mark.property

RULES: Final = Rules(mode=Mode.ENFORCE, grow_after_s=20.0, requeue_pause_s=10.0)
CRED_EXPIRE_S: Final = 30.0
GPUS: Final = 4


@dataclass
class World:
    """Slurm with an elastic job of one GPU, another that comes and goes, and a scheduler."""

    names: tuple[str, ...] = ("n1", "n2")
    machine: Machine = field(default_factory=lambda: Machine(RULES))
    now_s: float = 1_000.0
    run: int = 1_000
    where: str = "n1"
    """Empty: it waits."""
    size: int = 1
    marked: int = 0
    bound: str = ""
    left: str = ""
    eligible_s: float = 0.0
    other: int = 0
    """GPUs that another job wants on n1; it starts as soon as it can."""
    other_runs: bool = False
    requeues: int = 0
    unasked: list[Save] = field(default_factory=list)

    def tell(self, event: Event, *, loses: bool = False) -> None:
        """The scheduler hears of something; what it wants is done, unless it dies over it."""
        commands = self.machine.handle(event)
        if not loses:
            self._do(commands)
            return
        remembered = self.machine.state.remembered(self.now_s)
        self.machine = Machine(RULES)
        self.machine.handle(remembered)
        self._do(self.machine.handle(events.SchedulerStarted(self.now_s)))

    def _do(self, commands: Iterable[Command]) -> None:
        for one in commands:
            if isinstance(one, Save):
                self.unasked.append(one)
            elif isinstance(one, Requeue) and self.where and one.submitted_at_s == self.run:
                self.requeues += 1
                self.left, self.where = self.where, ""
                self.run, self.eligible_s = int(self.now_s), self.now_s + CRED_EXPIRE_S
            elif isinstance(one, Start) and not self.where:
                (self.bound,) = one.nodes
                if one.size:
                    self.size, self.marked = one.size, one.size
                if one.at_once:
                    assert self.bound != self.left, "slurmd would lose it"
                    self.eligible_s = self.now_s
            elif isinstance(one, Resize) and not self.where:
                self.size, self.marked = one.size, 0

    def passes(self, later_s: float) -> None:
        """Slurm starts whom it can."""
        self.now_s += later_s
        free = GPUS - self._on("n1")
        if self.other and not self.other_runs and free >= self.other:
            self.other_runs = True
        if not self.where and self.now_s >= self.eligible_s:
            wanted = (self.bound,) if self.bound else self.names
            room = [name for name in wanted if GPUS - self._on(name) >= self.size]
            if room:
                self.where, self.bound = room[0], ""

    def _on(self, name: str) -> int:
        other = self.other if self.other_runs and name == "n1" else 0
        return other + (self.size if self.where == name else 0)

    def look(self) -> events.ClusterSeen:
        """What a poll shows."""
        jobs = (self._job(), *([self._other()] if self.other else []))
        nodes = tuple(node(name, used=self._on(name)) for name in self.names)
        return events.ClusterSeen(at_s=self.now_s, jobs=jobs, nodes=nodes, complete=True)

    def _job(self) -> JobSight:
        asked = replace(request(1), elastic=(1, 3), size=self.marked)
        seen = sight(
            "5", asked, reason="BeginTime" if self.eligible_s > self.now_s else "Resources"
        )
        if self.where:
            seen = holds("5", asked, *range(self.size), name=self.where)
        return replace(seen, number=5, submitted_at_s=self.run, wants_gpus=self.size)

    def _other(self) -> JobSight:
        if self.other_runs:
            return replace(holds("9", None, *range(GPUS - self.other, GPUS)), number=9)
        return replace(
            sight("9", None, Standing.WAITING, reason="Resources"), wants_gpus=self.other
        )

    def report(self, minibatch: int = 40) -> events.NodeReported:
        """Its node tells of it."""
        told = Training(ref="5", phase="training", minibatch=minibatch, restorable=True)
        return events.NodeReported(at_s=self.now_s, node=self.where or "n1", jobs=(told,))

    def answer(self, problem: str = "") -> events.JobSaved | None:
        """Its node has saved it, or could not."""
        if not self.unasked:
            return None
        one = self.unasked.pop()
        return events.JobSaved(
            at_s=self.now_s, node=one.node, job_id="5", number=one.number, problem=problem
        )


def step(world: World, what: str, *, loses: bool) -> None:
    """One thing happens."""
    match what:
        case "looks":
            world.tell(world.look(), loses=loses)
        case "reports":
            world.tell(world.report() if world.where else world.look(), loses=loses)
        case "saved" | "not saved":
            answer = world.answer("no room" if what == "not saved" else "")
            world.tell(answer or events.TimerFired(world.now_s), loses=loses)
        case "other comes":
            world.other = world.other or 2
        case "other leaves":
            world.other, world.other_runs = 0, False
        case "refused":
            world.tell(events.CommandRefused(world.now_s, token(1), "no"), loses=loses)
        case "requeued by others" if world.where:
            world.where, world.run = "", int(world.now_s)
            world.eligible_s = world.now_s + CRED_EXPIRE_S
        case "slurm away":
            world.tell(events.SlurmLost(world.now_s, "away"), loses=loses)
            world.tell(events.SlurmFound(world.now_s))
        case _:
            world.tell(events.TimerFired(world.now_s), loses=loses)


HAPPENS = (
    *("looks", "looks", "looks", "reports", "reports", "saved", "saved", "timer"),
    *("other comes", "other leaves", "not saved", "refused", "requeued by others", "slurm away"),
)
walks = st.lists(
    st.tuples(
        st.sampled_from(HAPPENS),
        st.sampled_from([0.5, 2.0, 10.0, 35.0, 120.0]),
        st.integers(0, 7).map(lambda drawn: drawn == 0),
    ),
    min_size=5,
    max_size=40,
)


@given(walks, st.sampled_from([("n1",), ("n1", "n2")]))
def test_whoever_dies_the_job_runs_or_waits_with_a_size_that_its_user_said(
    walk: list[tuple[str, float, bool]], names: tuple[str, ...]
) -> None:
    """And when all is quiet it runs; a requeue is never done for a run that was not saved."""
    world = World(names)
    world.tell(world.look())
    world.tell(world.report())
    world.tell(events.TimerFired(world.now_s + 25.0))
    for what, later_s, loses in walk:
        world.passes(later_s)
        step(world, what, loses=loses)
        assert 1 <= world.size <= 3
        assert len(world.machine.state.moves) <= 1
    world.other, world.other_runs = 0, False
    for _ in range(12):
        world.passes(40.0)
        world.tell(world.look())
        world.tell(events.TimerFired(world.now_s))
    assert world.where, "it runs"
    assert not [
        move for move in world.machine.state.moves.values() if move.asked_at_s < world.now_s - 420.0
    ], "every stage has an end"


@settings(max_examples=30)
@given(st.lists(st.booleans(), min_size=12, max_size=12))
def test_it_grows_and_shrinks_whoever_dies_on_the_way(loses: list[bool]) -> None:
    """A scheduler that dies over any of these events: the next one gets it there."""
    world, dies = World(("n1",)), iter(loses)

    def until(size: int) -> None:
        for _ in range(60):
            if world.where and world.size == size:
                return
            world.passes(5.0)
            if world.where:
                world.tell(world.report())
            world.tell(world.look(), loses=next(dies, False))
            answer = world.answer()
            if answer:
                world.tell(answer, loses=next(dies, False))
            world.tell(events.TimerFired(world.now_s), loses=next(dies, False))
        raise AssertionError(world)

    world.tell(world.look())
    until(3)
    assert world.requeues == 1
    world.passes(60.0)
    world.other = 2
    until(1)
    assert world.requeues == 2, "once for each"
    world.passes(1.0)
    assert world.other_runs
