# SPDX-License-Identifier: Apache-2.0
"""All rows as JSON, each encoded once when it changes, for every browser and every snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slipstream.scheduler.dashboard.past import owners
from slipstream.scheduler.dashboard.rows import job_row, node_row
from slipstream.scheduler.job_rows import ENCODER, JobRows, same

if TYPE_CHECKING:
    from slipstream.core.state import State


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
        self.nodes: dict[str, bytes] = {}
        self._jobs = JobRows(job_row)
        self._node_made_of: dict[str, tuple[Any, ...]] = {}

    @property
    def jobs(self) -> dict[str, bytes]:
        """Rows by key."""
        return self._jobs.rows

    async def refresh(self, state: State) -> Changes:
        """Bring it up to date; nobody else may meanwhile."""
        changes = Changes(*await self._jobs.refresh(state))
        self._refresh_nodes(state, changes)
        return changes

    def _refresh_nodes(self, state: State, changes: Changes) -> None:
        owned = owners(state)
        for name, node in state.nodes.items():
            here = owned.get(name, {})
            report = state.reports.get(name)
            parts = (node, report, state.groups)
            before = self._node_made_of.get(name)
            if before is None or before[-1] != here or not same(before[:-1], parts):
                self._node_made_of[name] = (*parts, here)
                row = ENCODER.encode(node_row(state, node, report, here))
                if self.nodes.get(name) != row:
                    self.nodes[name] = row
                    changes.nodes.append(row)
        changes.nodes_gone = [name for name in self.nodes if name not in state.nodes]
        for name in changes.nodes_gone:
            del self.nodes[name]
            self._node_made_of.pop(name, None)
