# SPDX-License-Identifier: Apache-2.0
"""AntMan's six reflexes and the step rule, in a virtual node."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from node_world import DEVICE_MIB, GIB, World, guest, owner, shared
from slipstream.core.classes import JobClass
from slipstream.core.node.commands import SetCap, SetShare
from slipstream.core.node.events import JobArrived
from slipstream.core.node.reasons import SENTENCE, NodeReason
from slipstream.core.node.rules import NodeRules
from slipstream.core.node.steps import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.unit


def idle_part(part_pct: float) -> Callable[[float], float]:
    """An owner that leaves so much of its GPU idle, and feels only what is beyond."""
    return lambda share_pct: max(0.0, share_pct - part_pct) / 100


def shares_of(world: World, job_id: int) -> list[int]:
    """What a job was told, in order."""
    said = (command for _, command in world.commands)
    return [one.share_pct for one in said if isinstance(one, SetShare) and one.job_id == job_id]


def test_an_owner_that_arrives_cuts_its_guests_at_once() -> None:
    """Reflex 1: in the same event guests lose all compute and, unknown what it needs, memory."""
    world = World().gpus("a")
    world.arrive(guest(2), memory_mib=8 * GIB)
    world.run(1)
    world.arrive(owner(1))
    assert world.share(2) == 0
    assert 0 < world.bodies[2].cap_mib <= DEVICE_MIB // 10
    cut = [one for _, one in world.commands if isinstance(one, SetCap) and one.job_id == 2]
    assert cut[-1].at_once
    assert cut[-1].reason is NodeReason.OWNER_ARRIVED


def test_when_the_owner_is_stable_guests_get_memory_and_then_compute_in_steps() -> None:
    """Reflex 1, the second half: the rest of the memory, then from low up to what is idle."""
    world = World(cost=idle_part(40)).gpus("a")
    world.arrive(guest(2), memory_mib=8 * GIB)
    world.arrive(owner(1), memory_mib=4 * GIB)
    world.run(0.3)
    assert world.share(2) == 0
    world.run(30)
    assert world.bodies[2].cap_mib >= 8 * GIB
    assert 30 <= world.share(2) <= 43
    told = shares_of(world, 2)
    rises = told[: told.index(max(told)) + 1]
    assert rises[:2] == [0, 1]
    assert all(later <= 2 * before + 1 for before, later in pairwise(rises[1:]))


def test_while_the_owner_feels_nothing_each_step_is_twice_the_last() -> None:
    """And half as much again while it feels a little, but not too much."""
    unfelt = World(cost=idle_part(100)).gpus("a")
    felt = World(cost=lambda share: 0.02 if share else 0.0).gpus("a")
    for world in (unfelt, felt):
        world.arrive(owner(1))
        world.run(3)
        world.arrive(guest(2))
        world.run(10)
    assert shares_of(unfelt, 2)[:6] == [1, 2, 4, 8, 16, 32]
    assert shares_of(felt, 2)[:6] == [1, 2, 3, 5, 7, 11]  # of 1, 1.5, 2.25 … whole percents


def test_memory_that_is_known_to_fit_is_left_to_guests_when_an_owner_arrives() -> None:
    """Nothing is moved about for an owner that is expected to need little."""
    world = World().gpus("a")
    world.arrive(guest(2), memory_mib=6 * GIB)
    world.run(1)
    world.arrive(replace(owner(1), memory_mib=4 * GIB), memory_mib=0)
    assert world.bodies[2].cap_mib >= 6 * GIB


def test_a_guest_that_arrives_begins_from_low() -> None:
    """Reflex 2: the owner was measured while it was alone, so there is no need to wait."""
    world = World(cost=idle_part(40)).gpus("a")
    world.arrive(owner(1))
    world.run(3)
    world.arrive(guest(2))
    assert world.share(2) == 1
    world.run(20)
    assert world.share(2) > 25
    world.arrive(guest(3))
    assert world.share(2) + world.share(3) == 1


def test_an_owner_that_needs_more_memory_gets_it_from_its_guests() -> None:
    """Reflex 3: it spills once, guests shrink at once, its cap rises by what was spilled."""
    world = World().gpus("a")
    world.arrive(guest(2), memory_mib=11 * GIB)
    body = world.arrive(owner(1), memory_mib=4 * GIB)
    world.run(10)
    before = body.cap_mib
    assert world.bodies[2].cap_mib > 10 * GIB
    body.memory_mib, body.spilled_mib = before, 3 * GIB
    world.run(0.1)
    assert body.cap_mib >= before + 3 * GIB
    assert world.bodies[2].cap_mib + body.cap_mib <= DEVICE_MIB
    shrunk = [one for _, one in world.commands if isinstance(one, SetCap) and one.job_id == 2]
    assert shrunk[-1].at_once


def test_beside_an_unstable_owner_guests_get_little_and_slowly() -> None:
    """Reflex 4: one point at a time, and never more than the rules say."""
    world = World().gpus("a")
    body = world.arrive(owner(1))
    for turn in range(20):
        body.alone_s = 0.02 if turn % 2 else 0.05
        world.run(0.5)
    world.arrive(guest(2))
    world.commands.clear()
    for turn in range(160):
        body.alone_s = 0.02 if turn % 2 else 0.05
        world.run(0.5)
    told = shares_of(world, 2)
    assert max(told) <= NodeRules().unstable_share_pct
    assert all(later - before <= 1 for before, later in pairwise(told))


def test_one_guest_without_an_owner_has_no_limits() -> None:
    """Reflex 5: nothing was ever said to it, and all is taken back when the owner leaves."""
    world = World().gpus("a")
    world.arrive(guest(2))
    world.run(2)
    assert world.commands == []
    world.arrive(owner(1))
    world.run(1)
    world.leave(1)
    assert (world.share(2), world.bodies[2].cap_mib) == (100, 0)
    assert world.machine.why(2) is NodeReason.NO_OWNER


def test_several_guests_that_fit_have_no_limits() -> None:
    """Nobody owns the GPU and there is room for all."""
    world = World().gpus("a")
    world.arrive(guest(2), memory_mib=6 * GIB)
    world.arrive(guest(3), memory_mib=6 * GIB)
    world.run(5)
    assert [world.bodies[job].cap_mib for job in (2, 3)] == [0, 0]


def test_memory_among_guests_goes_to_whom_it_helps() -> None:
    """Reflex 6: by trial and error; a job that gains nothing from memory gives it away."""
    world = World().gpus("a")
    gains = world.arrive(guest(2, memory_mib=14 * GIB), memory_mib=0)
    lazy = world.arrive(guest(3, memory_mib=14 * GIB), memory_mib=0)
    world.run(1)
    assert gains.cap_mib + lazy.cap_mib <= DEVICE_MIB
    first = gains.cap_mib
    for _ in range(60):
        gains.alone_s = 0.03 * 14 * GIB / min(gains.cap_mib, 14 * GIB)
        world.run(5)
        assert gains.cap_mib + lazy.cap_mib <= DEVICE_MIB
    assert gains.cap_mib > 1.3 * first
    assert world.machine.why(2) is NodeReason.MEMORY_SHARED


def test_a_much_slower_owner_divides_its_guests_share_by_ten() -> None:
    """The step rule's hard cut."""
    world = World(cost=lambda share: 0.3 if share > 50 else 0.0).gpus("a")
    world.arrive(owner(1))
    world.run(3)
    world.arrive(guest(2))
    world.run(15)
    told = shares_of(world, 2)
    worst = max(told)
    assert worst > 50
    assert told[told.index(worst) + 1] == worst // 10


def test_a_level_that_slowed_the_owner_is_not_tried_again_for_a_while() -> None:
    """After a drop it is quiet: no commands, and the machine says until when."""
    world = World(cost=idle_part(20)).gpus("a")
    world.arrive(owner(1))
    world.run(3)
    world.arrive(guest(2))
    world.run(30)
    steps = world.machine.gpus["a"].steps
    assert steps is not None
    assert steps.stage is Stage.HELD
    until_s = world.machine.quiet_until_s("a")
    assert until_s is not None
    assert until_s > world.now_s
    world.commands.clear()
    world.run(until_s - world.now_s - 0.5)
    assert world.commands == []
    (report,) = world.machine.guarantees()
    assert report.guaranteed
    assert report.slowdown_pct <= 1.6
    assert report.baseline_ms == pytest.approx(30, rel=0.01)


def test_an_owner_that_gets_slower_by_itself_is_learned_again() -> None:
    """Its guests stand still for a look, are found innocent, and have about as much as before."""
    world = World(cost=idle_part(60)).gpus("a")
    body = world.arrive(owner(1))
    world.run(3)
    world.arrive(guest(2))
    world.run(30)
    before = world.share(2)
    body.alone_s = 0.05
    world.run(4)
    assert 0 in shares_of(world, 2)
    world.run(60)
    assert world.share(2) >= 0.8 * before
    (report,) = world.machine.guarantees()
    assert report.baseline_ms == pytest.approx(50, rel=0.02)


def test_a_saturated_owner_leaves_its_guests_almost_nothing() -> None:
    """Every point costs it one: what is left lies below what is tolerated."""
    world = World(cost=lambda share: share / 100).gpus("a")
    for job in (2, 3, 4):
        world.arrive(guest(job))
    world.arrive(owner(1))
    world.run(60)
    assert world.guests_pct("a") <= 3
    (report,) = world.machine.guarantees()
    assert report.slowdown_pct <= 3


def test_where_there_is_too_little_for_all_guests_have_it_by_turns() -> None:
    """One point for three guests: each has it some of the time."""
    world = World(cost=lambda share: share / 60).gpus("a")
    for job in (2, 3, 4):
        world.arrive(guest(job))
    world.arrive(owner(1))
    world.run(10)
    had = set()
    for _ in range(60):
        world.run(1)
        had |= {job for job in (2, 3, 4) if world.share(job)}
    assert had == {2, 3, 4}


def test_a_guest_that_loads_takes_nothing_from_those_that_train() -> None:
    """One point goes around among two; the third, which imports for a minute, joins them then."""
    world = World(cost=lambda share: share / 60).gpus("a")
    for job in (2, 3):
        world.arrive(guest(job))
    world.arrive(guest(4), loading_s=60)
    world.arrive(owner(1))
    world.run(10)
    for _ in range(40):
        world.run(1)
        assert world.share(4) == 0
        steps = world.machine.gpus["a"].steps
        assert steps
        assert steps.total_pct == 0 or world.share(2) + world.share(3) > 0
    had = set()
    for _ in range(60):
        world.run(1)
        had |= {job for job in (2, 3, 4) if world.share(job)}
    assert had == {2, 3, 4}


def test_guests_beside_an_owner_whom_even_the_least_slows_stand_still() -> None:
    """They are tried again after the hold."""
    world = World(cost=lambda share: 0.2 if share else 0.0).gpus("a")
    world.arrive(guest(2))
    world.arrive(owner(1))
    world.run(10)
    assert world.share(2) == 0
    assert world.machine.why(2) is NodeReason.NO_ROOM
    world.commands.clear()
    world.run(40)
    assert 1 in shares_of(world, 2)


def test_each_try_beside_such_an_owner_comes_later_than_the_one_before() -> None:
    """What hurts each time is tried seldom, up to once in the whole hold."""
    world = World(cost=lambda share: 0.2 if share else 0.0).gpus("a")
    world.arrive(guest(2))
    world.arrive(owner(1))
    world.run(150)
    said = [(at_s, one) for at_s, one in world.commands if isinstance(one, SetShare)]
    tried_s = [at_s for at_s, one in said if one.share_pct == 1]
    waits_s = [later - before for before, later in pairwise(tried_s)]
    assert waits_s == sorted(waits_s)
    assert waits_s[0] < 5
    assert waits_s[-1] > NodeRules().hold_s


def test_a_busy_moment_of_the_machine_costs_guests_no_more_than_moments() -> None:
    """It is over when the owner is looked at alone, and they seem guilty: tried again soon."""
    world = World(cost=idle_part(40)).gpus("a")
    body = world.arrive(owner(1))
    world.run(3)
    world.arrive(guest(2))
    body.alone_s = 0.04
    while world.share(2):
        world.run(0.1)
    body.alone_s = 0.03
    stood_still = 0
    for _ in range(100):
        world.run(0.1)
        stood_still += world.share(2) == 0
    assert stood_still <= 25
    assert world.share(2) > 1


def test_guests_of_an_owner_that_loads_for_long_have_the_smallest_share() -> None:
    """An hour of loading is no reason to stand still for an hour."""
    world = World().gpus("a")
    world.arrive(guest(2))
    world.arrive(owner(1), loading_s=60)
    world.run(20)
    assert world.share(2) == 0
    world.run(20)
    assert world.share(2) == 1
    assert world.machine.why(2) is NodeReason.OWNER_LOADING
    world.run(40)
    assert world.share(2) > 1


def test_guests_of_an_owner_without_hooks_stand_still() -> None:
    """Nobody could tell whether it is slowed; once it carries them it is as any other."""
    world = World().gpus("a")
    world.arrive(guest(2))
    bare = replace(owner(1), hooked=False)
    world.arrive(bare)
    world.run(60)
    assert world.share(2) == 0
    assert world.machine.why(2) is NodeReason.OWNER_WITHOUT_HOOKS
    assert world.bodies[1].cap_mib == 0
    world.tell(JobArrived(world.now_s, owner(1)))
    world.run(10)
    assert world.share(2) > 0


def test_an_owner_is_never_told_anything_but_a_cap_it_fits() -> None:
    """Its share is never cut."""
    world = World(cost=idle_part(10)).gpus("a")
    world.arrive(owner(1), memory_mib=5 * GIB)
    world.arrive(guest(2))
    world.run(60)
    assert shares_of(world, 1) == []
    caps = [one.cap_mib for _, one in world.commands if isinstance(one, SetCap) and one.job_id == 1]
    assert min(caps) >= 5 * GIB


def test_a_guest_on_two_gpus_has_the_lesser_of_both() -> None:
    """Ranks wait for the slowest."""
    world = World(cost=idle_part(30)).gpus("a", "b")
    world.arrive(guest(2, "a", "b"))
    world.run(1)
    world.arrive(owner(1, "b"))
    assert world.share(2) == 0
    world.run(30)
    assert 20 <= world.share(2) <= 33


def test_a_guest_is_slowed_for_a_shared_job_in_its_turn() -> None:
    """Opportunistic jobs yield to both other classes."""
    world = World(cost=idle_part(30)).gpus("a")
    world.arrive(guest(2))
    world.run(1)
    world.arrive(shared(1))
    assert world.share(2) == 0
    world.run(30)
    assert 20 <= world.share(2) <= 33
    (report,) = world.machine.guarantees()
    assert not report.guaranteed


def test_an_auto_owner_counts_as_guaranteed() -> None:
    """As its present role."""
    world = World(cost=idle_part(30)).gpus("a")
    world.arrive(owner(1, job_class=JobClass.AUTO))
    world.run(2)
    world.arrive(guest(2))
    world.run(5)
    (report,) = world.machine.guarantees()
    assert report.guaranteed


def test_every_reason_has_its_sentence() -> None:
    """For `slipstream why`."""
    assert set(SENTENCE) == set(NodeReason)
    assert all(text.endswith(".") for text in SENTENCE.values())
