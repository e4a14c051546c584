# SPDX-License-Identifier: Apache-2.0
"""Whether turns are just, over any whole round and whoever came when, in a virtual node."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from node_world import World, jain, shared
from slipstream.core.node.rules import NodeRules

pytestmark = pytest.mark.unit

RULES = NodeRules(turn_s=10.0, feedback_minibatches=1)


@pytest.mark.parametrize("seed", range(3, 7))
def test_any_two_rounds_are_just(seed: int) -> None:
    """However long each took to load and to stop: no order drifts, nobody has a turn too few."""
    chance = random.Random(seed)  # noqa: S311 (examples, not secrets)
    world = World(replace(RULES, feedback_minibatches=100)).gpus("a")
    weights = {1: 4, 2: 2, 3: 1, 4: 1}
    for job, weight in weights.items():
        world.arrive(shared(job, weight=weight), loading_s=chance.uniform(5, 25), copy_s=0.5)

    def passes(seconds: float) -> None:
        for _ in range(round(seconds / 0.5)):
            for body in world.bodies.values():
                body.park_s = chance.uniform(0.0, 0.3)
            world.run(0.5)

    while any(body.done < 100 for body in world.bodies.values()):
        passes(0.5)
    passes(chance.uniform(0, 40))
    before = {job: body.ran_s for job, body in world.bodies.items()}
    passes(2 * 10.0 * sum(weights.values()))
    had = [world.bodies[job].ran_s - before[job] for job in weights]
    assert jain([one / weight for one, weight in zip(had, weights.values(), strict=True)]) > 0.98


def test_time_in_which_it_loaded_is_not_owed_to_a_job() -> None:
    """A minute of loading would else be six turns in a row, and the other would stand still."""
    world = World(RULES).gpus("a")
    world.arrive(shared(1))
    world.arrive(shared(2), loading_s=60.0)
    world.run(62)
    before = world.bodies[1].ran_s
    world.run(40)
    assert world.bodies[1].ran_s - before > 15


def test_a_newcomer_is_owed_nothing_by_another_gpu() -> None:
    """What those on its own GPU had counts, not that somebody elsewhere had less."""
    world = World(RULES).gpus("a", "b")
    for job in (1, 2):
        world.arrive(shared(job, "a"))
    world.arrive(shared(3, "b", weight=16))
    world.run(200)
    world.arrive(shared(4, "a"))
    world.run(2)
    before = [world.bodies[job].ran_s for job in (1, 2)]
    world.run(60)
    assert min(world.bodies[job].ran_s - had for job, had in zip((1, 2), before, strict=True)) > 15
