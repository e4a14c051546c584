# SPDX-License-Identifier: Apache-2.0
"""Moves that the brain wants, or an operator: Slurm's guards, and what the job holds there. Pure.

An `auto` guest that moves owns GPUs where it goes to, if these and its quota are free: a running
job's GRES cannot be changed, those of one that was requeued can.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slipstream.core import moving
from slipstream.core.classes import JobClass, Per, Role
from slipstream.core.events import MoveAsked
from slipstream.core.placement import Placement, given, need_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.core.commands import Command
    from slipstream.core.mirror import Mirror
    from slipstream.core.sights import NodeSight
    from slipstream.core.state import State


def moves(
    state: State, mirror: Mirror, left: Mapping[str, NodeSight], at_s: float
) -> list[Command]:
    """What the brain wants elsewhere goes there, if Slurm has room for it and it may."""
    commands: list[Command] = []
    for key, nodes, makes_room in mirror.moves:
        if len(state.moves) >= moving.MOST_AT_ONCE or state.slurm_away:
            break
        found = moving.target_for(
            state,
            lambda need: given(need, left, need.only_nodes),
            key,
            nodes,
            at_s,
            forced=False,
        )
        if isinstance(found, Placement):
            asked = MoveAsked(
                at_s=at_s, key=key, nodes=nodes, why=_why(state, key, makes_room=makes_room)
            )
            commands += begun(state, mirror, left, asked, found)
    mirror.moves.clear()
    return commands


def begun(
    state: State,
    mirror: Mirror,
    left: Mapping[str, NodeSight],
    event: MoveAsked,
    found: Placement,
) -> list[Command]:
    """Begin a move, as the owner of GPUs there if that can be."""
    return moving.begin(state, event, found, _owned(state, mirror, left, event.key, found))


def _owned(
    state: State, mirror: Mirror, left: Mapping[str, NodeSight], key: str, found: Placement
) -> int:
    """GPUs of each node that a job which moves will own; 0: it holds what it held."""
    request = state.requests[state.jobs[key].token]
    need = need_of(request)
    if need is None or request.role is Role.OWNER or request.job_class is not JobClass.AUTO:
        return 0
    if request.gpus.per is not Per.NODE or not mirror.may_own(key):
        return 0
    room = given(replace(need, role=Role.OWNER), left, found.nodes)
    return request.gpus.count if isinstance(room, Placement) else 0


def _why(state: State, key: str, *, makes_room: bool) -> str:
    if makes_room:
        return "a larger job needs GPUs of its node"
    sight = state.jobs[key].sight
    here = [state.nodes.get(name) for name in (sight.nodes if sight else ())]
    leaves = any(node is not None and node.drained for node in here)
    return "its node is to be empty" if leaves else "GPUs are free there"
