# SPDX-License-Identifier: Apache-2.0
"""Every job as JSON, made once when it changes, for all who ask.

Looking for what has changed yields now and then: a submission must not wait for ten thousand rows.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from slipstream.core.records import Phase
from slipstream.scheduler import views

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.core.records import JobRecord
    from slipstream.core.sights import Training
    from slipstream.core.state import State

ENCODER: Final = msgspec.json.Encoder()
_AT_ONCE: Final = 64
"""Jobs between two breaths: a millisecond or so when all of them are new."""


class JobRows:
    """Rows by the jobs' keys; those that hold GPUs for others have none.

    Args:
        make: a job as plain data.
    """

    def __init__(self, make: Callable[[State, JobRecord, Training | None], object]) -> None:
        self.rows: dict[str, bytes] = {}
        self._make = make
        self._made_of: dict[str, tuple[Any, ...]] = {}

    async def refresh(self, state: State) -> tuple[list[bytes], list[str]]:
        """Rows that are new or other, and keys that are gone. Nobody else may meanwhile."""
        changed: list[bytes] = []
        training = views.training_of(state)
        for number, key in enumerate(list(state.jobs), start=1):
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)
            record = state.jobs.get(key)
            if record is None or key in state.placeholders:
                continue
            sight = record.sight
            trains = training.get(str(sight.number)) if sight else None
            parts = (
                record,
                state.requests.get(record.token),
                state.advice.get(record.advice_key),
                state.upgrades.get(key),
                state.parked.get(key),
                state.figures.get(key),
                trains,
            )
            if same(self._made_of.get(key), parts):
                continue
            self._made_of[key] = parts
            row = encoded(self._make(state, record, trains))
            if self.rows.get(key) != row:
                self.rows[key] = row
                changed.append(row)
        hidden = [key for key in state.placeholders if key in self.rows]
        gone = [key for key in self.rows if key not in state.jobs] + hidden
        for key in gone:
            del self.rows[key]
            self._made_of.pop(key, None)
        return changed, gone


class JobList:
    """What `/v1/jobs` answers: all rows in the order of their numbers."""

    def __init__(self) -> None:
        self._all = JobRows(views.job)
        self._order: list[str] = []
        self._joined: dict[bool, bytes] = {}
        """The answer, with those that have ended and without, until something changes."""
        self._lock = asyncio.Lock()

    async def json(self, state: State, *, ended: bool) -> bytes:
        """A list; those that have ended only if asked for."""
        async with self._lock:
            changed, gone = await self._all.refresh(state)
            if changed or gone:
                self._joined.clear()
            if gone or len(self._order) != len(self._all.rows):
                known = [state.jobs[key] for key in self._all.rows if key in state.jobs]
                self._order = [record.key for record in sorted(known, key=views.by_number)]
            if ended not in self._joined:
                self._joined[ended] = self._join(state, ended=ended)
            return self._joined[ended]

    def _join(self, state: State, *, ended: bool) -> bytes:
        over = () if ended else (Phase.ENDED, Phase.LOST)
        known = ((key, state.jobs.get(key)) for key in self._order)
        rows = self._all.rows
        shown = [rows[key] for key, one in known if one is not None and one.phase not in over]
        return b"[" + b",".join(shown) + b"]"


def encoded(told: object) -> bytes:
    """As JSON. Users choose names: half a character in one of them must not cost all the others."""
    try:
        return ENCODER.encode(told)
    except UnicodeEncodeError:
        return ENCODER.encode(_whole(told))


def _whole(told: Any) -> Any:  # noqa: ANN401 (plain data)
    match told:
        case str():
            return told.encode(errors="replace").decode()
        case dict():
            return {name: _whole(one) for name, one in told.items()}
        case list() | tuple():
            return [_whole(one) for one in told]
    return told


def same(before: tuple[Any, ...] | None, now: tuple[Any, ...]) -> bool:
    """The very same things: all of them are frozen, so that a change makes another."""
    return before is not None and all(map(_is, before, now))


def _is(one: object, other: object) -> bool:
    return one is other
