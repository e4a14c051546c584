# SPDX-License-Identifier: Apache-2.0
"""Guests together on a GPU that nobody owns: tried, measured, kept or taken apart."""

from __future__ import annotations

import pytest

from node_world import World, guest, owner, shared
from slipstream.core.node.commands import Park, SetShare
from slipstream.core.node.events import JobArrived, ParkOrdered
from slipstream.core.node.packing import Packed
from slipstream.core.node.reasons import NodeReason
from slipstream.core.node.rules import NodeRules

pytestmark = pytest.mark.unit

TURN_S = 10.0
HURTS = 1.0
"""Both want all of the GPU: each mini-batch takes twice as long."""
FITS = 0.1


def pair(crowded: float, rules: NodeRules | None = None) -> World:
    """One guest that has trained alone for a while, and one that has just come."""
    world = World(rules=rules or NodeRules(turn_s=TURN_S), crowded=crowded).gpus("a")
    world.arrive(guest(1))
    world.run(5.0)
    world.arrive(guest(2), loading_s=2.0)
    return world


def test_two_that_hurt_each_other_are_taken_apart_and_take_turns() -> None:
    """Together they do what one does: from then on one trains and the other is parked."""
    world = pair(HURTS).run(20.0)
    (verdict,) = world.machine.packings.verdicts()
    assert verdict.jobs == (1, 2)
    assert verdict.apart
    assert verdict.total == pytest.approx(1.0, abs=0.04)
    assert [body.parked for body in world.bodies.values()].count(True) == 1
    waits = next(job for job, body in world.bodies.items() if body.parked)
    assert world.machine.why(waits) is NodeReason.TAKEN_APART
    before = {job: body.ran_s for job, body in world.bodies.items()}
    world.run(6 * TURN_S)
    had = [body.ran_s - before[job] for job, body in world.bodies.items()]
    assert sum(had) > 0.9 * 6 * TURN_S
    assert abs(had[0] - had[1]) <= TURN_S + 1


def test_two_that_go_well_together_stay_so() -> None:
    """Nobody is parked, and nobody stands still once it was measured."""
    world = pair(FITS).run(20.0)
    (verdict,) = world.machine.packings.verdicts()
    assert not verdict.apart
    assert verdict.total == pytest.approx(2 / 1.1, abs=0.05)
    assert world.machine.packings.by_gpu["a"].stage is Packed.KEPT
    assert [body.share_pct for body in world.bodies.values()] == [100, 100]
    assert not [one for _, one in world.commands if isinstance(one, Park)]
    done = len(world.commands)
    world.run(60.0)
    assert len(world.commands) == done


def test_who_was_alone_before_is_not_looked_at_again() -> None:
    """Only the newcomer has to be seen alone: the other one stands still for that."""
    world = pair(FITS).run(20.0)
    stopped = [one for _, one in world.commands if isinstance(one, SetShare) and not one.share_pct]
    assert [one.job_id for one in stopped] == [1]
    assert stopped[0].reason is NodeReason.PACKING_TRIED


def test_when_one_leaves_the_other_has_the_gpu_for_itself() -> None:
    """Parked or not, it goes on at once."""
    for leaves, stays in ((1, 2), (2, 1)):
        world = pair(HURTS).run(20.0)
        world.leave(leaves)
        world.run(1.0)
        assert not world.bodies[stays].parked
        assert not world.machine.packings.by_gpu
        assert not world.machine.wheel.members


def test_a_third_one_means_a_new_trial() -> None:
    """Three are measured together; who was parked comes back for that."""
    world = pair(HURTS).run(20.0)
    world.arrive(guest(3))
    assert not world.machine.wheel.members
    world.run(25.0)
    (verdict,) = world.machine.packings.verdicts()
    assert verdict.jobs == (1, 2, 3)
    assert verdict.apart
    assert [body.parked for body in world.bodies.values()].count(True) == 2


def test_an_owner_ends_it() -> None:
    """With an owner the steps decide, for all guests."""
    world = pair(HURTS).run(20.0)
    world.arrive(owner(9))
    assert not world.machine.packings.by_gpu
    assert not world.machine.wheel.members
    assert not any(body.asked_to_park_s for body in world.bodies.values())
    assert world.guests_pct("a") == 0


@pytest.mark.parametrize("other", [shared(2), guest(2, "a", "b"), owner(2)])
def test_others_are_not_tried(other: object) -> None:
    """Shared jobs take turns anyway, owners are guarded, and jobs of several GPUs are left."""
    world = World(crowded=HURTS).gpus("a", "b")
    world.arrive(guest(1))
    world.arrive(other)  # type: ignore[arg-type]  # of three kinds
    world.run(15.0)
    assert not world.machine.packings.verdicts()


def test_one_that_does_not_train_is_waited_for() -> None:
    """Nobody stands still for a guest that loads, or has no hooks and never says anything."""
    world = World(crowded=HURTS).gpus("a")
    world.arrive(guest(1))
    world.arrive(guest(2), loading_s=1e6)
    world.run(60.0)
    assert not world.commands
    assert world.machine.packings.by_gpu["a"].stage is Packed.WAITING


def test_it_is_tried_again_after_an_hour() -> None:
    """What was bad need not stay so."""
    rules = NodeRules(turn_s=TURN_S, forget_pair_s=60.0)
    world = pair(HURTS, rules).run(20.0)
    assert world.machine.packings.verdicts()[0].apart
    world.crowded = FITS
    world.run(80.0)
    assert not world.machine.packings.verdicts()[0].apart
    assert not world.machine.wheel.members
    assert not any(body.parked for body in world.bodies.values())


def test_an_operator_who_parks_one_of_them_ends_it() -> None:
    """The other has the GPU; who was parked by the operator stays so, also if its turn was not."""
    for parked, stays in ((1, 2), (2, 1)):
        world = pair(HURTS).run(20.0)
        world.tell(ParkOrdered(world.now_s, parked, parked=True))
        world.run(2.0)
        assert world.bodies[parked].parked
        assert not world.bodies[stays].parked
        assert not world.machine.wheel.members
        world.tell(ParkOrdered(world.now_s, parked, parked=False))
        world.run(1.0)
        assert world.machine.packings.by_gpu["a"].jobs == (1, 2)
        assert not any(body.parked for body in world.bodies.values())


@pytest.mark.parametrize("becomes", ["elsewhere", "owner"])
def test_one_that_becomes_something_else_goes_on(becomes: str) -> None:
    """Re-bound to another GPU, or the owner of this one: whoever was parked for turns is not."""
    for job in (1, 2):
        world = pair(HURTS).run(20.0)
        world.gpus("b")
        other = guest(job, "b") if becomes == "elsewhere" else owner(job)
        world.bodies[job].job = other
        world.tell(JobArrived(world.now_s, other))
        world.run(1.0)
        assert not any(body.parked for body in world.bodies.values())
        assert not world.machine.wheel.members
        assert not world.machine.packings.by_gpu
