# SPDX-License-Identifier: Apache-2.0
"""Moves of an array's tasks: they share a token, and nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core_world import looked, machine, node, request, sight, token
from slipstream.core.events import CommandRefused, MoveAsked, NodeReported
from slipstream.core.sights import Standing, Training

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("refusal", "moving"),
    [
        (CommandRefused(111.0, token(1), "no", job="6"), {"5_1"}),
        (CommandRefused(111.0, token(1), "no", job="5_2"), {"5_1"}),
        (CommandRefused(111.0, token(1), "the board is full", task=2), {"5_1"}),
        (CommandRefused(111.0, token(1), "an older scheduler's word"), set()),
    ],
)
def test_a_refusal_of_one_task_leaves_the_moves_of_the_others(
    refusal: CommandRefused, moving: set[str]
) -> None:
    """Tasks of an array share their token."""
    cluster = machine(node("n1", used=2), node("n2"))
    tasks = [
        replace(sight(f"5_{task}", request(1), Standing.RUNNING), number=4 + task, nodes=("n1",))
        for task in (1, 2)
    ]
    cluster.handle(looked(1.0, *tasks))
    told = [Training(ref=ref, phase="training", minibatch=4, restorable=True) for ref in "56"]
    cluster.handle(NodeReported(at_s=2.0, node="n1", jobs=tuple(told)))
    for task in tasks:
        wish = MoveAsked(at_s=100.0, key=task.ref, nodes=(), why="an operator asked", forced=True)
        assert cluster.handle(wish)
    cluster.handle(refusal)
    assert set(cluster.state.moves) == moving
