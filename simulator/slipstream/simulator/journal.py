# SPDX-License-Identifier: Apache-2.0
"""What a simulation told the brain and what it answered, a line each; and deciding it all again.

The first line has the brain's rules. The same events must give the same commands, whatever
version, machine or hash seed decides: a difference is a bug, or a change of policy to look at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from slipstream.core.cluster.brain import Brain
from slipstream.core.cluster.commands import ClusterCommand
from slipstream.core.cluster.events import ClusterEvent
from slipstream.core.cluster.rules import ClusterRules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import TextIO

_KINDS: Final = {one.__name__: one for one in (*get_args(ClusterEvent), *get_args(ClusterCommand))}


class JournalError(Exception):
    """A line that is not understood; quotes it."""


@dataclass(frozen=True, slots=True)
class Difference:
    """An event about which this version decides otherwise."""

    event: ClusterEvent
    recorded: tuple[ClusterCommand, ...]
    decided: tuple[ClusterCommand, ...]


class Recorder:
    """A brain that writes down what it hears and says."""

    def __init__(self, brain: Brain, file: TextIO) -> None:
        self._brain = brain
        self._file = file
        self._write(msgspec.to_builtins(brain.rules))

    def handle(self, event: ClusterEvent) -> list[ClusterCommand]:
        """Take in what happened and say what to do."""
        commands = self._brain.handle(event)
        self._write([_written(one) for one in (event, *commands)])
        return commands

    def wakes_at_s(self) -> float | None:
        """When the brain wants a TimerFired."""
        return self._brain.wakes_at_s()

    def _write(self, line: object) -> None:
        self._file.write(msgspec.json.encode(line).decode() + "\n")


def replayed(lines: Iterable[str]) -> Iterator[Difference]:
    """Tell a new brain all of it; what it decides otherwise."""
    numbered = iter(lines)
    brain = Brain(_read(next(numbered, ""), ClusterRules))
    for line in numbered:
        event, *recorded = (_one(*pair) for pair in _read(line, list[tuple[str, Any]]))
        decided = brain.handle(event)
        if decided != recorded:
            yield Difference(event, tuple(recorded), tuple(decided))


def _written(one: ClusterEvent | ClusterCommand) -> tuple[str, ClusterEvent | ClusterCommand]:
    return type(one).__name__, one


def _one(kind: str, body: object) -> Any:  # noqa: ANN401 (an event or a command)
    if kind not in _KINDS:
        raise JournalError(f"kind {kind!r} is not known, only {sorted(_KINDS)}")
    return msgspec.convert(body, _KINDS[kind])


def _read(line: str, kind: Any) -> Any:  # noqa: ANN401 (what is asked for)
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise JournalError(f"not understood ({error}): {line[:200]!r}") from error
