# SPDX-License-Identifier: Apache-2.0
"""Events and commands as text and back. Pure.

A kind is the name of its class: renaming a class or a field makes old journals unreadable, so
tests/unit/test_scheduler_journal.py keeps one line of each as it was first written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from slipstream.core.commands import Command
from slipstream.core.events import Event

if TYPE_CHECKING:
    from collections.abc import Mapping

EVENTS: Final[Mapping[str, type]] = {one.__name__: one for one in get_args(Event)}
COMMANDS: Final[Mapping[str, type]] = {one.__name__: one for one in get_args(Command)}
_ENCODER: Final = msgspec.json.Encoder()


class JournalError(Exception):
    """A journal that cannot be read; quotes the line."""


def written(one: Event | Command) -> tuple[str, str]:
    """Kind and body."""
    return type(one).__name__, _ENCODER.encode(one).decode()


def read_event(kind: str, body: str) -> Event:
    """The event of a line."""
    event: Event = _read(EVENTS, kind, body)
    return event


def read_command(kind: str, body: str) -> Command:
    """The command of a line."""
    command: Command = _read(COMMANDS, kind, body)
    return command


def _read(known: Mapping[str, type], kind: str, body: str) -> Any:  # noqa: ANN401 (one of `known`)
    if kind not in known:
        raise JournalError(f"kind {kind!r} is not known in a journal, only {sorted(known)}")
    try:
        return msgspec.json.decode(body, type=known[kind])
    except msgspec.DecodeError as error:
        raise JournalError(f"{kind} not understood ({error}): {body[:200]!r}") from error
