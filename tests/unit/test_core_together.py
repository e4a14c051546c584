# SPDX-License-Identifier: Apache-2.0
"""Owners of several nodes that could start in one round are placed together."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import looked, machine, node, request, sight
from slipstream.core.classes import JobClass, Role
from slipstream.core.commands import Advise
from slipstream.core.events import TopologyRead
from slipstream.core.network.batch import place_batch
from slipstream.core.placement import need_of
from slipstream.core.together import MOST_TOGETHER, proposed
from slipstream.core.topology import Group, Topology
from slipstream.core.wires import Wires

if TYPE_CHECKING:
    from slipstream.core.machine import Machine
    from slipstream.core.placement import Need
    from slipstream.core.sights import Request

pytestmark = pytest.mark.unit

NAMES = tuple(f"n{number}" for number in range(1, 7))
GROUPS = (
    Group("r1", 0, NAMES[:3]),
    Group("r2", 0, NAMES[3:]),
    Group("d", 1, NAMES),
)


def gang(number: int, nodes: int, gpus: int) -> Request:
    """A guaranteed job of several nodes."""
    return replace(request(number, gpus=gpus, nodes=nodes), job_class=JobClass.GUARANTEED)


def waiting(*gangs: tuple[int, int]) -> Machine:
    """All nodes are full, and these wait for nodes and GPUs of each."""
    one = machine(*(node(name, used=4) for name in NAMES))
    one.handle(TopologyRead(1.0, GROUPS))
    jobs = (gang(at, *shape) for at, shape in enumerate(gangs, start=1))
    one.handle(looked(2.0, *(sight(str(10 + at), asked) for at, asked in enumerate(jobs))))
    return one


def advised(one: Machine, *free: int, at_s: float = 3.0) -> list[tuple[str, ...]]:
    """Where they are told to start when so many GPUs of each node are free."""
    nodes = tuple(node(name, used=4 - left) for name, left in zip(NAMES, free, strict=True))
    commands = one.handle(looked(at_s, nodes=nodes))
    return [command.advice.nodes for command in commands if isinstance(command, Advise)]


def test_gangs_leave_each_other_a_rack() -> None:
    """Alone the first would take n1 and n3, and the second would be on two racks."""
    assert advised(waiting((2, 2)), 2, 4, 2, 1, 2, 0) == [("n1", "n3")]
    assert advised(waiting((2, 2), (2, 2)), 2, 4, 2, 1, 2, 0) == [("n1", "n2"), ("n2", "n3")]


def test_gangs_leave_each_other_room() -> None:
    """Alone the first would take a GPU of n5, and the second would wait."""
    assert advised(waiting((2, 1)), 1, 4, 3, 1, 2, 0) == [("n4", "n5")]
    both = advised(waiting((2, 1), (3, 2)), 1, 4, 3, 1, 2, 0)
    assert [len(nodes) for nodes in both] == [2, 3]


def test_the_same_is_said_while_it_holds() -> None:
    """Nodes that a gang was given are kept, whoever comes after."""
    one = waiting((2, 2), (2, 2))
    free = (2, 4, 2, 1, 2, 0)
    first = advised(one, *free)
    assert advised(one, *free, at_s=4.0) == []
    asked = gang(7, 2, 1)
    one.handle(looked(5.0, sight("17", asked)))
    assert {advice.nodes for advice in one.state.advice.values()} >= set(first)


def test_guests_single_nodes_and_one_gang_alone_are_no_batch() -> None:
    """Nor is what no node has room for."""
    nodes = {name: node(name) for name in NAMES}

    def found(*asked: Request) -> dict[str, tuple[str, ...]]:
        needs: dict[str, Need] = {}
        for one in asked:
            need = need_of(one)
            assert need
            needs[one.token] = need
        return proposed(needs, nodes, lambda _: 4, Topology(GROUPS), Wires())

    assert found(gang(1, 2, 1)) == {}
    assert found(gang(1, 2, 1), request(2), gang(3, 2, 5)) == {}
    assert found(gang(1, 2, 1), replace(gang(2, 2, 1), role=Role.GUEST)) == {}
    assert set(found(gang(1, 2, 1), gang(2, 3, 4))) == {gang(1, 2, 1).token, gang(2, 3, 4).token}


def test_a_long_queue_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those with the best right to a place are placed together; a round must stay quick."""
    sizes: list[int] = []

    def counted(gangs: list[object], *rest: object, **more: object) -> object:
        sizes.append(len(gangs))
        return place_batch(gangs, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("slipstream.core.together.place_batch", counted)
    one = waiting(*[(2, 1)] * 30)
    assert len(advised(one, *[4] * 6)) == 12
    assert sizes == [MOST_TOGETHER]
    advised(one, *[4] * 6, at_s=4.0)
    assert sizes == [MOST_TOGETHER], "all room is promised"
