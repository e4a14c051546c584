# SPDX-License-Identifier: Apache-2.0
"""What an operator orders, as the node machine follows it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node_world import World, guest, owner, shared
from slipstream.core.classes import Role
from slipstream.core.node.commands import Park, Unpark
from slipstream.core.node.events import JobArrived, ParkOrdered, TurnCalled
from slipstream.core.node.reasons import NodeReason
from slipstream.core.node.rules import NodeRules
from slipstream.core.node.turns import Turn

pytestmark = pytest.mark.unit

RULES = NodeRules(turn_s=10.0, feedback_minibatches=1)


def order(world: World, job_id: int, *, parked: bool) -> None:
    """An operator says so."""
    world.tell(ParkOrdered(world.now_s, job_id, parked=parked))


def turns_of(world: World, job_id: int) -> list[Park | Unpark]:
    """What a job was told about being on its GPU."""
    found = [one for _, one in world.commands if isinstance(one, Park | Unpark)]
    return [one for one in found if one.job_id == job_id]


def test_a_guest_is_parked_and_released() -> None:
    """It stays away for as long as the order stands, however often anything else changes."""
    world = World(RULES).gpus("a")
    world.arrive(owner(1))
    world.run(20)
    world.arrive(guest(2))
    world.run(20)
    order(world, 2, parked=True)
    order(world, 2, parked=True)
    world.run(30)
    assert turns_of(world, 2) == [Park(2, NodeReason.OPERATOR)]
    assert world.bodies[2].parked
    assert world.machine.is_parked(2)
    assert world.machine.why(2) is NodeReason.OPERATOR
    done = world.bodies[2].done
    world.arrive(guest(3))
    world.run(10)
    assert world.bodies[2].done == done
    order(world, 2, parked=False)
    world.run(30)
    assert turns_of(world, 2)[1:] == [Unpark(2, NodeReason.RELEASED)]
    assert world.bodies[2].done > done
    assert not world.machine.is_parked(2)


def test_what_a_parked_guest_had_is_for_the_others() -> None:
    """Once it has left; while it is on its way it still counts as a neighbour."""
    world = World(RULES, cost=lambda share: max(0.0, share - 30) / 100).gpus("a")
    world.arrive(owner(1))
    world.run(20)
    world.arrive(guest(2), park_s=5.0)
    world.arrive(guest(3))
    world.run(30)
    order(world, 2, parked=True)
    world.run(1)
    assert [*world.machine.gpus["a"].riders] == [2, 3]
    world.run(6)
    assert [*world.machine.gpus["a"].riders] == [3]


def test_a_shared_job_takes_no_turns_while_it_is_parked() -> None:
    """The others have its time, and it comes back as one that has just come."""
    world = World(RULES).gpus("a")
    for job in (1, 2):
        world.arrive(shared(job))
    world.run(60)
    order(world, 1, parked=True)
    world.run(5)
    had = world.bodies[1].ran_s
    world.run(100)
    assert world.bodies[1].ran_s == had
    assert world.machine.wheel.members[1].turn is Turn.WAITING
    assert world.machine.turn_parts("a") == {2: 1.0}
    order(world, 1, parked=False)
    before = {job: world.bodies[job].ran_s for job in (1, 2)}
    world.run(200)
    after = {job: world.bodies[job].ran_s - before[job] for job in (1, 2)}
    assert 0.8 < after[1] / after[2] < 1.25


def test_a_shared_job_that_is_alone_leaves_its_gpu_all_the_same() -> None:
    """Though nobody waits for it."""
    world = World(RULES).gpus("a")
    world.arrive(shared(1))
    world.run(20)
    order(world, 1, parked=True)
    world.run(60)
    assert world.on_gpu("a") == []
    assert turns_of(world, 1) == [Park(1, NodeReason.OPERATOR)]
    order(world, 1, parked=False)
    world.run(1)
    assert world.on_gpu("a") == [1]


def test_one_that_does_not_come_to_a_boundary_stays_ordered() -> None:
    """It is not told to go on because it is late: it stops when it can."""
    world = World(RULES).gpus("a")
    world.arrive(shared(1), park_s=300.0)
    world.run(5)
    order(world, 1, parked=True)
    world.run(200)
    assert turns_of(world, 1) == [Park(1, NodeReason.OPERATOR)]
    assert world.machine.wakes_at_s() is None
    world.run(120)
    assert world.on_gpu("a") == []


def test_an_owner_that_takes_no_turns_is_parked_for_nobody() -> None:
    """Whoever says so."""
    world = World(RULES).gpus("a")
    world.arrive(owner(1))
    world.run(5)
    order(world, 1, parked=True)
    assert world.commands == []
    assert not world.machine.is_ordered_away(1)


def test_a_parked_guest_that_becomes_an_owner_goes_on() -> None:
    """An owner is parked for nobody: the order is for what it was."""
    world = World(RULES).gpus("a")
    world.arrive(guest(1))
    world.run(5)
    order(world, 1, parked=True)
    world.run(5)
    world.bodies[1].job = replace(guest(1), role=Role.OWNER)
    world.tell(JobArrived(world.now_s, world.bodies[1].job))
    world.run(5)
    assert world.on_gpu("a") == [1]
    assert not world.machine.is_ordered_away(1)


def test_a_gang_is_parked_by_the_node_that_leads_it() -> None:
    """The others follow what that calls: a gang stops after the same mini-batch everywhere."""
    world = World(RULES).gpus("a")
    world.arrive(replace(shared(1), gang=("n0", "n1"), leads=False))
    world.tell(TurnCalled(world.now_s, 1, runs=True))
    world.run(5)
    order(world, 1, parked=True)
    world.run(20)
    assert world.on_gpu("a") == [1]
    world.tell(TurnCalled(world.now_s, 1, runs=False))
    world.run(5)
    assert world.on_gpu("a") == []


def test_an_order_for_a_job_that_is_not_here_is_nothing() -> None:
    """It may have ended a moment ago."""
    world = World(RULES).gpus("a")
    assert world.machine.handle(ParkOrdered(1.0, 9, parked=True)) == []
