# SPDX-License-Identifier: Apache-2.0
"""Whatever happens, in any order: elastic jobs keep to what was said."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from core_histories import lively
from core_world import RULES
from slipstream.core.classes import Role
from slipstream.core.commands import Resize, Start
from slipstream.core.machine import Machine
from slipstream.core.records import Phase

if TYPE_CHECKING:
    from slipstream.core.events import Event

pytestmark = pytest.mark.property


@given(lively)
def test_sizes_stay_within_what_was_said(history: list[Event]) -> None:
    """Only who said so is resized, to a size it said; who waits goes back to what it asked for.

    On the node that it left nobody is started sooner than Slurm lets it.
    """
    machine = Machine(RULES)
    for event in history:
        commands = machine.handle(event)
        state = machine.state
        for move in state.moves.values():
            if move.size:
                least, most = state.requests[move.token].elastic or (0, 0)
                assert least <= move.size <= most
                assert state.requests[move.token].role is Role.OWNER
        for one in commands:
            if isinstance(one, Start):
                move = state.moves[one.key]
                assert (one.size, one.at_once) == (move.size, move.target != move.origin)
            if isinstance(one, Resize):
                asked = state.requests[one.token]
                assert one.key not in state.moves
                assert state.jobs[one.key].phase is Phase.WAITING
                assert one.size == asked.gpus.count < asked.size
