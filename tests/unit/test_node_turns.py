# SPDX-License-Identifier: Apache-2.0
"""The turn wheel, in a virtual node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from node_world import GIB, World, guest, jain, owner, shared
from slipstream.core.node.commands import Park, Return, Unpark
from slipstream.core.node.events import JobArrived, TurnCalled, TurnsPassed
from slipstream.core.node.reasons import NodeReason
from slipstream.core.node.rules import NodeRules
from slipstream.core.node.turns import Turn

pytestmark = pytest.mark.unit

RULES = NodeRules(turn_s=10.0, feedback_minibatches=1)


def on_gpu(world: World, gpu: str = "a") -> list[int]:
    """Who uses a GPU now."""
    return [job for job, body in world.bodies.items() if gpu in body.job.gpus and not body.parked]


def test_a_shared_job_alone_is_never_told_anything() -> None:
    """Turns are only where two want the same."""
    world = World(RULES).gpus("a", "b")
    world.arrive(shared(1, "a"))
    world.arrive(shared(2, "b"))
    world.run(60)
    assert world.commands == []


def test_two_jobs_have_the_gpu_in_turns() -> None:
    """One parks, and only then does the other come back."""
    world = World(RULES).gpus("a")
    world.arrive(shared(1))
    world.arrive(shared(2))
    for _ in range(1200):
        world.run(0.1)
        assert len(on_gpu(world)) <= 1
    assert jain([world.bodies[1].ran_s, world.bodies[2].ran_s]) > 0.99
    switches = [one for _, one in world.commands if isinstance(one, Unpark)]
    assert 9 <= len(switches) <= 14


def test_weights_are_kept() -> None:
    """1, 2 and 4: time for their weight is the same."""
    world = World(RULES).gpus("a")
    for job, weight in ((1, 1), (2, 2), (3, 4)):
        world.arrive(shared(job, weight=weight))
    world.run(700)
    had = [world.bodies[job].ran_s / weight for job, weight in ((1, 1), (2, 2), (3, 4))]
    assert jain(had) > 0.97
    assert world.machine.turn_parts("a") == pytest.approx({1: 1 / 7, 2: 2 / 7, 3: 4 / 7})


def test_a_late_job_has_a_shorter_next_turn() -> None:
    """What it took too much is charged, and subtracted."""
    world = World(RULES).gpus("a")
    world.arrive(shared(1), park_s=3.0)
    world.arrive(shared(2))
    world.run(300)
    assert jain([world.bodies[1].ran_s, world.bodies[2].ran_s]) > 0.98
    begins = [at_s for at_s, one in world.commands if isinstance(one, Unpark) and one.job_id == 1]
    ends = [at_s for at_s, one in world.commands if isinstance(one, Park) and one.job_id == 1]
    lengths = [next(end for end in ends if end > begin) - begin for begin in begins[1:-1]]
    assert min(lengths) < 8


def test_a_job_that_does_not_park_in_time_keeps_the_gpu_at_its_own_cost() -> None:
    """The wait is bounded: nobody else may have it, so it may go on, and is charged."""
    world = World(replace(RULES, park_wait_s=5.0)).gpus("a")
    world.arrive(shared(1), park_s=1e9)
    world.arrive(shared(2))
    world.run(8)
    assert world.machine.wheel.members[1].turn is Turn.RUNNING
    reasons = [one.reason for _, one in world.commands if isinstance(one, Unpark)]
    assert reasons[-1] is NodeReason.PARK_LATE
    world.bodies[1].park_s = 0.1
    world.run(100)
    assert world.bodies[2].ran_s > 40


def test_a_job_of_higher_priority_is_never_parked_for_a_lower_one() -> None:
    """And the lower one leaves when it comes."""
    world = World(RULES).gpus("a")
    world.arrive(shared(1))
    world.run(3)
    world.arrive(shared(2, priority=5))
    world.run(1)
    assert on_gpu(world) == [2]
    assert world.machine.why(1) is NodeReason.WAITS_FOR_TURN
    world.run(60)
    parked = [one.job_id for _, one in world.commands[1:] if isinstance(one, Park)]
    assert 2 not in parked[1:]
    assert on_gpu(world) == [2]
    world.leave(2)
    world.run(1)
    assert on_gpu(world) == [1]


def test_a_new_jobs_first_minibatches_come_first() -> None:
    """It does not wait for the others' turns, only until it has loaded."""
    world = World(NodeRules(turn_s=60.0, feedback_minibatches=100)).gpus("a")
    world.arrive(shared(1))
    world.run(10)
    world.arrive(shared(2))
    world.run(1)
    assert on_gpu(world) == [2]
    assert world.machine.wheel.members[2].reason is NodeReason.FIRST_MINIBATCHES
    world.run(4)
    assert world.bodies[2].done >= 100
    assert on_gpu(world) == [1]


def test_who_is_ready_does_not_wait_for_who_still_imports() -> None:
    """The first to come has the turn, but is not near the GPU: the other trains until it is."""
    world = World(NodeRules(turn_s=60.0)).gpus("a")
    world.arrive(shared(1), loading_s=30.0, imports_s=28.0)
    world.arrive(shared(2), loading_s=3.0, imports_s=2.0)
    world.run(5)
    assert on_gpu(world) == [2]
    assert world.bodies[2].done > 0
    assert world.machine.wheel.members[1].turn is Turn.WAITING
    world.run(27)
    assert on_gpu(world) == [1]
    assert world.machine.wheel.members[1].reason is NodeReason.FIRST_MINIBATCHES


def test_who_loads_onto_the_gpu_keeps_its_turn() -> None:
    """After its imports nobody can tell what it has there: another might not fit."""
    world = World(NodeRules(turn_s=60.0)).gpus("a")
    world.arrive(shared(1), loading_s=30.0, imports_s=2.0)
    world.arrive(shared(2), loading_s=3.0, imports_s=2.0)
    world.run(10)
    assert on_gpu(world) == [1]
    assert world.bodies[2].done == 0


def test_an_old_job_has_a_turn_after_eight_new_ones() -> None:
    """A stream of new jobs does not starve it."""
    world = World(NodeRules(turn_s=2.0, feedback_minibatches=10**9)).gpus("a")
    world.arrive(shared(1))
    world.run(4)
    had = world.bodies[1].ran_s
    for job in range(2, 40):
        world.arrive(shared(job))
        world.run(2)
    assert world.bodies[1].ran_s > had + 2


def test_new_jobs_pass_old_ones_gpu_by_gpu() -> None:
    """Eight may in a row on each: on the GPU beside it the next one does not wait for that."""
    world = World(NodeRules(turn_s=60.0, feedback_minibatches=100)).gpus("a", "b")
    for old, gpu in ((1, "a"), (2, "b")):
        world.arrive(shared(old, gpu))
    world.run(10)
    for job in range(3, 11):
        world.arrive(shared(job, "b"))
    while sum(world.bodies[job].done > 0 for job in range(3, 11)) < 8:
        world.run(0.1)
    world.arrive(shared(11, "a"))
    world.run(1)
    assert on_gpu(world, "a") == [11]


def test_a_job_on_two_gpus_has_both_or_none() -> None:
    """And turns of the node end together, so that it comes to its turn at all."""
    world = World(RULES).gpus("a", "b")
    world.arrive(shared(1, "a", "b"))
    world.arrive(shared(2, "a"))
    world.run(4)
    world.arrive(shared(3, "b"))
    for _ in range(1800):
        world.run(0.1)
        assert len(on_gpu(world, "a")) <= 1
        assert len(on_gpu(world, "b")) <= 1
    assert jain([world.bodies[job].ran_s for job in (1, 2, 3)]) > 0.97


def test_commands_for_a_gang_name_its_nodes() -> None:
    """Whoever carries them out tells the others."""
    gang = ("n1", "n2")
    world = World(RULES).gpus("a")
    world.arrive(replace(shared(1), gang=gang))
    world.arrive(shared(2))
    world.run(30)
    turns = [one for _, one in world.commands if isinstance(one, Park | Unpark)]
    assert {one.gang for one in turns if one.job_id == 1} == {gang}


def test_a_gang_led_elsewhere_runs_when_it_is_called() -> None:
    """The leader's node decides; here it comes before everybody."""
    world = World(RULES).gpus("a")
    world.arrive(shared(2))
    follower = replace(shared(1), gang=("n0", "n1"), leads=False)
    world.arrive(follower)
    world.run(40)
    assert on_gpu(world) == [2]
    world.tell(TurnCalled(world.now_s, 1, runs=True))
    world.run(1)
    assert on_gpu(world) == [1]
    world.run(30)
    assert on_gpu(world) == [1]
    world.tell(TurnCalled(world.now_s, 1, runs=False))
    world.run(1)
    assert on_gpu(world) == [2]


def follower(memory_mib: int) -> World:
    """A gang that is led elsewhere, parked after a turn, and one of this node that trains."""
    world = World(RULES).gpus("a")
    world.arrive(replace(shared(1), gang=("n0", "n1"), leads=False), memory_mib=memory_mib)
    world.tell(TurnCalled(world.now_s, 1, runs=True))
    world.run(2)
    world.arrive(shared(2), memory_mib=4 * GIB)
    world.tell(TurnCalled(world.now_s, 1, runs=False))
    world.run(2)
    assert world.on_gpu("a") == [2]
    return world


def test_a_gang_led_elsewhere_comes_back_before_its_turn() -> None:
    """Its leader calls it back: its memory is there when its turn begins, on this node, too."""
    world = follower(4 * GIB)
    world.tell(TurnCalled(world.now_s, 1, runs=False, returns=True))
    world.run(1)
    assert world.on_gpu("a") == [1, 2]
    assert world.machine.why(1) is NodeReason.NEXT_TURN
    world.tell(TurnCalled(world.now_s, 1, runs=True))
    world.run(1)
    assert on_gpu(world) == [1]
    assert [type(one) for _, one in world.commands if one.job_id == 1][-2:] == [Return, Unpark]


def test_a_gang_that_was_called_back_and_passed_over_leaves_again() -> None:
    """By its leader, for a new job's first mini-batches say."""
    world = follower(4 * GIB)
    world.tell(TurnCalled(world.now_s, 1, runs=False, returns=True))
    world.run(1)
    world.tell(TurnCalled(world.now_s, 1, runs=False))
    world.run(1)
    assert world.on_gpu("a") == [2]


def test_where_there_is_no_room_a_called_gang_stays_away() -> None:
    """Its leader's GPU may be emptier than this one."""
    world = follower(14 * GIB)
    world.tell(TurnCalled(world.now_s, 1, runs=False, returns=True))
    world.run(1)
    assert world.on_gpu("a") == [2]
    assert not any(isinstance(one, Return) for _, one in world.commands)


def test_shared_guests_of_a_guaranteed_owner_take_turns_among_themselves() -> None:
    """Whoever has the turn is kept to the guests' share."""
    world = World(RULES, cost=lambda share: max(0.0, share - 30) / 100).gpus("a")
    world.arrive(owner(1))
    world.run(3)
    world.arrive(shared(2))
    world.arrive(shared(3))
    world.run(100)
    assert len(on_gpu(world)) == 2
    assert 1 in on_gpu(world)
    assert jain([world.bodies[2].ran_s, world.bodies[3].ran_s]) > 0.95
    assert world.guests_pct("a") <= 33


def test_turns_that_somebody_else_counted_are_charged() -> None:
    """A simulator passes over unchanging turns and says what each had."""
    world = World(RULES).gpus("a")
    world.arrive(shared(1))
    world.arrive(shared(2))
    world.run(30)
    world.now_s += 1000
    world.tell(TurnsPassed(world.now_s, ((1, 900.0), (2, 100.0))))
    before = world.bodies[1].ran_s
    world.run(60)
    assert world.bodies[1].ran_s - before < 15


def test_a_weight_may_change() -> None:
    """A seat that was known by less is known by more."""
    world = World(RULES).gpus("a")
    world.arrive(shared(1))
    world.tell(JobArrived(world.now_s, shared(1, weight=4)))
    assert world.machine.wheel.members[1].job.weight == 4


def test_a_job_that_ends_leaves_its_turn_to_the_next() -> None:
    """At once."""
    world = World(RULES).gpus("a")
    world.arrive(guest(9))
    world.arrive(shared(1))
    world.arrive(shared(2))
    world.run(2)
    (runs,) = [job for job in on_gpu(world) if job != 9]
    world.leave(runs)
    world.run(0.2)
    (other,) = [job for job in on_gpu(world) if job != 9]
    assert other != runs


def test_the_next_job_is_back_before_its_turn_where_both_fit() -> None:
    """Copies of a second each way cost nobody a second: the GPU trains almost all the time."""
    world = World(RULES).gpus("a")
    for job in (1, 2, 3):
        world.arrive(shared(job), copy_s=1.0, memory_mib=6 * GIB)
    world.run(60)
    before = {job: body.ran_s for job, body in world.bodies.items()}
    for _ in range(1800):
        world.run(0.1)
        assert len(world.on_gpu("a")) <= 2, "never three at once"
    ran = [body.ran_s - before[job] for job, body in world.bodies.items()]
    assert sum(ran) > 0.97 * 180
    assert jain(ran) > 0.97
    assert any(isinstance(one, Return) for _, one in world.commands)


def test_where_two_do_not_fit_one_leaves_before_the_other_comes() -> None:
    """As if there were no room to prepare anything."""
    world = World(RULES).gpus("a")
    for job in (1, 2):
        world.arrive(shared(job), copy_s=1.0, memory_mib=9 * GIB)
    world.run(5)
    for _ in range(1200):
        world.run(0.1)
        assert len(world.on_gpu("a")) <= 1
    assert not any(isinstance(one, Return) for _, one in world.commands)
    assert jain([body.ran_s for body in world.bodies.values()]) > 0.97


def test_who_came_back_and_is_passed_over_leaves_again() -> None:
    """A new job's first mini-batches come first: it needs the memory, maybe."""
    world = World(replace(RULES, feedback_minibatches=50)).gpus("a")
    for job in (1, 2):
        world.arrive(shared(job), memory_mib=6 * GIB)
    world.run(30)
    while not any(body.asked_to_return_s is not None for body in world.bodies.values()):
        world.run(0.1)
    world.arrive(shared(3), memory_mib=6 * GIB)
    world.run(1.0)
    assert on_gpu(world) == [3]
    assert world.on_gpu("a") == [3]
    world.run(60)
    assert jain([world.bodies[job].ran_s for job in (1, 2)]) > 0.9


def test_a_job_whose_memory_is_slow_to_leave_is_not_called_back_for_that() -> None:
    """It has stopped, and another runs: what is late is only its memory."""
    world = World(replace(RULES, park_wait_s=3.0)).gpus("a")
    for job in (1, 2):
        world.arrive(shared(job), copy_s=2.0, memory_mib=6 * GIB)
    world.run(120)
    late = [one for _, one in world.commands if one.reason is NodeReason.PARK_LATE]
    assert late == []
