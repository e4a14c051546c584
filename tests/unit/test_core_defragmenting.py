# SPDX-License-Identifier: Apache-2.0
"""A node is emptied for a job that is too large for every hole, by those who can move."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core_world import RULES, holds, looked, node, request, sight
from slipstream.core.classes import JobClass, Mode
from slipstream.core.commands import Command, Save
from slipstream.core.events import ClusterSeen, NodeReported, RulesChanged, TimerFired
from slipstream.core.machine import Machine
from slipstream.core.sights import Request, Training

pytestmark = pytest.mark.unit

ENFORCE = replace(RULES, mode=Mode.ENFORCE)


def holes(*, restorable: bool = True, mode: Mode = Mode.ENFORCE, first: int = 1) -> Machine:
    """Two nodes of two GPUs, a training on one GPU of each."""
    one = Machine(replace(RULES, mode=mode))
    jobs = (
        replace(holds("5", request(5), 0), number=5),
        replace(holds("6", request(6), 0, name="n2"), number=6),
    )
    nodes = (node("n1", gpus=2, used=first), node("n2", gpus=2, used=1))
    one.handle(ClusterSeen(at_s=2.0, nodes=nodes, jobs=jobs, complete=True))
    for name, ref in (("n1", "5"), ("n2", "6")):
        told = Training(ref=ref, phase="training", minibatch=9, restorable=restorable)
        one.handle(NodeReported(at_s=2.5, node=name, jobs=(told,)))
    return one


def large(number: int = 7, gpus: int = 2) -> Request:
    """One that needs two GPUs of a node."""
    return replace(request(number, gpus=gpus), job_class=JobClass.GUARANTEED)


def test_nobody_moves_for_a_job_that_its_quota_keeps_back() -> None:
    """Its account owns nothing: an empty node would be of no use to it."""
    one = holes()
    one.handle(RulesChanged(2.7, replace(ENFORCE, shares=(("lab", 1.0),))))
    asked = replace(large(), account="shop")
    other = replace(large(8, gpus=1), account="shop")
    held = replace(holds("9", other, 1), account="shop", number=9)
    full = node("n1", gpus=2, used=2)
    one.handle(looked(2.8, held, nodes=(full,)))
    assert saved(one.handle(looked(3.0, sight("7", asked)))) == []


def saved(commands: list[Command]) -> list[str]:
    """Who is to move."""
    return [one.job_id for one in commands if isinstance(one, Save)]


def test_a_training_moves_into_the_hole_of_another_node() -> None:
    """One of them is enough, and its story says for what."""
    one = holes()
    assert saved(one.handle(looked(3.0, sight("7", large())))) == ["5"]
    assert one.state.moves["5"].target == ("n2",)
    text = one.state.jobs["5"].story[-1].text
    assert text == "moves to n2: a larger job needs GPUs of its node"
    assert saved(one.handle(TimerFired(4.0))) == [], "it is on its way: nobody else has to go"


@pytest.mark.parametrize(
    "one",
    [
        pytest.param(holes(restorable=False), id="nobody can be restored"),
        pytest.param(holes(mode=Mode.ADVISE), id="not in mode advise"),
        pytest.param(holes(first=2), id="there would not be enough"),
    ],
)
def test_otherwise_it_waits(one: Machine) -> None:
    """As it would on plain Slurm."""
    assert saved(one.handle(looked(3.0, sight("7", large())))) == []


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(replace(large(), partition="other"), id="it may not use these nodes"),
        pytest.param(large(gpus=4), id="no node is so large"),
        pytest.param(replace(large(), nodes_min=2, tasks=2), id="of several nodes"),
    ],
)
def test_nobody_moves_for_a_job_that_could_not_have_the_node(asked: Request) -> None:
    """A move costs the one that moves: it has to be of use."""
    waits = replace(sight("7", asked), partition=asked.partition)
    assert saved(holes().handle(looked(3.0, waits))) == []
