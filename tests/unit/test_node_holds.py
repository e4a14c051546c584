# SPDX-License-Identifier: Apache-2.0
"""Shared jobs that reach no boundary: held at a device operation, in a virtual node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node_world import GIB, World, guest, owner, shared
from slipstream.core.node.commands import Hold, Park, SetCap, Unpark
from slipstream.core.node.events import JobArrived, ParkOrdered
from slipstream.core.node.reasons import NodeReason
from slipstream.core.node.rules import NodeRules
from slipstream.core.node.turns import Turn

pytestmark = pytest.mark.unit

RULES = NodeRules(turn_s=10.0, feedback_minibatches=1, idle_pass_s=2.0, park_wait_s=4.0)


def holds(world: World) -> list[tuple[float, Hold]]:
    """When which job was told to begin no device operation."""
    return [(at_s, one) for at_s, one in world.commands if isinstance(one, Hold)]


def pair(*, rules: NodeRules = RULES, first_mib: int = GIB, second_mib: int = GIB) -> World:
    """Two jobs on one GPU; the first has the turn, the second has had its first mini-batches."""
    world = World(rules).gpus("a")
    world.arrive(shared(1), can_hold=True, memory_mib=first_mib)
    world.arrive(shared(2), can_hold=True, memory_mib=second_mib)
    world.run(22)
    while world.machine.wheel.members[1].turn is not Turn.RUNNING:
        world.run(0.1)
    world.run(1)
    return world


def test_a_job_that_does_not_use_the_gpu_passes_its_turn_on() -> None:
    """Within `idle_pass_s`, not at the end of its turn, and charged only for what it had."""
    world = pair()
    member = world.machine.wheel.members[1]
    before_s, had_s, began_s = world.bodies[2].ran_s, member.served_s, member.began_at_s
    world.bodies[1].rests = True
    world.run(RULES.idle_pass_s + 0.5)
    assert [(one.job_id, one.reason) for _, one in holds(world)] == [(1, NodeReason.HELD_IDLE)]
    assert world.bodies[2].ran_s > before_s
    world.run(60)
    assert world.bodies[2].ran_s > before_s + 59, "nobody else wants the GPU"
    ((held_at_s, _),) = holds(world)
    assert member.served_s - had_s == pytest.approx(held_at_s - began_s, abs=0.2)
    assert world.machine.why(1) is NodeReason.HELD_IDLE


def test_a_held_job_goes_on_when_it_uses_the_gpu_again() -> None:
    """It comes to a device operation, waits for its turn there, has it, and parks as ever after."""
    world = pair()
    world.bodies[1].rests = True
    world.run(40)
    done = int(world.bodies[1].done)
    world.bodies[1].rests = False
    world.run(RULES.turn_s + 1)
    assert world.bodies[1].done > done
    assert not world.bodies[1].held
    later = [(type(one), one.job_id) for _, one in world.commands if not isinstance(one, SetCap)]
    world.run(15)
    assert (Park, 1) in [(type(one), one.job_id) for _, one in world.commands[len(later) :]]
    assert len(holds(world)) == 1


def test_what_others_had_while_a_job_rested_is_not_owed_to_it() -> None:
    """After a long rest both have the same, from then on."""
    world = pair()
    world.bodies[1].rests = True
    world.run(200)
    world.bodies[1].rests = False
    before = [world.bodies[job].ran_s for job in (1, 2)]
    world.run(120)
    ran = [world.bodies[job].ran_s - ran_s for job, ran_s in zip((1, 2), before, strict=True)]
    assert ran[0] == pytest.approx(ran[1], abs=15)


def test_a_job_of_long_minibatches_may_leave_the_gpu_unused_for_longer() -> None:
    """It waits for its data: two of its mini-batches long, not more than a turn."""
    world = World(replace(RULES, turn_s=30.0)).gpus("a")
    world.arrive(shared(1), can_hold=True, alone_s=4.0)
    world.arrive(shared(2), can_hold=True)
    world.run(50)
    while world.machine.wheel.members[1].turn is not Turn.RUNNING:
        world.run(0.1)
    world.run(10)
    rested_s = world.now_s
    world.bodies[1].rests = True
    world.run(15)
    ((at_s, _),) = holds(world)
    assert 7.5 < at_s - rested_s < 9.5


def test_a_validation_is_stopped_after_two_turns_without_a_boundary() -> None:
    """Not before: it may be about to end. From then on it has its turns as others do."""
    world = pair()
    began_s = world.bodies[1].boundary_s
    world.bodies[1].validates = True
    world.run(2 * RULES.turn_s - 2)
    assert holds(world) == []
    world.run(3)
    ((at_s, told),) = holds(world)
    assert (told.job_id, told.reason) == (1, NodeReason.HELD_BUSY)
    assert at_s - began_s == pytest.approx(2 * RULES.turn_s, abs=1)
    before = [world.bodies[job].ran_s for job in (1, 2)]
    world.run(200)
    ran = [world.bodies[job].ran_s - ran_s for job, ran_s in zip((1, 2), before, strict=True)]
    assert min(ran) > 60, "both have turns, also the one that still validates"
    done = world.bodies[1].done
    world.bodies[1].validates = False
    world.run(40)
    assert world.bodies[1].done > done
    assert world.machine.why(1) is not NodeReason.HELD_BUSY


def test_a_job_that_does_not_fit_beside_waits_and_is_told_so() -> None:
    """The late one goes on at its own cost; both are told why, and who has the turn since when."""
    world = pair(first_mib=9 * GIB, second_mib=9 * GIB)
    began_s = world.machine.wheel.members[1].began_at_s
    world.bodies[1].validates = True
    world.run(40)
    assert holds(world) == []
    assert world.machine.why(1) is NodeReason.LATE_NO_ROOM
    assert world.machine.why(2) is NodeReason.WAITS_FOR_ROOM
    assert world.machine.turn_holder(2) == (1, began_s)
    assert world.machine.turn_holder(1) is None
    world.bodies[1].validates = False
    world.run(20)
    assert world.machine.turn_holder(1) is not None or world.machine.turn_holder(2) is not None
    assert world.machine.why(2) is not NodeReason.WAITS_FOR_ROOM


def test_an_idle_job_keeps_the_gpu_if_nobody_fits_beside_it() -> None:
    """Its memory is in the way, and it cannot be moved without a boundary."""
    world = pair(first_mib=9 * GIB, second_mib=9 * GIB)
    world.bodies[1].rests = True
    ran_s = world.bodies[2].ran_s
    world.run(60)
    assert holds(world) == []
    assert world.bodies[2].ran_s == ran_s
    assert world.machine.why(2) is NodeReason.WAITS_FOR_ROOM


def test_a_new_job_has_its_first_minibatches_beside_one_that_rests() -> None:
    """Its need is not known: it is taken in where half of the GPU is free, with a cap."""
    world = World(RULES).gpus("a")
    world.arrive(shared(1), can_hold=True, memory_mib=6 * GIB)
    world.run(20)
    world.bodies[1].rests = True
    world.run(30)
    world.arrive(shared(2), can_hold=True)
    world.bodies[2].memory_mib = 0
    world.run(1)
    assert world.bodies[2].done > 1
    assert 0 < world.bodies[2].cap_mib <= 10 * GIB
    world.leave(1)
    world.run(1)
    assert world.bodies[2].cap_mib == 0


def test_a_new_job_of_unknown_need_waits_beside_a_full_gpu() -> None:
    """More than half is taken by the one that rests."""
    world = World(RULES).gpus("a")
    world.arrive(shared(1), can_hold=True, memory_mib=12 * GIB)
    world.run(20)
    world.bodies[1].rests = True
    world.run(30)
    world.arrive(shared(2), loading_s=5.0)
    world.bodies[2].memory_mib = 0
    world.run(20)
    assert holds(world) == []
    assert world.bodies[2].done == 0


def test_a_job_that_rests_without_memory_on_the_gpu_is_in_nobodys_way() -> None:
    """Whatever the next one needs."""
    world = pair(first_mib=0, second_mib=15 * GIB)
    world.bodies[1].rests = True
    world.run(RULES.idle_pass_s + 1)
    assert [one.job_id for _, one in holds(world)] == [1]
    assert world.bodies[2].cap_mib == 0


def test_a_third_job_has_to_fit_beside_all_that_are_held() -> None:
    """Two of 4 GiB are held; one of 4 GiB fits beside them, one of 9 GiB does not."""
    world = World(RULES).gpus("a")
    for job, mib in ((1, 4 * GIB), (2, 4 * GIB), (3, 4 * GIB), (4, 9 * GIB)):
        world.arrive(shared(job), can_hold=True, memory_mib=mib)
    world.run(100)
    world.bodies[1].rests = world.bodies[2].rests = True
    world.run(60)
    assert world.machine.wheel.held("a") == [1, 2]
    before = [world.bodies[job].ran_s for job in (3, 4)]
    world.run(60)
    ran = [world.bodies[job].ran_s - ran_s for job, ran_s in zip((3, 4), before, strict=True)]
    assert ran[0] > 50
    assert ran[1] == 0
    assert world.machine.why(4) is NodeReason.WAITS_FOR_ROOM
    assert sum(body.memory_mib for job, body in world.bodies.items() if job != 4) <= 16 * GIB


def test_a_job_that_cannot_be_held_goes_on_as_before() -> None:
    """No native code, several processes, or several nodes."""
    for job, can_hold in ((shared(1), False), (replace(shared(1), gang=("n1", "n2")), True)):
        world = World(RULES).gpus("a")
        world.arrive(job, can_hold=can_hold)
        world.run(3)
        world.arrive(shared(2), can_hold=True)
        world.bodies[1].validates = True
        world.run(40)
        assert holds(world) == []
        assert world.machine.why(1) is NodeReason.PARK_LATE


def test_a_job_that_never_stops_is_not_held_twice() -> None:
    """It was told to begin no device operation, and went on: it is late, at its own cost."""
    world = pair()
    world.bodies[1].validates, world.bodies[1].heeds_holds = True, False
    world.run(30)
    assert len(holds(world)) == 1
    assert world.machine.why(1) is NodeReason.PARK_LATE


def test_a_held_job_that_reaches_a_boundary_is_parked() -> None:
    """Its memory has left by itself, and the next one has all of the GPU again."""
    world = pair()
    world.bodies[1].rests = True
    world.run(5)
    assert world.bodies[2].cap_mib > 0
    world.bodies[1].held, world.bodies[1].rests, world.bodies[1].parked = False, False, True
    world.run(1)
    assert world.machine.wheel.held("a") == []
    assert world.bodies[2].cap_mib == 0


def test_what_an_earlier_coordinator_has_held_stays_held() -> None:
    """A machine that begins anew learns it from the job's report."""
    world = pair()
    world.bodies[1].rests = True
    world.run(5)
    world.machine = type(world.machine)(RULES)
    world.gpus("a")
    for job in (2, 1):
        world.tell(JobArrived(world.now_s, world.bodies[job].job))
    assert world.machine.wheel.members[2].turn is Turn.RUNNING
    world.run(1)
    assert world.machine.wheel.held("a") == [1]
    world.bodies[1].rests = False
    world.run(20)
    released = [one.job_id for _, one in world.commands if isinstance(one, Unpark)]
    assert 1 in released


def test_whom_an_operator_has_parked_is_held_too_if_it_does_not_come_to_a_boundary() -> None:
    """It takes no turns, and the others do not wait for its boundary."""
    world = pair()
    world.bodies[1].rests = True
    world.tell(ParkOrdered(world.now_s, 1, parked=True))
    ran_s = world.bodies[2].ran_s
    world.run(10)
    assert world.bodies[2].ran_s > ran_s + 6
    assert world.machine.why(1) is NodeReason.OPERATOR
    world.bodies[1].rests = False
    world.run(30)
    assert world.bodies[1].held, "until it is released"
    world.tell(ParkOrdered(world.now_s, 1, parked=False))
    world.run(30)
    assert not world.bodies[1].held


def test_guests_beside_a_job_that_runs_beside_a_held_one_share_what_is_left() -> None:
    """Caps never add up to more than the held one leaves."""
    world = World(RULES).gpus("a")
    world.arrive(shared(1), can_hold=True, memory_mib=6 * GIB)
    world.arrive(shared(2), can_hold=True, memory_mib=2 * GIB)
    world.arrive(guest(3), memory_mib=GIB)
    world.run(60)
    world.bodies[1].rests = True
    world.run(30)
    assert world.machine.wheel.held("a") == [1]
    caps = [world.bodies[job].cap_mib for job in (2, 3)]
    assert all(caps)
    assert sum(caps) <= 10 * GIB


def test_jobs_that_take_turns_beside_an_owner_do_not_starve_beside_a_held_one() -> None:
    """The one that runs now leaves before the next begins; the owner stays, and counts."""
    world = World(RULES).gpus("a", memory_mib=80 * GIB)
    world.arrive(owner(9), memory_mib=4 * GIB)
    for job_id in (1, 2, 3):
        world.arrive(shared(job_id), can_hold=True, memory_mib=30 * GIB)
    world.run(60)
    world.bodies[1].rests = True
    world.run(30)
    before = [world.bodies[job].done for job in (2, 3)]
    world.run(300)
    done = [world.bodies[job].done - then for job, then in zip((2, 3), before, strict=True)]
    assert min(done) > max(done) / 2


def test_nobody_begins_beside_a_held_job_whose_memory_is_not_known() -> None:
    """After a restart of the coordinator NVML has not been asked yet."""
    world = pair()
    world.bodies[1].rests = True
    world.run(RULES.idle_pass_s + 1)
    told = world.machine.jobs[1].told
    assert told is not None
    assert world.machine._fits_beside(2, [1])  # noqa: SLF001 (what decides)
    world.machine.handle(replace(told, at_s=world.now_s, resident_mib=None))
    assert not world.machine._fits_beside(2, [1])  # noqa: SLF001 (as above)
