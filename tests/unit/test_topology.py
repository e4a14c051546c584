# SPDX-License-Identifier: Apache-2.0
"""Racks, domains and the cost between two nodes."""

from __future__ import annotations

import pytest

from slipstream.core.topology import ACROSS_DOMAINS, Group, Topology, TopologyError, flat

pytestmark = pytest.mark.unit

RACK1 = Group("rack1", 0, ("n1", "n2"))
RACK2 = Group("rack2", 0, ("n3", "n4", "n5"))
SPINE = Group("spine", 1, ("n1", "n2", "n3", "n4", "n5"))
ISLAND = Group("island", 0, ("m1", "m2"))
TWO_DOMAINS = Topology((RACK1, RACK2, SPINE, ISLAND))


@pytest.mark.parametrize(
    ("one", "other", "cost"),
    [
        pytest.param("n1", "n1", 0, id="the same node"),
        pytest.param("n1", "n2", 2, id="the same rack: its two nodes"),
        pytest.param("n3", "n5", 3, id="the same rack: its three nodes"),
        pytest.param("n1", "n3", 5, id="across racks: the domain's five nodes"),
        pytest.param("n1", "m1", ACROSS_DOMAINS, id="across domains"),
        pytest.param("m1", "m2", 2, id="a rack that is its own domain"),
        pytest.param("n1", "x9", ACROSS_DOMAINS, id="a node without a switch"),
        pytest.param("x9", "x9", 0, id="a node without a switch to itself"),
    ],
)
def test_cost_is_liquids(one: str, other: str, cost: int) -> None:
    """The cost is what Liquid's table says, and the same in both directions."""
    assert TWO_DOMAINS.cost(one, other) == cost
    assert TWO_DOMAINS.cost(other, one) == cost


def test_racks_are_innermost_and_domains_outermost() -> None:
    """A group that contains no other is a rack, one inside no other a domain."""
    assert TWO_DOMAINS.racks == (RACK1, RACK2, ISLAND)
    assert TWO_DOMAINS.domains == (SPINE, ISLAND)


def test_a_node_knows_its_rack_and_domain() -> None:
    """Both are found for every node, and None for one that no switch names."""
    assert TWO_DOMAINS.rack_of("n4") == RACK2
    assert TWO_DOMAINS.domain_of("n4") == SPINE
    assert TWO_DOMAINS.rack_of("m1") == TWO_DOMAINS.domain_of("m1") == ISLAND
    assert TWO_DOMAINS.rack_of("x9") is None
    assert TWO_DOMAINS.domain_of("x9") is None


def test_a_third_level_counts_as_well() -> None:
    """With pods between rack and spine the smallest common group sets the cost."""
    racks = tuple(Group(f"r{i}", 0, (f"n{2 * i}", f"n{2 * i + 1}")) for i in range(4))
    pods = (
        Group("p0", 1, ("n0", "n1", "n2", "n3")),
        Group("p1", 1, ("n4", "n5", "n6", "n7")),
    )
    spine = Group("s", 2, tuple(f"n{i}" for i in range(8)))
    deep = Topology((spine, *pods, *racks))
    assert [deep.cost("n0", other) for other in ("n0", "n1", "n2", "n4")] == [0, 2, 4, 8]
    assert deep.racks == racks
    assert deep.domains == (spine,)


def test_a_switch_over_a_single_switch_is_outside_it() -> None:
    """Two groups of the same nodes are told apart by their level."""
    leaf, top = Group("leaf", 0, ("n1", "n2")), Group("top", 1, ("n1", "n2"))
    topology = Topology((top, leaf))
    assert topology.racks == (leaf,)
    assert topology.domains == (top,)


def test_groups_that_overlap_are_refused() -> None:
    """Racks that share a node would make the cost depend on who asks."""
    crossing = Group("crossing", 0, ("n2", "n3"))
    with pytest.raises(TopologyError, match="crossing lies across rack1"):
        Topology((Group("rack1", 0, ("n1", "n2", "n9")), crossing))


@pytest.mark.parametrize("nodes", [(), ("n1", "n1")])
def test_a_group_has_nodes_and_each_once(nodes: tuple[str, ...]) -> None:
    """No empty group, no node twice."""
    with pytest.raises(TopologyError, match=r"holds no node|names a node twice"):
        Group("rack1", 0, nodes)


def test_group_names_are_unique() -> None:
    """Two groups of one name would be one group in every report."""
    with pytest.raises(TopologyError, match=r"more than one group: \['rack1'\]"):
        Topology((RACK1, Group("rack1", 0, ("n3",))))


def test_a_cluster_without_topology_is_one_rack() -> None:
    """Every pair of nodes then costs the same."""
    topology = flat(("n1", "n2", "n3"))
    assert topology.racks == topology.domains
    assert topology.cost("n1", "n2") == topology.cost("n1", "n3") == 3
