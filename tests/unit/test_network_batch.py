# SPDX-License-Identifier: Apache-2.0
"""Many jobs placed together: never worse than one after the other, and the same for a seed."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest

from network_world import racks, room
from slipstream.core.network.batch import Batch, place_batch
from slipstream.core.network.first_fit import first_seats
from slipstream.core.network.gangs import Gang, nodes_of, ring, with_roles
from slipstream.core.network.layout import Layout
from slipstream.core.network.scoring import OURS, PUBLISHED, Weights, score

pytestmark = pytest.mark.unit

CLUSTER = room(racks(4, 4, 4), [8, 3, 0, 5, 2, 8, 1, 4, 6, 8, 3, 2])
GANGS = [
    ring("a", 4),
    with_roles("b", {"ps": 1, "worker": 6}),
    ring("c", 1),
    nodes_of("d", 2, 3),
    ring("e", 9),
    with_roles("f", {"ps": 2, "worker": 3}, server_gpus=1),
]


@pytest.mark.parametrize("weights", [OURS, PUBLISHED, Weights(link_mbps=1e4, uplink_mbps=1e4)])
def test_a_batch_is_never_worse_than_best_fit(weights: Weights) -> None:
    """And the score it tells is the score of what it gives."""
    found = place_batch(GANGS, CLUSTER, weights, generations=20)
    plans = [plan for plan in found.plans if plan]
    assert len(plans) == len(GANGS)
    assert found.score <= found.best_fit_score
    assert found.score == pytest.approx(score(GANGS, plans, CLUSTER, weights))


def test_jobs_that_get_into_each_other_s_way_are_sorted_out() -> None:
    """Best fit gives the small job the hole of the large one, which then needs two nodes."""
    cluster = room(racks(2), [4, 6])
    gangs = [ring("small", 4), ring("large", 4), ring("rest", 2)]
    found = place_batch(gangs, cluster, generations=30)
    assert [len(set(plan.nodes)) for plan in found.plans if plan] == [1, 1, 1]
    crossed = [ring("a", 2), ring("b", 4), ring("c", 3)]
    together = place_batch(crossed, room(racks(3), [3, 2, 4]), generations=30)
    assert [set(plan.nodes) for plan in together.plans if plan] == [{"n01"}, {"n02"}, {"n00"}]


def test_the_same_seed_gives_the_same_plans() -> None:
    """With the same number of generations; another seed may find others."""
    one, other = (place_batch(GANGS, CLUSTER, seed=7, generations=15) for _ in range(2))
    assert one == other


def test_a_deadline_ends_it_and_a_replay_finds_the_same() -> None:
    """The shell's clock says stop after five; five generations without a clock are the same."""
    asked = count()
    stopped = place_batch(GANGS, CLUSTER, seed=3, goes_on=lambda: next(asked) < 5)
    assert stopped.generations == 5
    assert stopped == place_batch(GANGS, CLUSTER, seed=3, generations=5)


def test_no_time_at_all_is_best_fit() -> None:
    """The first plan is there before the clock is asked."""
    found = place_batch(GANGS, CLUSTER, goes_on=lambda: False)
    assert found.score == found.best_fit_score
    assert found.generations == 0


def test_an_earlier_job_is_never_left_out_for_later_ones() -> None:
    """Room for one of eight or for eight of one: the first in line has it."""
    cluster = room(racks(1), [8])
    large, small = ring("large", 8), [ring(f"small{at}", 1) for at in range(8)]
    found = place_batch([large, *small], cluster, generations=20)
    assert [plan is not None for plan in found.plans] == [True] + [False] * 8
    found = place_batch([*small, large], cluster, generations=20)
    assert [plan is not None for plan in found.plans] == [True] * 8 + [False]


def test_a_place_for_everybody_is_found_where_best_fit_finds_none() -> None:
    """Whole nodes for the second job are there only if the first one takes another one."""
    cluster = room(racks(3), [2, 2, 3])
    gangs = [nodes_of("two", 2, 2), nodes_of("one", 1, 3)]
    found = place_batch(gangs, cluster, generations=20)
    assert all(found.plans)


def test_thousands_that_wait_are_no_number_too_large() -> None:
    """More jobs than a float has bits for: the first ones in line have the node."""
    gangs = [ring(f"job{at}", 1) for at in range(1_100)]
    found = place_batch(gangs, room(racks(1), [8]), generations=2)
    assert [plan is not None for plan in found.plans] == [True] * 8 + [False] * 1_092


def test_nothing_to_place_is_no_plan() -> None:
    """No jobs, or no room."""
    assert place_batch([], CLUSTER) == Batch((), 0.0, 0.0, 0)
    full = place_batch([ring("job", 1)], room(racks(2), [0, 0]), generations=3)
    assert full.plans == (None,)


def test_first_fit_takes_the_first_nodes_of_its_order() -> None:
    """Whatever the score: two of three GPUs of the first, the rest of the next that has any."""
    layout = Layout([ring("job", 4), nodes_of("two", 2, 2)], room(racks(4), [3, 0, 8, 2]), OURS)
    assert first_seats(layout, 0, np.arange(4)) == (0, 0, 0, 2)
    assert first_seats(layout, 0, np.array([3, 1, 0, 2])) == (0, 0, 3, 3)
    assert first_seats(layout, 1, np.arange(4)) == (0, 2)
    assert first_seats(layout, 0, np.array([0, 1])) is None
    assert first_seats(layout, 0, np.array([], dtype=np.int64)) is None


def test_first_fit_places_containers_of_different_size_too() -> None:
    """The large one first, where it fits."""
    layout = Layout([Gang(key="job", gpus=(1, 5))], room(racks(2), [3, 6]), OURS)
    assert first_seats(layout, 0, np.arange(2)) == (1, 1)
