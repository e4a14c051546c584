# SPDX-License-Identifier: Apache-2.0
"""Everything the machine remembers, as one event that brings it back.

A journal may begin with such an event instead of all that came before it: the commands after it
are the same (tests/property/test_core_machine.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.core.classes import Mode
from slipstream.core.events import NodeReported, StateRestored
from slipstream.core.reasons import Reason
from slipstream.core.rules import Rules
from slipstream.core.topology import Group, Topology, flat

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slipstream.core.advice import Advice
    from slipstream.core.extending import Wait
    from slipstream.core.figures import Figures
    from slipstream.core.moves import Left, Saga
    from slipstream.core.packing import Paired
    from slipstream.core.parking import Parked
    from slipstream.core.records import JobRecord
    from slipstream.core.sights import NodeSight, Request
    from slipstream.core.upgrading import Upgraded


@dataclass(slots=True)
class State:
    """Jobs and advice by their keys, requests by token, nodes and their reports by name."""

    mode: Mode = Mode.OBSERVE
    rules: Rules = field(default_factory=Rules)
    switched_off: bool = False
    slurm_away: bool = False
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    requests: dict[str, Request] = field(default_factory=dict)
    advice: dict[str, Advice] = field(default_factory=dict)
    nodes: dict[str, NodeSight] = field(default_factory=dict)
    reports: dict[str, NodeReported] = field(default_factory=dict)
    groups: tuple[Group, ...] = ()
    moves: dict[str, Saga] = field(default_factory=dict)
    """Under way, by the job's key."""
    left: dict[str, Left] = field(default_factory=dict)
    swapped: dict[str, float] = field(default_factory=dict)
    """Jobs that were to ask for seats, or for fewer GPUs, while they wait, by their keys: when."""
    idle_since_s: float | None = None
    """Since when nobody waits for GPUs while elastic jobs run, where everything is carried out."""
    waits: dict[str, Wait] = field(default_factory=dict)
    """How long jobs have waited for others, by their keys."""
    upgrades: dict[str, Upgraded] = field(default_factory=dict)
    """Guests that own their GPUs, will, or were to, by their keys."""
    pairs: dict[tuple[str, str], Paired] = field(default_factory=dict)
    """What two families of guests did together on one GPU, the latest last."""
    parked: dict[str, Parked] = field(default_factory=dict)
    """What operators have parked, by the jobs' keys."""
    figures: dict[str, Figures] = field(default_factory=dict)
    """What jobs have done in all their starts, by their keys: also of those that have ended."""
    placeholders: dict[str, None] = field(default_factory=dict)
    """The keys of jobs that hold GPUs for guests."""
    _numbers: dict[str, str] = field(default_factory=dict)
    """The keys of jobs by the numbers that nodes know them by."""
    _keys_of: dict[str, dict[str, None]] = field(default_factory=dict)
    """The jobs of each token, in the order they came: arrays have thousands."""
    _topology: tuple[tuple[str, ...], tuple[Group, ...], Topology] | None = None

    def put(self, record: JobRecord) -> None:
        """Keep a job, in place of what was known under its key."""
        self.jobs[record.key] = record
        if record.sight and record.sight.holds_for:
            self.placeholders[record.key] = None
        if record.sight and record.sight.nodes:  # the tasks of an array that wait share theirs
            self._numbers[str(record.sight.number)] = record.key
        if record.token:
            self._keys_of.setdefault(record.token, {})[record.key] = None

    def drop(self, key: str) -> JobRecord | None:
        """Forget a job; returns what was known of it."""
        record = self.jobs.pop(key, None)
        self.moves.pop(key, None)
        self.left.pop(key, None)
        self.swapped.pop(key, None)
        self.waits.pop(key, None)
        self.upgrades.pop(key, None)
        self.parked.pop(key, None)
        self.figures.pop(key, None)
        self.placeholders.pop(key, None)
        number = str(record.sight.number) if record and record.sight else ""
        if self._numbers.get(number) == key:
            del self._numbers[number]
        if record and record.token:
            keys = self._keys_of[record.token]
            del keys[key]
            if not keys:
                del self._keys_of[record.token]
        return record

    def numbered(self, number: str) -> JobRecord | None:
        """The job that nodes know by this number."""
        return self.jobs.get(self._numbers.get(number, ""))

    def key_of(self, name: str) -> str:
        """The key of the job that somebody means by `name`: 12, 12_3 or Slurm's number of 12_3.

        The number of an array is also that of one of its tasks, and then means no single job.
        """
        record = self.numbered(name) if name not in self.jobs else None
        if record is None or record.key.startswith(f"{name}_"):
            return name
        return record.key

    def fresh_reports(self, at_s: float) -> dict[str, NodeReported]:
        """What nodes reported, but for what is too old to be true."""
        oldest_s = at_s - self.rules.report_s
        return {name: one for name, one in self.reports.items() if one.at_s > oldest_s}

    @property
    def topology(self) -> Topology:
        """As it was read; one rack of all nodes before that."""
        names = () if self.groups else tuple(sorted(self.nodes))
        if self._topology is None or self._topology[:2] != (names, self.groups):
            built = Topology(self.groups) if self.groups or not names else flat(names)
            self._topology = (names, self.groups, built)
        return self._topology[2]

    @property
    def advising(self) -> bool:
        """Whether advice is carried out."""
        return self.mode is not Mode.OBSERVE and not self.switched_off

    @property
    def why_idle(self) -> Reason | None:
        """Why nothing is carried out; None if it is."""
        if self.advising:
            return None
        return Reason.SWITCHED_OFF if self.switched_off else Reason.WOULD_ADVISE

    def with_token(self, token: str) -> Iterator[JobRecord]:
        """The jobs of one submission: one, or the tasks of an array."""
        return (self.jobs[key] for key in self._keys_of.get(token, ()))

    def remembered(self, at_s: float) -> StateRestored:
        """All of it, as an event."""
        return StateRestored(
            at_s=at_s,
            mode=self.mode,
            rules=self.rules,
            switched_off=self.switched_off,
            slurm_away=self.slurm_away,
            jobs=tuple(self.jobs.values()),
            requests=tuple(self.requests.values()),
            advice=tuple(self.advice.values()),
            nodes=tuple(self.nodes.values()),
            reports=tuple(self.reports.values()),
            groups=self.groups,
            moves=tuple(self.moves.values()),
            left=tuple(self.left.items()),
            swapped=tuple(self.swapped.items()),
            waits=tuple(self.waits.values()),
            upgrades=tuple(self.upgrades.values()),
            pairs=tuple(self.pairs.values()),
            parked=tuple(self.parked.values()),
            figures=tuple(self.figures.values()),
            idle_since_s=self.idle_since_s,
        )


def restored(event: StateRestored) -> State:
    """The state an event tells of."""
    state = State(
        mode=event.mode,
        rules=event.rules,
        switched_off=event.switched_off,
        slurm_away=event.slurm_away,
        requests={request.token: request for request in event.requests},
        advice={advice.key: advice for advice in event.advice},
        nodes={node.name: node for node in event.nodes},
        reports={report.node: report for report in event.reports},
        groups=event.groups,
        moves={move.key: move for move in event.moves},
        left=dict(event.left),
        swapped=dict(event.swapped),
        waits={wait.key: wait for wait in event.waits},
        upgrades={one.key: one for one in event.upgrades},
        pairs={one.families: one for one in event.pairs},
        parked={one.key: one for one in event.parked},
        figures={one.key: one for one in event.figures},
        idle_since_s=event.idle_since_s,
    )
    for record in event.jobs:
        state.put(record)
    return state
