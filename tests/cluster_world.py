# SPDX-License-Identifier: Apache-2.0
"""A cluster in a line each, and a ledger that carries out the brain's commands and checks them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.core.classes import JobClass, Role
from slipstream.core.cluster.asks import Ask
from slipstream.core.cluster.brain import Brain
from slipstream.core.cluster.commands import (
    Downgrade,
    Move,
    Park,
    Resize,
    Start,
    Unpark,
    Upgrade,
)
from slipstream.core.cluster.events import JobCame, JobLeft, NodeCame, TimerFired

if TYPE_CHECKING:
    from slipstream.core.cluster.asks import Place
    from slipstream.core.cluster.commands import ClusterCommand
    from slipstream.core.cluster.events import ClusterEvent
    from slipstream.core.cluster.rules import ClusterRules

GPU_MIB = 16_000


def ask(  # noqa: PLR0913 (a line per job)
    ref: str,
    gpus: int = 1,
    job_class: JobClass = JobClass.SHARED,
    *,
    tenant: str = "a",
    use_pct: float = 40.0,
    memory_mib: int = 4_000,
    at_s: float = 0.0,
    priority: int = 0,
    elastic_max: int = 0,
    restorable: bool = True,
    shares: bool = True,
) -> Ask:
    """A job that wants little of its GPUs."""
    return Ask(
        ref=ref,
        tenant=tenant,
        gpus=gpus,
        submitted_at_s=at_s,
        job_class=job_class,
        use_pct=use_pct,
        memory_mib=memory_mib,
        family=ref,
        priority=priority,
        elastic_max=elastic_max,
        restorable=restorable,
        shares=shares,
    )


@dataclass(slots=True)
class Ledger:
    """What a cluster would look like that does what it is told, one command after the other."""

    brain: Brain
    asks: dict[str, Ask] = field(default_factory=dict)
    seats: dict[str, tuple[Place, ...]] = field(default_factory=dict)
    roles: dict[str, Role] = field(default_factory=dict)
    parked: dict[str, tuple[Place, ...]] = field(default_factory=dict)
    events: list[ClusterEvent] = field(default_factory=list)
    commands: list[ClusterCommand] = field(default_factory=list)
    now_s: float = 0.0

    def tell(self, event: ClusterEvent) -> list[ClusterCommand]:
        """One event, and all that is commanded for it."""
        self.now_s = event.at_s
        self.events.append(event)
        if isinstance(event, JobCame):
            self.asks.setdefault(event.ask.ref, event.ask)
        if isinstance(event, JobLeft):
            for kept in (self.asks, self.seats, self.roles, self.parked):
                kept.pop(event.ref, None)
        commands = self.brain.handle(event)
        for command in commands:
            self._do(command)
        self.commands += commands
        self.check({one.ref for one in commands if isinstance(one, Start | Unpark | Move | Resize)})
        return commands

    def came(self, *asks: Ask) -> list[ClusterCommand]:
        """Jobs are submitted."""
        return [command for one in asks for command in self.tell(JobCame(self.now_s, one))]

    def left(self, ref: str) -> list[ClusterCommand]:
        """A job ends."""
        return self.tell(JobLeft(self.now_s, ref))

    def pass_to(self, at_s: float) -> list[ClusterCommand]:
        """Time passes, with all the timers in it."""
        found: list[ClusterCommand] = []
        while (due_s := self.brain.wakes_at_s()) is not None and due_s <= at_s:
            found += self.tell(TimerFired(max(due_s, self.now_s)))
        self.now_s = at_s
        return found

    def node_of(self, ref: str) -> str:
        """Where a job sits."""
        return self.seats[ref][0][0]

    def check(self, fresh: set[str]) -> None:
        """Nothing is anywhere that cannot be there; memory is judged by what was known then."""
        on: dict[Place, list[str]] = {}
        for ref, places in self.seats.items():
            assert len(set(places)) == len(places), ref
            for place in places:
                on.setdefault(place, []).append(ref)
        for place, refs in on.items():
            owners = [ref for ref in refs if self.roles[ref] is Role.OWNER]
            assert len(owners) <= 1, (place, owners)
            assert len(refs) <= self.brain.rules.most_on_gpu, (place, refs)
            if len(refs) > 1 and fresh & {*refs}:
                known = [self.brain.jobs[ref].memory_mib for ref in refs]
                assert sum(known) <= GPU_MIB, (place, refs)
        assert not self.seats.keys() & self.parked.keys()

    def _do(self, command: ClusterCommand) -> None:
        ref = command.ref
        match command:
            case Start():
                assert ref not in self.seats
                assert ref not in self.parked
                self.seats[ref], self.roles[ref] = command.places, command.role
            case Park():
                self.parked[ref] = self.seats.pop(ref)
            case Unpark():
                self.seats[ref], self.roles[ref] = self.parked.pop(ref), command.role
            case Move():
                assert self.asks[ref].restorable
                assert ref in self.seats or ref in self.parked
                self.parked.pop(ref, None)
                self.seats[ref], self.roles[ref] = command.places, command.role
            case Resize():
                assert ref in self.seats
                self.seats[ref] = command.places
            case Upgrade() | Downgrade():
                self.roles[ref] = Role.OWNER if isinstance(command, Upgrade) else Role.GUEST


def cluster(nodes: int = 2, gpus: int = 4, rules: ClusterRules | None = None) -> Ledger:
    """Empty nodes, n0 and so on."""
    ledger = Ledger(Brain(rules))
    for at in range(nodes):
        ledger.tell(NodeCame(at_s=0.0, node=f"n{at}", gpus=gpus, memory_mib=GPU_MIB))
    return ledger
