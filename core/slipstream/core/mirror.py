# SPDX-License-Identifier: Apache-2.0
"""The brain, kept to what Slurm and the coordinators show.

The brain is told only of nodes that look otherwise than before. In a round of planning those who
wait come to it one by one, in Slurm's order; whom it seats has a promise, taken back when the next
round begins. So nothing the brain believes outlives what was seen, and a restored state needs no
brain: it is told everything anew.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from slipstream.core.classes import Mode, Role
from slipstream.core.cluster import events
from slipstream.core.cluster.asks import Ask
from slipstream.core.cluster.brain import Brain
from slipstream.core.cluster.commands import Move
from slipstream.core.cluster.jobs import Standing
from slipstream.core.cluster.rules import ClusterRules, Rule
from slipstream.core.network.gangs import SERVERS
from slipstream.core.placement import (
    MOST_NAMED,
    Placement,
    Room,
    able_to_hold,
    keeps,
    room_for,
    waits_at,
    with_hosts,
)
from slipstream.core.reasons import Reason
from slipstream.core.seats import Crowd, crowds
from slipstream.core.sitting import felt, node_seen
from slipstream.core.together import proposed
from slipstream.core.upgrading import counted
from slipstream.core.wires import Wires, seen

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from slipstream.core.cluster.events import ClusterEvent
    from slipstream.core.packing import Paired
    from slipstream.core.placement import Need
    from slipstream.core.rules import Rules
    from slipstream.core.sights import NodeSight
    from slipstream.core.state import State
    from slipstream.core.topology import Topology

_NOT_LIVE: Final = frozenset(
    {
        Rule.FAIRNESS,  # Slurm's priority has its own, and jobs come in its order: decision 0018
        Rule.RESERVATIONS,  # Slurm's backfill keeps nodes for the job that is first: the same
        Rule.LEVELS,  # turns are the nodes'
        Rule.AGEING,
        Rule.EARLY_FEEDBACK,
        Rule.GROW_SHRINK,  # beside the brain, which gives seats at once: slipstream.core.resizing
    }
)
_NOBODY: Final = Crowd()
_PROBE: Final = "?"


def live(rules: Rules, *, moves: bool) -> ClusterRules:
    """The brain's rules where Slurm holds the seats."""
    return ClusterRules(
        shares=rules.shares,
        guest_below_pct=rules.guest_below_pct,
        uplink_mbps=rules.uplink_mbps,
        takes_seats=False,
        without=_NOT_LIVE if moves else _NOT_LIVE | {Rule.MOVES, Rule.UPGRADES},
    )


def rules_of(state: State) -> ClusterRules:
    """Jobs are moved only where everything is carried out."""
    return live(state.rules, moves=state.advising and state.mode is Mode.ENFORCE)


class Wish(NamedTuple):
    """A job that should be elsewhere."""

    key: str
    nodes: tuple[str, ...]
    makes_room: bool = False
    """For a larger one that waits."""


class Mirror:
    """A brain and what it was told."""

    def __init__(self, rules: ClusterRules) -> None:
        self.rules = rules
        self.brain = Brain(rules)
        self.moves: list[Wish] = []
        """Jobs the brain wants on other nodes; whoever carries them out empties it."""
        self._emptying = False
        self._under_way = False
        self.stale_at_s: float | None = None
        """When the oldest report that counts will count no more."""
        self._told: dict[str, Hashable] = {}
        self._topology: Topology | None = None
        self._pairs: tuple[Paired, ...] = ()
        self._wires = Wires()
        self.families: frozenset[str] = frozenset()
        """Of these it is known what they do together with others."""

    def look(self, state: State, at_s: float) -> None:
        """Begin a round: promises are taken back, what was seen is told."""
        if self._is_rebuilt(state.nodes):
            self.brain, self._topology = Brain(self.rules), None
            self._pairs, self._wires = (), Wires()
            self._told.clear()
        self._under_way = bool(state.moves)
        self._tell(events.RoundBegan(at_s))
        if state.topology is not self._topology:
            self._topology = state.topology
            self._tell(events.RacksRead(at_s, state.topology))
        if (pairs := tuple(state.pairs.values())) != self._pairs:
            self._pairs = pairs
            self.families = frozenset(name for one in pairs for name in one.families)
            told = tuple((*one.families, one.total, one.at_s) for one in pairs)
            self._tell(events.PairsRemembered(at_s, told))
        reports = state.fresh_reports(at_s)
        if (wires := seen(state, reports)) != self._wires:
            self._wires = wires
            self._tell(events.UplinksSeen(at_s, wires.sent))
        oldest_s = min((report.at_s for report in reports.values()), default=None)
        self.stale_at_s = None if oldest_s is None else oldest_s + state.rules.report_s
        here = crowds(state.jobs.values(), state.requests, state.upgrades)
        nodes = counted(state.nodes, state)
        for name in sorted({*state.nodes, *self.brain.ground.node_at}):
            node, crowd, report = nodes.get(name), here.get(name, _NOBODY), reports.get(name)
            if node is None:
                self._gone(name, at_s)
                continue
            crowded = (tuple(crowd.owners.items()), tuple(crowd.guests), tuple(crowd.upgraded))
            looks = (node, crowded, felt(report))
            if self._told.get(name) != looks:
                self._told[name] = looks
                self._tell(node_seen(node, crowd, state.requests, report, at_s))

    def place(
        self,
        ref: str,
        need: Need,
        nodes: Mapping[str, NodeSight],
        at_s: float,
        before: Sequence[str] = (),
    ) -> Placement | Reason:
        """Seats for a job that waits, or why there are none. Nodes of before are kept."""
        kept = keeps(need, nodes, before)
        if kept and isinstance(found := self._come(ref, need, kept, at_s, before), Placement):
            return found
        room = room_for(need, nodes)
        if isinstance(room, Reason):
            if room is Reason.NO_FREE_GPU and ref != _PROBE:
                self._make_room(ref, need, nodes, at_s)
            return room
        found = self._come(ref, need, room, at_s, ())
        if isinstance(found, Placement) or found is Reason.OVER_QUOTA:
            return found
        if len(room.whole) < len(room.seated):
            seats = self._come(_PROBE, need, replace(room, whole=room.seated), at_s, ())
            if isinstance(seats, Placement):
                self._tell(events.JobLeft(at_s, _PROBE))
                return Reason.NO_FREE_CPU_OR_MEMORY
        return Reason.NO_FREE_GPU if need.role is Role.OWNER else Reason.NO_GUEST_SEAT

    def _make_room(self, ref: str, need: Need, nodes: Mapping[str, NodeSight], at_s: float) -> None:
        """Have a node emptied for a job of one node that is too large for every hole."""
        if need.nodes > 1 or need.spread or not self.rules.has(Rule.MOVES):
            return
        if self.moves or self._under_way:  # what follows from these is waited for
            return
        shape = Placement(("",), need.seats, need.tasks, need.tasks * need.cpus_per_task)
        room = Room(shape, frozenset(), able_to_hold(need, nodes))
        self._emptying = True
        self._tell(events.RoomWanted(at_s, self._ask(ref, need, room, at_s, ())))
        self._emptying = False

    def probe(self, need: Need, nodes: Mapping[str, NodeSight], at_s: float) -> Placement | Reason:
        """The same for a job that is elsewhere; nothing is promised."""
        found = self.place(_PROBE, need, nodes, at_s)
        self._tell(events.JobLeft(at_s, _PROBE))
        return found

    def waits_at(self, need: Need, nodes: Mapping[str, NodeSight], at_s: float) -> Placement | None:
        """Where a guest finds seats, and perhaps CPUs and memory that Slurm counts better."""
        room = room_for(need, nodes)
        if isinstance(room, Reason):
            return None
        brain, known = self.brain, self.brain.ground.node_at
        job = brain.imagined(self._ask(_PROBE, need, replace(room, whole=room.seated), at_s, ()))
        good = (
            name
            for name in sorted(room.seated)
            if name in known and brain.seating.picked(job, known[name], at_s, job.ask.each)
        )
        return waits_at(room, list(islice(good, MOST_NAMED)))

    def together(
        self, needs: Mapping[str, Need], nodes: Mapping[str, NodeSight]
    ) -> dict[str, tuple[str, ...]]:
        """Nodes for jobs of several nodes that could all start now, placed together."""
        ground = self.brain.ground

        def unowned(name: str) -> int:
            at = ground.node_at.get(name)
            return 0 if at is None else ground.unowned.number(at) or 0

        if self._topology is None:
            return {}
        return proposed(needs, nodes, unowned, self._topology, self._wires)

    def idle_gpus(self, name: str) -> int:
        """GPUs of a node that nobody is on, owner or guest."""
        ground = self.brain.ground
        at = ground.node_at.get(name)
        if at is None or at in ground.closed:
            return 0
        return sum(not ground.on[gpu] for gpu in ground.gpus_of[at])

    def upgradable(self) -> list[str]:
        """Guests that could own the GPUs they sit on, for all the brain knows."""
        return [job.ref for job in self.brain.upgradable()]

    def may_own(self, ref: str) -> bool:
        """Whether a job's account has room for it in its quota."""
        job = self.brain.jobs.get(ref)
        return job is not None and self.brain.tenants.may_own(job)

    def ended(self, at_s: float, waiting: int) -> None:
        """All who wait have come; so many of them found no seat."""
        self._tell(events.RoundEnded(at_s, waiting))

    def _come(
        self, ref: str, need: Need, room: Room, at_s: float, before: Sequence[str]
    ) -> Placement | Reason:
        """Let a job come to the brain; who finds no seat leaves again."""
        shape = room.shape
        if len(room.whole) < len(shape.nodes):
            return Reason.NO_FREE_CPU_OR_MEMORY
        ask = self._ask(ref, need, room, at_s, before)
        if not ask.gpus:
            return Reason.NO_NODE_FITS
        self._tell(events.JobCame(at_s, ask))
        job, ground = self.brain.jobs[ref], self.brain.ground
        if job.standing is not Standing.SEATED:
            reason = job.reason
            self._tell(events.JobLeft(at_s, ref))
            return reason
        names = dict.fromkeys(ground.names[ground.node_of[gpu]] for gpu in job.gpus)
        assert self._topology is not None  # noqa: S101 (look was called)
        return with_hosts(replace(shape, nodes=tuple(names)), need, self._topology)

    def _ask(self, ref: str, need: Need, room: Room, at_s: float, before: Sequence[str]) -> Ask:
        """The job as the brain knows it: who wants more seats than GPUs gets all of them."""
        shape = room.shape
        known, gpus_of = self.brain.ground.node_at, self.brain.ground.gpus_of
        most = max((len(gpus_of[known[name]]) for name in room.whole if name in known), default=0)
        return Ask(
            ref=ref,
            tenant=need.account,
            gpus=len(shape.nodes) * min(shape.seats_per_node, most),
            submitted_at_s=at_s,
            job_class=need.job_class,
            use_pct=need.gpu_use_pct,
            memory_mib=need.gpu_memory_mib,
            family=need.family,
            restorable=False,
            role=need.role,
            nodes=len(shape.nodes),
            on=room.whole,
            before=tuple(before),
            mbps=need.mbps,
            servers=any(name in SERVERS for name, _ in need.roles),
        )

    def _is_rebuilt(self, nodes: Mapping[str, NodeSight]) -> bool:
        """Whether a node has another number of GPUs than it had: nobody knows which are which."""
        ground = self.brain.ground
        return any(
            len(ground.gpus_of[at]) != nodes[name].gpus
            for name, at in ground.node_at.items()
            if name in nodes
        )

    def _gone(self, name: str, at_s: float) -> None:
        """A node Slurm does not know any more is a closed one."""
        if self._told.get(name, name) is not None:
            gpus = len(self.brain.ground.gpus_of[self.brain.ground.node_at[name]])
            empty = tuple(events.GpuSeen() for _ in range(gpus))
            self._tell(events.NodeSeen(at_s=at_s, node=name, gpus=empty, takes_jobs=False))
            self._told[name] = None

    def _tell(self, event: ClusterEvent) -> None:
        """Tell the brain; what it wants of jobs that sit is remembered, and not believed."""
        for command in self.brain.handle(event):
            if not isinstance(command, Move):
                continue
            nodes = tuple(dict.fromkeys(at for at, _ in command.places))
            self.moves.append(Wish(command.ref, nodes, self._emptying))
            self._told.clear()  # it believes that it has moved: it is told everything anew
