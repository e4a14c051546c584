# SPDX-License-Identifier: Apache-2.0
"""A node reports: what follows from it at once, and whether it calls for a round of planning. Pure.

Heartbeats that change no decision do not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.core import extending, figures, moving, packing
from slipstream.core.sitting import felt

if TYPE_CHECKING:
    from slipstream.core.commands import Command
    from slipstream.core.events import NodeReported
    from slipstream.core.state import State


def reported(state: State, report: NodeReported) -> tuple[bool, list[Command]]:
    """Take it in; whether decisions may differ by it, and what is to be done at once."""
    before = state.reports.get(report.node)
    state.reports[report.node] = report
    figures.reported(state, report)
    moving.reported(state, report)
    packing.reported(state, before, report)
    changes = before is None or felt(before) != felt(report)
    return changes, extending.reported(state, report)
