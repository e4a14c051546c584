# SPDX-License-Identifier: Apache-2.0
"""What guests did together is remembered by family: undone, not tried again, or tried at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core_world import RULES, holds, looked, node, request, sight, token
from slipstream.core.classes import Mode, Role
from slipstream.core.commands import Advise, Command, Save
from slipstream.core.events import ClusterSeen, NodeReported, TimerFired
from slipstream.core.machine import Machine
from slipstream.core.packing import against
from slipstream.core.sights import GpuUse, PackSeen, Request, Training

pytestmark = pytest.mark.unit

ENFORCE = replace(RULES, mode=Mode.ENFORCE)
BAD = PackSeen(("5", "6"), (0.5, 0.51), apart=True)
GOOD = PackSeen(("5", "6"), (0.9, 0.92))


def guest(number: int, name: str) -> Request:
    """An opportunistic job of a family."""
    return replace(request(number, role=Role.GUEST), name=name)


def paired(*nodes: str) -> Machine:
    """Two guests on the GPU of n1, which nobody owns, and other nodes as they are named."""
    one = Machine(ENFORCE)
    jobs = tuple(
        replace(holds(ref, guest(int(ref), name)), number=int(ref), slots=1)
        for ref, name in (("5", "bert"), ("6", "gpt"))
    )
    others = (node(name, gpus=1) for name in nodes)
    here = node("n1", gpus=1, slots_used=2)
    one.handle(ClusterSeen(at_s=2.0, nodes=(here, *others), jobs=jobs, complete=True))
    return one


def report(at_s: float, *packed: PackSeen) -> NodeReported:
    """What n1 tells of its two guests."""
    gpu = GpuUse(index=0, guest_jobs=("5", "6"))
    jobs = tuple(Training(ref=ref, minibatch=9, restorable=True) for ref in ("5", "6"))
    return NodeReported(at_s=at_s, node="n1", gpus=(gpu,), jobs=jobs, packed=packed)


def advised(commands: list[Command]) -> dict[str, tuple[str, ...]]:
    """Nodes by token."""
    return {one.token: one.advice.nodes for one in commands if isinstance(one, Advise)}


def test_both_are_told_in_their_stories_once() -> None:
    """How fast each was, and what follows; the same report again says nothing."""
    one = paired()
    one.handle(report(10.0, BAD))
    one.handle(report(15.0, BAD))
    told = [line.text for line in one.state.jobs["5"].story]
    sentence = "beside job 6 it has 50 % of its speed alone: they take turns"
    assert told.count(sentence) == 1
    assert "51 %" in one.state.jobs["6"].story[-1].text


@pytest.mark.parametrize(
    ("seen", "comes", "nodes"),
    [(BAD, "gpt", ()), (GOOD, "gpt", ("n1",)), (BAD, "new", ("n1",))],
    ids=["its like did badly there", "its like did well there", "nobody knows"],
)
def test_the_next_of_a_family_is_put_where_its_like_did_well(
    seen: PackSeen, comes: str, nodes: tuple[str, ...]
) -> None:
    """One bert is left on n1; who comes is of a family that is known beside it, or not."""
    one = paired()
    one.handle(report(10.0, seen))
    alone = replace(report(11.0), gpus=(GpuUse(index=0, guest_jobs=("5",)),))
    one.handle(alone)
    one.handle(looked(12.0, gone=("6",), nodes=(node("n1", gpus=1, slots_used=1),)))
    told = advised(one.handle(looked(13.0, sight("7", guest(7, comes)))))
    assert told == {token(7): nodes}


def test_who_is_kept_apart_is_told_from_whom() -> None:
    """By the names of the families; of one that goes well with everybody nothing is said."""
    one = paired()
    one.handle(report(10.0, BAD))
    assert against(one.state, one.state.jobs["6"]) == [
        "beside bert its like did 1.01 of what one does alone"
    ]
    one.handle(report(11.0, GOOD))
    assert against(one.state, one.state.jobs["6"]) == []


def test_what_was_bad_is_believed_for_an_hour() -> None:
    """Then it may be tried again."""
    one = paired()
    one.handle(report(10.0, BAD))
    one.handle(looked(12.0, gone=("6",), nodes=(node("n1", gpus=1, slots_used=1),)))
    one.handle(replace(report(3700.0), gpus=(GpuUse(index=0, guest_jobs=("5",)),)))
    told = advised(one.handle(looked(3701.0, sight("7", guest(7, "gpt")))))
    assert told == {token(7): ("n1",)}


def test_it_is_known_after_a_restart() -> None:
    """A machine that is restored decides the same."""
    one = paired()
    one.handle(report(10.0, BAD))
    other = Machine(ENFORCE)
    other.handle(one.state.remembered(11.0))
    assert other.state.pairs == one.state.pairs
    for machine in (one, other):
        machine.handle(looked(12.0, gone=("6",), nodes=(node("n1", gpus=1, slots_used=1),)))
        machine.handle(replace(report(12.5), gpus=(GpuUse(index=0, guest_jobs=("5",)),)))
        assert advised(machine.handle(looked(13.0, sight("7", guest(7, "gpt"))))) == {token(7): ()}


def test_one_of_a_bad_pair_moves_to_a_free_gpu_when_that_pays() -> None:
    """It has run for so long that what it would gain is three times what a move costs."""
    one = paired("n2")
    early = [*one.handle(report(40.0, BAD)), *one.handle(TimerFired(41.0))]
    assert not [it for it in early if isinstance(it, Save)]
    freed = replace(node("n2", gpus=1), cpus=33)
    one.handle(
        replace(report(150.0, BAD), gpus=(GpuUse(index=0, use_pct=90.0, guest_jobs=("5", "6")),))
    )
    commands = one.handle(looked(151.0, nodes=(freed,)))
    assert [it.job_id for it in commands if isinstance(it, Save)] == ["5"]


def test_a_pair_that_goes_well_is_left_together_for_longer() -> None:
    """The same cluster at the same time: the gain is a tenth."""
    one = paired("n2")
    one.handle(report(40.0, GOOD))
    freed = replace(node("n2", gpus=1), cpus=33)
    assert not [it for it in one.handle(looked(151.0, nodes=(freed,))) if isinstance(it, Save)]
