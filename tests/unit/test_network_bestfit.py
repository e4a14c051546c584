# SPDX-License-Identifier: Apache-2.0
"""Where one job goes, by the score."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from network_world import racks, room
from slipstream.core.network.bestfit import best_fit, best_seats
from slipstream.core.network.gangs import Gang, nodes_of, ring, with_roles
from slipstream.core.network.layout import Layout
from slipstream.core.network.one_by_one import seats_one_by_one
from slipstream.core.network.scoring import OURS, Weights, score

if TYPE_CHECKING:
    from slipstream.core.network.room import Room

pytestmark = pytest.mark.unit


def nodes(gang: Gang, cluster: Room, weights: Weights = OURS) -> tuple[str, ...]:
    """The node of each container."""
    plan = best_fit(gang, cluster, weights)
    assert plan
    return plan.nodes


def test_a_job_goes_where_it_fills_the_node() -> None:
    """Two GPUs into a hole of two, not into three or eight."""
    assert nodes(ring("job", 2), room(racks(4), [8, 3, 2, 1])) == ("n02", "n02")


def test_a_job_stays_on_one_node_if_it_can() -> None:
    """Eight holes of one would all be filled; a whole node is better."""
    cluster = room(racks(9), [1] * 8 + [8])
    assert set(nodes(ring("job", 8), cluster)) == {"n08"}


def test_liquids_own_way_ends_in_many_holes() -> None:
    """One container after the other does not see that a whole node is better."""
    cluster = room(racks(9), [1] * 8 + [8])
    seats = seats_one_by_one(Layout([ring("job", 8)], cluster, OURS), 0)
    assert seats
    assert len(set(seats)) > 1


def test_equal_places_are_settled_by_the_order_of_the_switches() -> None:
    """The first one is taken."""
    assert nodes(ring("job", 8), room(racks(3), [0, 8, 8])) == ("n01",) * 8


def test_few_nodes_of_one_rack_beat_those_of_two() -> None:
    """Sixteen GPUs: the second rack has two whole nodes."""
    cluster = room(racks(2, 2), [8, 0, 8, 8])
    assert set(nodes(ring("job", 16), cluster)) == {"n02", "n03"}


def test_the_rest_goes_where_it_fits_best() -> None:
    """Ten GPUs: a whole node, and the hole of two."""
    cluster = room(racks(4), [8, 8, 3, 2])
    found = nodes(ring("job", 10), cluster)
    assert sorted(set(found)) == ["n00", "n03"]
    assert found.count("n03") == 2


def test_domains_are_not_crossed_if_that_can_be() -> None:
    """Four holes in one domain rather than two whole nodes in two."""
    cluster = room(racks(2, 4, racks_per_domain=1), [8, 0, 4, 4, 4, 8])
    assert set(nodes(ring("job", 16), cluster)) <= {"n02", "n03", "n04", "n05"}
    both = room(racks(1, 1, racks_per_domain=1), [8, 8])
    assert set(nodes(ring("job", 16), both)) == {"n00", "n01"}


def test_a_job_that_does_not_fit_is_not_placed_at_all() -> None:
    """One GPU is missing, or one node."""
    assert best_fit(ring("job", 6), room(racks(2), [3, 2])) is None
    assert best_fit(nodes_of("job", 3, 2), room(racks(3), [8, 8, 1])) is None
    assert best_fit(Gang(key="job", gpus=(3, 2)), room(racks(2), [2, 2])) is None


def test_nodes_of_a_job_with_given_nodes_are_different_ones() -> None:
    """--nodes=2 --gpus-per-node=2: two nodes, though one could hold it, and the fuller ones."""
    assert nodes(nodes_of("job", 2, 2), room(racks(4), [8, 2, 3, 2])) == ("n01", "n03")


def test_servers_are_in_the_middle() -> None:
    """Five workers on two nodes: the server sits with the four."""
    cluster = room(racks(2), [1, 4])
    found = nodes(with_roles("job", {"ps": 1, "worker": 5}), cluster)
    assert found == ("n01", "n00", "n01", "n01", "n01", "n01")


def test_servers_with_a_gpu_take_it_in_the_middle() -> None:
    """Two servers and four workers of one GPU each, on holes of five and one."""
    cluster = room(racks(2), [1, 5])
    found = nodes(with_roles("job", {"ps": 2, "worker": 4}, server_gpus=1), cluster)
    assert found[:2] == ("n01", "n01")
    assert sorted(found[2:]) == ["n00", "n01", "n01", "n01"]


def test_containers_of_different_size_find_their_places() -> None:
    """A server of two GPUs, workers of three."""
    gang = Gang(key="job", gpus=(2, 3, 3), servers=1)
    cluster = room(racks(3), [5, 3, 1])
    plan = best_fit(gang, cluster)
    assert plan
    cluster.take(plan, gang)
    assert cluster.free.sum() == 1


def test_a_job_that_sends_little_fills_holes_far_apart() -> None:
    """Two nodes of four: a near one is broken for a loud job, not for a quiet one."""
    cluster = room(racks(2, 8, 8), [4, 8] + [8] * 8 + [4] + [0] * 7)
    weights = Weights(link_mbps=10_000)
    loud = nodes(nodes_of("job", 2, 4, mbps=10_000), cluster, weights)
    quiet = nodes(nodes_of("job", 2, 4, mbps=10), cluster, weights)
    assert (loud, quiet) == (("n00", "n01"), ("n00", "n10"))


def test_a_crowded_uplink_is_avoided() -> None:
    """Two jobs that must cross racks: the second takes uplinks that are not full yet."""
    cluster = room(racks(1, 1, 1, 1), [8, 8, 4, 4])
    gangs = [nodes_of(key, 2, 4, mbps=900) for key in "ab"]
    for weights, expected in ((OURS, (0, 1)), (Weights(uplink_mbps=1_000), (2, 3))):
        layout = Layout(gangs, cluster, weights)
        layout.put(0, (0, 1))
        assert best_seats(layout, 1) == expected


def test_what_is_added_is_the_score() -> None:
    """For the first job and for one beside it."""
    cluster = room(racks(2, 2), [8, 5, 8, 2])
    gangs = [ring("a", 10), with_roles("b", {"ps": 1, "worker": 6})]
    layout = Layout(gangs, cluster, OURS)
    for job, seats in enumerate([(0,) * 8 + (1, 1), (1, 1, 1, 1, 2, 2, 2)]):
        before = layout.score
        added = layout.added(job, seats)
        layout.put(job, seats)
        assert layout.score == pytest.approx(before + added)
        plans = [plan for plan in layout.plans() if plan]
        assert layout.score == pytest.approx(score(gangs, plans, cluster, OURS))
