# SPDX-License-Identifier: Apache-2.0
"""The step rule among the noise of a shared machine: what is no evidence, and what is enough."""

from __future__ import annotations

import random
import statistics

import pytest

from node_world import World, guest, owner
from slipstream.core.node.commands import SetShare
from slipstream.core.node.pulse import Middle, Pulse, both
from slipstream.core.node.reasons import NodeReason
from slipstream.core.node.rules import NodeRules

pytestmark = pytest.mark.unit

OWNER, FIRST, SECOND = 1, 2, 3
ALONE_S = 0.03


def beside_owner(world: World, seconds: float = 20.0) -> World:
    """An owner and a guest that have been there for a while."""
    world.gpus("a")
    world.arrive(owner(OWNER), alone_s=ALONE_S)
    world.arrive(guest(FIRST))
    return world.run(seconds)


def baseline_ms(world: World) -> float:
    """The owner's mini-batch time alone, as the machine has it."""
    known = world.machine.jobs[OWNER].pulse.baseline
    assert known
    return 1e3 * known.value_s


def test_a_speed_learned_while_a_guest_loads_does_not_outlast_the_loading() -> None:
    """What an import on the same cores costs the owner would else be left to guests for good."""
    world = beside_owner(World(cost=lambda share_pct: 0.02 if share_pct else 0.0))
    body = world.bodies[OWNER]
    body.alone_s = 1.1 * ALONE_S
    world.arrive(guest(SECOND), loading_s=15.0)
    world.run(14.0)
    assert baseline_ms(world) == pytest.approx(1e3 * body.alone_s, rel=0.01)
    body.alone_s = ALONE_S
    world.run(2.0)
    assert baseline_ms(world) == pytest.approx(1e3 * ALONE_S, rel=0.005)


def test_what_was_too_much_is_not_tried_for_the_sake_of_another_guest() -> None:
    """Each guest that comes would else cost the owner the same step too far."""
    world = beside_owner(World(cost=lambda share_pct: 0.4 if share_pct > 20 else 0.0), 8.0)
    before = len(world.commands)
    world.arrive(guest(SECOND))
    world.run(10.0)
    said = [one for _, one in world.commands[before:] if isinstance(one, SetShare)]
    assert {one.job_id for one in said if one.share_pct} == {FIRST, SECOND}
    reasons = {one.reason for one in said}
    assert NodeReason.OWNER_MUCH_SLOWER not in reasons
    assert NodeReason.OWNER_SLOWER not in reasons


def test_a_step_much_too_far_is_taken_back_after_few_reports() -> None:
    """A drop of a third needs no more than three of them to be sure of."""
    rules = NodeRules()
    world = beside_owner(World(rules, cost=lambda share_pct: 0.5 if share_pct > 20 else 0.0), 10.0)
    shares = [(at_s, one) for at_s, one in world.commands if isinstance(one, SetShare)]
    cut = next(n for n, (_, one) in enumerate(shares) if one.reason is NodeReason.OWNER_MUCH_SLOWER)
    took_s = shares[cut][0] - shares[cut - 1][0]
    reports = rules.severe_reports + 1  # one began before the step
    assert took_s <= rules.settle_s + (reports + 0.5) * world.tick_s


def two_percent(share_pct: float) -> float:
    """Guests that an owner feels as soon as they have anything, and more beyond a fifth."""
    return 0.02 + 0.004 * max(0.0, share_pct - 20) if share_pct else 0.0


class Noisy(World):
    """A machine whose owner's mini-batch time varies by itself from report to report."""

    def run_noisily(self, seconds: float, spread: float, seed: int) -> float:
        """Let time pass; which part of it guests stood still for."""
        chance = random.Random(seed)  # noqa: S311 (the same each time)
        still: list[bool] = []
        for _ in range(round(seconds / self.tick_s)):
            self.bodies[OWNER].alone_s = ALONE_S * max(0.5, chance.gauss(1.0, spread))
            self.run(self.tick_s)
            still.append(self.guests_pct("a") == 0)
        return statistics.mean(still)


def test_noise_alone_does_not_stop_guests_for_long() -> None:
    """They cost the owner 2 %, and at each report it is by 3 % slower or faster by itself."""
    stood = []
    for seed in range(20):
        world = Noisy(cost=two_percent)
        world.gpus("a")
        world.arrive(owner(OWNER), alone_s=ALONE_S)
        world.arrive(guest(FIRST))
        world.run_noisily(4.0, 0.03, seed)
        stood.append(world.run_noisily(30.0, 0.03, seed + 100))
    assert statistics.mean(stood) < 0.06


def test_two_looks_that_agree_are_surer_than_either() -> None:
    """And one that does not agree is the new truth."""
    pulse = Pulse()
    pulse.learned(Middle(1.00, 0.05, 0.02))
    pulse.looked(Middle(1.02, 0.03, 0.01))
    known = pulse.baseline
    assert known
    assert 1.00 < known.value_s < 1.02
    assert known.error_s < 0.01
    pulse.looked(Middle(1.20, 0.03, 0.01))
    assert pulse.baseline == Middle(1.20, 0.03, 0.01)


def test_no_look_is_ever_so_sure_that_another_is_not_heard() -> None:
    """Values that are all the same would else count for ever."""
    found = both(Middle(1.0, 0.0, 0.0), Middle(1.001, 0.0, 0.0))
    assert found.value_s == pytest.approx(1.0005)
    assert found.error_s > 0
