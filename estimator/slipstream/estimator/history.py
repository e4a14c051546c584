# SPDX-License-Identifier: Apache-2.0
"""The history of finished runs: one SQLite file, bounded, that a `kill -9` cannot hurt.

It is only there to estimate from. A file that is ruined is set aside with a loud line, and the next
runs fill a new one: no job ever waits for it.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from slipstream.estimator.runs import COLUMNS, from_json, from_row, to_json, to_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slipstream.estimator.features import Features
    from slipstream.estimator.runs import Run

_LOG = logging.getLogger(__name__)
FILE: Final = "history.sqlite"
MOST_RUNS: Final = 50_000
"""Of at most some 10 KiB each: features are bounded where they are read."""
LONGEST_S: Final = 400 * 86_400.0
ASKED_FOR_S: Final = 60 * 86_400.0
_VERSION: Final = 2
_NEW_IN: Final = {
    2: ("minibatch_ms", "minibatches", "nodes", "ranks", "cpu_s", "sent_mib", "device_s"),
}
"""Columns that a version brought: an older file gets them when it is opened."""
_SCHEMA: Final = f"""
CREATE TABLE run ({", ".join(COLUMNS)}, PRIMARY KEY (key)) WITHOUT ROWID;
CREATE INDEX run_by_end ON run (ended_s);
CREATE INDEX run_by_family ON run (family, ended_s);
"""
_ASKED: Final = """
CREATE TABLE asked (token PRIMARY KEY, at_s, family, numbers, categories) WITHOUT ROWID;
CREATE INDEX asked_by_time ON asked (at_s);
"""
"""Submissions whose jobs have not ended: their features, until there is a run to put them to."""
_PUT: Final = (
    f"INSERT OR REPLACE INTO run ({', '.join(COLUMNS)}) "  # noqa: S608 (our own words)
    f"VALUES ({', '.join('?' * len(COLUMNS))})"
)
_RUINED: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class HistoryError(Exception):
    """A history that cannot be used; says why."""


class Asked(NamedTuple):
    """The features of a submission as they may be stored."""

    family: str
    numbers: dict[str, float]
    categories: dict[str, int]


class History:
    """One file, made if it is not there. Raises `sqlite3.Error` when the disk does.

    Args:
        path: the file.
        most_runs: the oldest beyond that are forgotten.
        longest_s: what ended longer ago than this before the newest is forgotten, too.
    """

    def __init__(
        self, path: Path, most_runs: int = MOST_RUNS, longest_s: float = LONGEST_S
    ) -> None:
        self._most_runs = most_runs
        self._longest_s = longest_s
        self.set_aside: Path | None = None
        """Where a ruined file is now."""
        try:
            self._db = _opened(path)
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) not in _RUINED:
                raise
            self.set_aside = _set_aside(path)
            _LOG.critical(
                "%s is ruined (%s): it is %s now, and all estimates begin anew",
                *(path, error, self.set_aside),
            )
            self._db = _opened(path)

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def add(self, runs: Iterable[Run]) -> int:
        """Keep these, all or none, in place of what was known of them; returns how many came."""
        with self._all_or_none():
            count = self._db.executemany(_PUT, map(to_row, runs)).rowcount
            self._forget()
        return max(0, count)

    def runs(self, family: str | None = None) -> Iterator[Run]:
        """All, or those of one family, the newest first."""
        where, values = ("", ()) if family is None else ("WHERE family = ?", (family,))
        query = f"SELECT {', '.join(COLUMNS)} FROM run {where} ORDER BY ended_s DESC, key"  # noqa: S608 (our own words)
        with closing(self._db.execute(query, values)) as rows:
            for row in rows:
                yield from_row(dict(zip(COLUMNS, row, strict=True)))

    def families(self) -> dict[str, int]:
        """How many runs of each had their GPUs to themselves."""
        query = "SELECT family, count(*) FROM run WHERE alone GROUP BY family"
        return {str(family): int(count) for family, count in self._db.execute(query)}

    def newer(self, family: str | None, ended_s: float) -> int:
        """How many runs of a family, or of all, ended after that."""
        where, values = ("", ()) if family is None else ("family = ? AND", (family,))
        query = f"SELECT count(*) FROM run WHERE {where} ended_s > ?"  # noqa: S608 (our own words)
        (count,) = self._db.execute(query, (*values, ended_s)).fetchone()
        return int(count)

    def changes(self) -> int:
        """Another number after somebody else has written."""
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        return int(version)

    def remember(self, submissions: Iterable[tuple[str, float, Features]]) -> None:
        """Keep what jobs were submitted with, token and when, until they end: weeks at most."""
        rows = [
            (token, at_s, one.family, to_json(one.numbers), to_json(one.categories))
            for token, at_s, one in submissions
        ]
        with self._all_or_none():
            self._db.executemany("INSERT OR REPLACE INTO asked VALUES (?, ?, ?, ?, ?)", rows)
            self._db.execute(
                "DELETE FROM asked WHERE at_s < (SELECT max(at_s) FROM asked) - ?", (ASKED_FOR_S,)
            )
            self._db.execute(
                "DELETE FROM asked WHERE token IN (SELECT token FROM asked ORDER BY at_s DESC "
                "LIMIT -1 OFFSET ?)",
                (self._most_runs,),
            )

    def recalled(self, token: str) -> Asked | None:
        """What a job was submitted with, if we were told."""
        query = "SELECT family, numbers, categories FROM asked WHERE token = ?"
        row = self._db.execute(query, (token,)).fetchone()
        return Asked(row[0], from_json(row[1]), from_json(row[2])) if row else None

    def __len__(self) -> int:
        (count,) = self._db.execute("SELECT count(*) FROM run").fetchone()
        return int(count)

    @contextmanager
    def _all_or_none(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    def _forget(self) -> None:
        """What is too old, then the oldest of what is too much."""
        self._db.execute(
            "DELETE FROM run WHERE ended_s < (SELECT max(ended_s) FROM run) - ?", (self._longest_s,)
        )
        self._db.execute(
            "DELETE FROM run WHERE key IN (SELECT key FROM run ORDER BY ended_s DESC, key "
            "LIMIT -1 OFFSET ?)",
            (self._most_runs,),
        )


def _opened(path: Path) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    try:
        _check(db, path)
        db.execute("PRAGMA journal_mode=WAL")
        # A power cut may cost the last runs, never the file.
        db.execute("PRAGMA synchronous=NORMAL")
    except BaseException:
        db.close()
        raise
    return db


def _check(db: sqlite3.Connection, path: Path) -> None:
    """It is one of ours and whole; a new one gets its tables."""
    if _version(db, path) < _VERSION:
        db.execute("BEGIN IMMEDIATE")
        try:
            _bring_up_to_date(db, _version(db, path))  # somebody may have been faster
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        error = sqlite3.DatabaseError(verdict)
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


def _version(db: sqlite3.Connection, path: Path) -> int:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if not 0 <= version <= _VERSION:
        raise HistoryError(f"{path} is a history of version {version}, this is {_VERSION}")
    return int(version)


def _bring_up_to_date(db: sqlite3.Connection, version: int) -> None:
    """In a transaction; statement by statement, for a script would end it."""
    if version == _VERSION:
        return
    later = (name for number in range(version + 1, _VERSION + 1) for name in _NEW_IN[number])
    added = "".join(f"ALTER TABLE run ADD COLUMN {name};" for name in later) if version else _SCHEMA
    for statement in f"{added}{_ASKED}PRAGMA user_version={_VERSION};".split(";"):
        if statement.strip():
            db.execute(statement)


def _set_aside(path: Path) -> Path:
    """Out of the way, for whoever wants to look; of several the last one is kept."""
    aside = path.with_name(f"{path.name}.ruined")
    path.replace(aside)
    for companion in ("-wal", "-shm"):
        Path(f"{path}{companion}").unlink(missing_ok=True)
    return aside
