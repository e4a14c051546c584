# SPDX-License-Identifier: Apache-2.0
"""Whatever happens on a node, in any order: the node machine's promises hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node_world import DEVICE_MIB, GIB, World, guest, owner, shared
from slipstream.core.node.commands import SetShare
from slipstream.core.node.events import ParkOrdered
from slipstream.core.node.rules import NodeRules
from slipstream.core.node.turns import Turn

if TYPE_CHECKING:
    from slipstream.core.node.events import NodeJob

pytestmark = pytest.mark.property

GPUS = ("a", "b", "c")
RULES = NodeRules(
    turn_s=5.0,
    idle_pass_s=1.0,
    hold_s=5.0,
    trial_s=2.0,
    loading_s=3.0,
    feedback_minibatches=20,
)


@st.composite
def jobs(draw: st.DrawFn, job_id: int) -> NodeJob:
    """Any job, on any GPUs."""
    gpus = draw(st.lists(st.sampled_from(GPUS), min_size=1, max_size=2, unique=True))
    kinds = [owner(job_id, *gpus), guest(job_id, *gpus), shared(job_id, *gpus)]
    return replace(
        draw(st.sampled_from(kinds)),
        weight=draw(st.integers(1, 4)),
        priority=draw(st.integers(0, 1)),
        memory_mib=draw(st.sampled_from([0, GIB, 9 * GIB])),
        hooked=draw(st.integers(0, 5)) > 0,
    )


def seated(world: World, job: NodeJob) -> bool:
    """Slurm gives a GPU to one owner at most."""
    holders = [one.job for one in world.bodies.values() if one.job.is_owner]
    taken = {gpu for one in holders for gpu in one.gpus}
    return not (job.is_owner and taken.intersection(job.gpus))


def check(world: World) -> None:
    """What holds at every moment."""
    for name in GPUS:
        gpu = world.machine.gpus[name]
        limits = gpu.limits(world.machine.jobs, RULES, world.now_s)
        assert sum(one.cap_mib for one in limits.values()) <= DEVICE_MIB
        for job, limit in limits.items():
            if limit.cap_mib:  # what it was told is the least of all its GPUs
                assert 0 < world.bodies[job].cap_mib <= limit.cap_mib
        if gpu.protected is not None:
            assert all(limits[job].cap_mib for job in gpu.riders)
        members = world.machine.wheel.members.values()
        assert sum(one.turn is not Turn.WAITING and name in one.job.gpus for one in members) <= 1
        check_held(world, name)
    for body in world.bodies.values():
        if body.job.is_owner:
            assert body.share_pct == 100
            assert not body.parked
            assert body.asked_to_park_s is None
        elif world.machine.is_ordered_away(body.job.job_id):
            assert body.asked_to_park_s is not None
            assert body.asked_to_return_s is None


def check_held(world: World, name: str) -> None:
    """Who is held has stopped, takes no turn, and leaves room for who has it."""
    held = world.machine.wheel.held(name)
    for job in held:
        assert world.machine.wheel.members[job].turn is Turn.WAITING
        assert not world.bodies[job].uses_gpu
    using = [
        body
        for job, body in world.bodies.items()
        if job in world.machine.wheel.members and name in body.job.gpus and job not in held
    ]
    there = sum(world.bodies[job].memory_mib for job in held)
    if held and there:
        running = [one for one in using if world.machine.wheel.has_turn(name) == one.job.job_id]
        assert all(one.cap_mib and one.cap_mib + there <= DEVICE_MIB for one in running)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_promises_hold_whatever_happens(data: st.DataObject) -> None:
    """Caps add up to no more than the device, one turn per GPU, owners are left alone.

    Whom an operator has parked stays asked to park.
    """
    slope = data.draw(st.sampled_from([0.0, 0.3, 1.0, 3.0]))
    world = World(RULES, cost=lambda share: slope * share / 100).gpus(*GPUS)
    for number in range(1, data.draw(st.integers(2, 14))):
        job = data.draw(jobs(number))
        if seated(world, job):
            world.arrive(
                job,
                memory_mib=data.draw(st.sampled_from([0, GIB, 9 * GIB])),
                park_s=data.draw(st.sampled_from([0.0, 0.3, 40.0])),
                alone_s=data.draw(st.sampled_from([0.01, 0.03, 0.4])),
                loading_s=data.draw(st.sampled_from([0.0, 5.0])),
                can_hold=data.draw(st.booleans()),
            )
            check(world)
        if world.bodies and data.draw(st.integers(0, 3)) == 0:
            world.leave(data.draw(st.sampled_from(sorted(world.bodies))))
            check(world)
        if len(world.bodies) and data.draw(st.booleans()):
            body = world.bodies[data.draw(st.sampled_from(sorted(world.bodies)))]
            body.spilled_mib = data.draw(st.sampled_from([0, 2 * GIB]))
            body.rests = data.draw(st.booleans())
            body.validates = not body.rests and data.draw(st.booleans())
        if len(world.bodies) and data.draw(st.booleans()):
            named = data.draw(st.sampled_from(sorted(world.bodies)))
            world.tell(ParkOrdered(world.now_s, named, parked=data.draw(st.booleans())))
            check(world)
        for _ in range(data.draw(st.integers(0, 40))):
            world.run(0.1)
            check(world)
    told = [one for _, one in world.commands if isinstance(one, SetShare)]
    assert all(0 <= one.share_pct <= 100 for one in told)


@settings(max_examples=15)
@given(
    weights=st.lists(st.integers(1, 16), min_size=2, max_size=6),
    park_s=st.sampled_from([0.0, 0.2, 1.0]),
)
def test_time_goes_by_weight(weights: list[int], park_s: float) -> None:
    """Jain's index of time for weight, once each has had several turns."""
    world = World(replace(RULES, turn_s=4.0), tick_s=0.25).gpus(*GPUS)
    for number, weight in enumerate(weights, 1):
        world.arrive(shared(number, weight=weight), park_s=park_s)
    world.run(24 * sum(weights))
    had = [world.bodies[number].ran_s / weight for number, weight in enumerate(weights, 1)]
    assert sum(had) ** 2 / (len(had) * sum(one * one for one in had)) >= 0.97


@settings(max_examples=15)
@given(data=st.data())
def test_nobody_starves(data: st.DataObject) -> None:
    """Jobs of one priority on any GPUs, gangs among them: each trains within a few rounds."""
    world = World(replace(RULES, turn_s=4.0), tick_s=0.25).gpus(*GPUS)
    count = data.draw(st.integers(2, 7))
    for number in range(1, count + 1):
        gpus = data.draw(st.lists(st.sampled_from(GPUS), min_size=1, max_size=3, unique=True))
        weight = data.draw(st.integers(1, 3))
        world.arrive(shared(number, *gpus, weight=weight), park_s=0.2)
    for _ in range(4):
        before = {job: body.done for job, body in world.bodies.items()}
        world.run(5 * 4 * 3 * count)
        assert all(world.bodies[job].done > before[job] for job in before)


def _story() -> str:
    """A fixed node with all that depends on order: guests, turns, caps and trials."""
    world = World(RULES, cost=lambda share: max(0.0, share - 20) / 100).gpus(*GPUS)
    for number in range(1, 10):
        kind = (guest, shared, owner)[number % 3]
        job = kind(number, GPUS[number % 3], GPUS[(number // 3) % 3])
        job = replace(job, gpus=tuple(dict.fromkeys(job.gpus)))
        if seated(world, job):
            world.arrive(job, memory_mib=9 * GIB)
        world.run(4)
    world.run(20)
    counted = Counter(type(one).__name__ for _, one in world.commands)
    assert min(counted[name] for name in ("SetShare", "SetCap", "Park", "Unpark")) > 0
    return "\n".join(f"{at_s} {one}" for at_s, one in world.commands)


def test_the_same_events_give_the_same_commands_under_any_hash_seed() -> None:
    """Two interpreters with two seeds tell the same story."""
    code = "import sys; import test_node_machine as one; sys.stdout.write(one._story())"
    here = Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parent), *sys.path])
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "4242")
    ]
    assert told[0]
    assert told[0] == told[1]


def test_what_does_not_change_is_not_told_again() -> None:
    """Reports of a job alone give no command, and the machine says that it needs none."""
    world = World(RULES).gpus(*GPUS)
    world.arrive(owner(1, "a"))
    world.arrive(guest(2, "b"))
    world.arrive(shared(3, "c"))
    world.run(5)
    assert world.commands == []
    assert {world.machine.quiet_until_s(name) for name in GPUS} == {float("inf")}
    assert world.machine.wakes_at_s() is None
