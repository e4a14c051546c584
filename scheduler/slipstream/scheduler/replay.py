# SPDX-License-Identifier: Apache-2.0
"""Re-decide a journal: the same events must lead to the same commands. Pure, but for its input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.core.machine import Machine
from slipstream.scheduler.journal_codec import written

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipstream.core.commands import Command
    from slipstream.core.events import Event
    from slipstream.scheduler.journal import Entry


@dataclass(frozen=True, slots=True)
class Difference:
    """An event about which this version decides otherwise than the journal's did."""

    event: Event
    recorded: tuple[Command, ...]
    decided: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay found."""

    events: int
    commands: tuple[Command, ...]
    differences: tuple[Difference, ...]


def replay(entries: Iterable[Entry]) -> Replay:
    """Tell a new machine the journal's events and compare."""
    machine = Machine()
    commands: list[Command] = []
    differences: list[Difference] = []
    events = 0
    for events, entry in enumerate(entries, 1):  # noqa: B007 (their number is wanted afterwards)
        decided = tuple(machine.handle(entry.event))
        commands += decided
        if decided != entry.commands:
            differences.append(Difference(entry.event, entry.commands, decided))
    return Replay(events, tuple(commands), tuple(differences))


def as_lines(commands: Iterable[Command]) -> list[str]:
    """Commands as the journal writes them, one per line: equal texts are equal decisions."""
    return [" ".join(written(command)) for command in commands]
