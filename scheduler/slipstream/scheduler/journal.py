# SPDX-License-Identifier: Apache-2.0
"""The journal: what happened and what we mean to do about it, on disk before it is done.

SQLite in WAL mode, synchronous=FULL for intentions: what `record` returned from survives a power
cut. One thread at a time uses it.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from slipstream.core.commands import Admit, Arrival, Settle
from slipstream.core.events import StateRestored
from slipstream.scheduler.journal_codec import JournalError, read_command, read_event, written

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from slipstream.core.commands import Command
    from slipstream.core.events import Event

_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE event (
    seq INTEGER PRIMARY KEY,
    at_s REAL NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL
);
CREATE TABLE intention (
    id INTEGER PRIMARY KEY,
    seq INTEGER NOT NULL,
    token TEXT NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    state TEXT NOT NULL,
    note TEXT NOT NULL DEFAULT ''
);
CREATE INDEX intention_by_seq ON intention (seq);
CREATE INDEX intention_by_token ON intention (token, kind);
CREATE INDEX intention_open ON intention (state) WHERE state = 'intended';
"""


class Outcome(StrEnum):
    """What became of an intention."""

    INTENDED = "intended"
    """Written down; whether it was done is not known yet."""
    DONE = "done"
    REFUSED = "refused"
    LAPSED = "lapsed"
    """It was overtaken: nothing is left to do about it."""


_OUTCOME: Final[Mapping[type, Outcome]] = {Settle: Outcome.DONE}
"""What nothing is left to do about once it is written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One event with the commands it led to."""

    event: Event
    commands: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Intention:
    """A command that was written down."""

    id: int
    command: Command
    outcome: Outcome
    note: str = ""


class Journal:
    """One file. Raises `sqlite3.Error` when the disk does.

    Args:
        path: the file; made if it is not there.
        read_only: for a look at it, also beside a daemon that writes it.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        # The daemon's main thread reads it at start, then hands it to the thread that writes.
        self._db = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}",
            uri=True,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            self._open(path, read_only=read_only)
        except BaseException:
            self._db.close()
            raise

    def _open(self, path: Path, *, read_only: bool) -> None:
        if not read_only:
            self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=FULL")
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found != _VERSION and (found or read_only):
            raise JournalError(f"{path} is a journal of version {found}, this is {_VERSION}")
        if found == 0:
            self._db.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version={_VERSION};COMMIT;")

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def record(self, entries: Sequence[Entry]) -> list[Intention]:
        """Write events and intentions down, all or none; returns what is now to be done."""
        with self._transaction():
            seq, number = self._last("event", "seq"), self._last("intention", "id")
            events = [
                (at, entry.event.at_s, *written(entry.event))
                for at, entry in enumerate(entries, seq + 1)
            ]
            commands = [
                (at, one) for at, entry in enumerate(entries, seq + 1) for one in entry.commands
            ]
            intentions = [
                Intention(one, command, _OUTCOME.get(type(command), Outcome.INTENDED))
                for one, (_, command) in enumerate(commands, number + 1)
            ]
            # One statement for a whole burst: its parts cost more than what they write.
            self._db.executemany(
                "INSERT INTO event (seq, at_s, kind, body) VALUES (?, ?, ?, ?)", events
            )
            self._db.executemany(
                "INSERT INTO intention (id, seq, token, kind, body, state) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                [
                    (one.id, at, command.token, *written(command), one.outcome)
                    for one, (at, command) in zip(intentions, commands, strict=True)
                ],
            )
            self._settle([one for _, one in commands if isinstance(one, Settle)])
        return [one for one in intentions if one.outcome is Outcome.INTENDED]

    def _last(self, table: str, key: str) -> int:
        (last,) = self._db.execute(f"SELECT coalesce(max({key}), 0) FROM {table}").fetchone()  # noqa: S608 (ours)
        return int(last)

    def finish(self, results: Sequence[tuple[int, Outcome, str]]) -> None:
        """Write down what became of intentions.

        Not waiting for the disk: what a power cut takes from this is only done once more.
        """
        self._db.execute("PRAGMA synchronous=NORMAL")
        try:
            with self._transaction():
                self._db.executemany(
                    "UPDATE intention SET state = ?, note = ? WHERE id = ?",
                    [(outcome, note, one) for one, outcome, note in results],
                )
        finally:
            self._db.execute("PRAGMA synchronous=FULL")

    def events(self) -> Iterator[Event]:
        """What leads to the present state: the last checkpoint and all that came after."""
        return (event for _seq, event in self._events())

    def entries(self) -> Iterator[Entry]:
        """The same with the commands each led to."""
        for seq, event in self._events():
            rows = self._db.execute(
                "SELECT kind, body FROM intention WHERE seq = ? ORDER BY id", (seq,)
            )
            yield Entry(event, tuple(read_command(kind, body) for kind, body in rows))

    def _events(self) -> Iterator[tuple[int, Event]]:
        rows = self._db.execute(
            "SELECT seq, kind, body FROM event WHERE seq >= "
            "coalesce((SELECT max(seq) FROM event WHERE kind = ?), 0) ORDER BY seq",
            (StateRestored.__name__,),
        )
        return ((seq, read_event(kind, body)) for seq, kind, body in rows)

    def intentions(self, token: str | None = None) -> list[Intention]:
        """Those about one job, or all that are still open."""
        where, values = ("token = ?", (token,)) if token else ("state = 'intended'", ())
        rows = self._db.execute(
            f"SELECT id, kind, body, state, note FROM intention WHERE {where} ORDER BY id",  # noqa: S608 (both are above)
            values,
        )
        return [
            Intention(one, read_command(kind, body), Outcome(state), note)
            for one, kind, body, state, note in rows
        ]

    def forget_before_checkpoint(self) -> None:
        """Delete what the last checkpoint made unnecessary, but for open intentions."""
        with self._transaction():
            (seq,) = self._db.execute(
                "SELECT coalesce(max(seq), 0) FROM event WHERE kind = ?", (StateRestored.__name__,)
            ).fetchone()
            self._db.execute("DELETE FROM event WHERE seq < ?", (seq,))
            self._db.execute("DELETE FROM intention WHERE seq < ? AND state != 'intended'", (seq,))

    def count(self) -> int:
        """How many events it holds."""
        (number,) = self._db.execute("SELECT count(*) FROM event").fetchone()
        return int(number)

    def _settle(self, commands: Sequence[Settle]) -> None:
        """The admission of a job is confirmed by Slurm, or it never came."""
        self._db.executemany(
            # By itself SQLite would go through all that is open, for each job of a burst.
            "UPDATE intention INDEXED BY intention_by_token SET state = ?, note = ? "
            "WHERE token = ? AND kind = ? AND state = 'intended'",
            [
                (Outcome.DONE, f"job {one.ref}", one.token, Admit.__name__)
                if one.arrival is Arrival.SEEN
                else (Outcome.LAPSED, "it never came into Slurm's queue", one.token, Admit.__name__)
                for one in commands
            ],
        )

    def _transaction(self) -> _Transaction:
        return _Transaction(self._db)


class _Transaction:
    """BEGIN IMMEDIATE … COMMIT; rolled back by any exception."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        self._db.execute("COMMIT" if kind is None else "ROLLBACK")
