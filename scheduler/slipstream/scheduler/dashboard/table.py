# SPDX-License-Identifier: Apache-2.0
"""All rows as JSON, each encoded once when it changes, for every browser and every snapshot.

Looking for what has changed yields now and then: a submission must not wait for ten thousand rows.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import msgspec

from slipstream.scheduler.dashboard.past import owners
from slipstream.scheduler.dashboard.rows import job_row, node_row
from slipstream.scheduler.views import training_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipstream.core.state import State

ENCODER: Final = msgspec.json.Encoder()
_AT_ONCE: Final = 256
"""Jobs between two breaths: well below a millisecond when nothing has changed."""


@dataclass(slots=True)
class Changes:
    """Rows that are new or other, and names that are gone."""

    jobs: list[bytes] = field(default_factory=list)
    jobs_gone: list[str] = field(default_factory=list)
    nodes: list[bytes] = field(default_factory=list)
    nodes_gone: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.jobs or self.jobs_gone or self.nodes or self.nodes_gone)


class Table:
    """What browsers have been told, or are told next."""

    def __init__(self) -> None:
        self.jobs: dict[str, bytes] = {}
        self.nodes: dict[str, bytes] = {}
        self._job_made_of: dict[str, tuple[Any, ...]] = {}
        self._node_made_of: dict[str, tuple[Any, ...]] = {}

    async def refresh(self, state: State) -> Changes:
        """Bring it up to date; nobody else may meanwhile."""
        changes = Changes()
        await self._refresh_jobs(state, changes)
        self._refresh_nodes(state, changes)
        return changes

    async def _refresh_jobs(self, state: State, changes: Changes) -> None:
        training = training_of(state)
        for number, key in enumerate(list(state.jobs)):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            record = state.jobs.get(key)
            if record is None or key in state.placeholders:
                continue
            sight = record.sight
            trains = training.get(str(sight.number)) if sight and sight.nodes else None
            parts = (
                record,
                state.requests.get(record.token),
                state.advice.get(record.advice_key),
                state.upgrades.get(key),
                trains,
            )
            if not _same(self._job_made_of.get(key), parts):
                self._job_made_of[key] = parts
                row = ENCODER.encode(job_row(state, record, trains))
                if self.jobs.get(key) != row:
                    self.jobs[key] = row
                    changes.jobs.append(row)
        changes.jobs_gone = _drop(self.jobs, self._job_made_of, state.jobs, state.placeholders)

    def _refresh_nodes(self, state: State, changes: Changes) -> None:
        owned = owners(state)
        for name, node in state.nodes.items():
            here = owned.get(name, {})
            report = state.reports.get(name)
            parts = (node, report, state.groups)
            before = self._node_made_of.get(name)
            if before is None or before[-1] != here or not _same(before[:-1], parts):
                self._node_made_of[name] = (*parts, here)
                row = ENCODER.encode(node_row(state, node, report, here))
                if self.nodes.get(name) != row:
                    self.nodes[name] = row
                    changes.nodes.append(row)
        changes.nodes_gone = _drop(self.nodes, self._node_made_of, state.nodes, ())


def _same(before: tuple[Any, ...] | None, now: tuple[Any, ...]) -> bool:
    """The very same things: all of them are frozen, so that a change makes another."""
    return before is not None and all(map(_is, before, now))


def _is(one: object, other: object) -> bool:
    return one is other


def _drop(
    rows: dict[str, bytes],
    made_of: dict[str, tuple[Any, ...]],
    there: dict[str, Any],
    hidden: Iterable[str],
) -> list[str]:
    gone = [key for key in rows if key not in there] + [key for key in hidden if key in rows]
    for key in gone:
        del rows[key]
        made_of.pop(key, None)
    return gone
