# SPDX-License-Identifier: Apache-2.0
"""Liquid's score, its two readings, and what is added to it."""

from __future__ import annotations

from itertools import combinations, permutations

import pytest

from network_world import racks, room
from slipstream.core.network.fabric import Fabric
from slipstream.core.network.gangs import Gang, Plan, nodes_of, ring, with_roles
from slipstream.core.network.layout import Layout
from slipstream.core.network.room import Room
from slipstream.core.network.scoring import ACROSS, OURS, PUBLISHED, Weights, cost_of, score
from slipstream.core.network.traffic import crowding, uplinks

pytestmark = pytest.mark.unit


def test_a_job_on_one_node_costs_no_network() -> None:
    """However it talks."""
    fabric = room(racks(2), [8, 8]).fabric
    assert cost_of(ring("ring", 4), (1, 1, 1, 1), fabric) == 0
    assert cost_of(with_roles("star", {"ps": 1, "worker": 3}), (0, 0, 0, 0), fabric) == 0
    assert cost_of(ring("one", 1), (0,), fabric) == 0


def test_the_worst_plan_within_a_domain_costs_one() -> None:
    """Every edge across racks: that is what costs are parts of."""
    fabric = room(racks(1, 1, 1), [8] * 3).fabric
    assert cost_of(ring("ring", 3), (0, 1, 2), fabric) == 1
    assert cost_of(with_roles("star", {"ps": 1, "worker": 2}), (0, 1, 2), fabric) == 1


def test_all_pairs_of_servers_and_workers_count() -> None:
    """Two servers on n00, workers on n00, n01 (its rack) and n02 (another one)."""
    fabric = room(racks(2, 2), [8] * 4).fabric
    gang = with_roles("job", {"ps": 2, "worker": 3})
    assert cost_of(gang, (0, 0, 0, 1, 2), fabric) == pytest.approx((0 + 0.5 + 1) * 2 / 6)


def test_the_ring_is_the_cheapest_there_is() -> None:
    """Tried against every order, for all sets of nodes of uneven racks in two domains."""
    fabric = room(racks(3, 2, 1, 2, racks_per_domain=2), [8] * 8).fabric
    for count in (2, 3, 4, 5):
        gang = nodes_of("job", count, 8)
        for nodes in combinations(range(8), count):
            tried = min(
                sum(fabric.cost(one, order[at - 1]) for at, one in enumerate(order))
                for order in permutations(nodes)
            )
            domains = len({int(fabric.domain[at]) for at in nodes})
            told = cost_of(gang, nodes, fabric)
            assert told == pytest.approx(tried / count + ACROSS * (domains - 1))


def test_the_score_of_one_job_is_the_formula() -> None:
    """Four GPUs on a node with two used, two on one with four used, one rack of the two."""
    cluster = room(racks(2, 2), [6, 4, 8, 8])
    plan = Plan("job", ("n00",) * 4 + ("n01",) * 2)
    cost = 2 * 0.5 / 6
    fitness = -(4 + 2) / 8 - (2 + 4) / 8
    told = score([ring("job", 6)], [plan], cluster)
    assert told == pytest.approx(0.5 * cost + 0.5 * fitness + 2)
    assert score([ring("job", 6)], [plan], cluster, PUBLISHED) == pytest.approx(told)


def test_ours_does_not_pay_for_breaking_an_empty_node() -> None:
    """Eight jobs of one GPU: eight holes or one empty node are the same to us, not as published."""
    cluster = room(racks(9), [8] + [1] * 8)
    gangs = [ring(f"job{at}", 1) for at in range(8)]
    holes = [Plan(gang.key, (f"n0{at + 1}",)) for at, gang in enumerate(gangs)]
    broken = [Plan(gang.key, ("n00",)) for gang in gangs]
    assert score(gangs, holes, cluster, OURS) == score(gangs, broken, cluster, OURS) == 4.0
    assert score(gangs, holes, cluster, PUBLISHED) == 4.0
    assert score(gangs, broken, cluster, PUBLISHED) == 0.5


def test_a_job_that_sends_little_weighs_little() -> None:
    """A tenth of the link: a tenth of the cost; nobody knows: all of it."""
    weights = Weights(link_mbps=10_000)
    assert weights.of(ring("job", 2, mbps=1_000)) == pytest.approx(0.1)
    assert weights.of(ring("job", 2, mbps=90_000)) == 1
    assert weights.of(ring("job", 2)) == 1
    assert OURS.of(ring("job", 2, mbps=1_000)) == 1


def test_a_ring_leaves_each_rack_once() -> None:
    """Three racks: each sends what a node sends; within one rack nothing goes up."""
    fabric = room(racks(2, 2, 2), [8] * 6).fabric
    gang = nodes_of("job", 4, 8, mbps=100)
    assert uplinks(gang, (0, 1, 2, 4), fabric) == {0: 100, 1: 100, 2: 100}
    assert uplinks(nodes_of("job", 2, 8, mbps=100), (0, 1), fabric) == {}
    assert uplinks(nodes_of("job", 2, 8), (0, 2), fabric) == {}


def test_a_server_sends_to_each_worker_of_another_rack() -> None:
    """Server and one worker in the first rack, two workers in the second."""
    fabric = room(racks(2, 2), [8] * 4).fabric
    gang = with_roles("job", {"ps": 1, "worker": 3}, mbps=100)
    assert uplinks(gang, (0, 1, 2, 3), fabric) == {0: 200, 1: 200}


def test_what_others_send_leaves_less_for_a_job() -> None:
    """They fill two thirds of one rack's uplink: what is too much is this job's, a third of it."""
    topology = racks(2, 2)
    fabric = Fabric(dict.fromkeys(("n00", "n01", "n02", "n03"), 8), topology)
    busy = Room(fabric, sent={fabric.rack_names[0]: 100.0, "elsewhere": 900.0})
    gang, weights = nodes_of("a", 2, 4, mbps=100), Weights(uplink_mbps=150)
    assert crowding([(gang, (0, 2))], fabric, 150, busy.sent) == pytest.approx(1 / 3)
    layout = Layout([gang], busy.rebuilt(), weights)
    layout.put(0, (0, 2))
    plan = Plan("a", ("n00", "n02"))
    assert layout.score == pytest.approx(score([gang], [plan], busy.copy(), weights))
    layout.drop(0)
    assert layout.score == pytest.approx(0.0)


def test_only_what_an_uplink_cannot_carry_counts() -> None:
    """Two jobs of 100 on uplinks of 150: a third too much, on both racks."""
    cluster = room(racks(2, 2), [8] * 4)
    gang = nodes_of("a", 2, 4, mbps=100)
    other = nodes_of("b", 2, 4, mbps=100)
    one, two = (gang, (0, 2)), (other, (1, 3))
    assert crowding([one], cluster.fabric, 150) == 0
    assert crowding([one, two], cluster.fabric, 150) == pytest.approx(2 / 3)
    plans = [Plan("a", ("n00", "n02")), Plan("b", ("n01", "n03"))]
    plain = score([gang, other], plans, cluster)
    crowded = score([gang, other], plans, cluster, Weights(uplink_mbps=150))
    assert crowded == pytest.approx(plain + 0.5 * 2 / 3)


def test_containers_of_different_size_are_scored_alike() -> None:
    """What counts is the node, not how a job is cut."""
    cluster = room(racks(2), [8, 8])
    one = score([Gang(key="job", gpus=(3, 5))], [Plan("job", ("n00", "n00"))], cluster)
    assert one == score([ring("job", 8)], [Plan("job", ("n00",) * 8)], cluster)
