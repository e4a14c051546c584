# SPDX-License-Identifier: Apache-2.0
"""Nodes in the order of the switches, what is free on them, and Liquid's cost between them."""

from __future__ import annotations

import pytest

from network_world import racks, room
from slipstream.core.network.fabric import Fabric
from slipstream.core.network.gangs import Gang, GangError, Plan, nodes_of, ring, with_roles
from slipstream.core.network.room import Room, RoomError
from slipstream.core.topology import Group, Topology, flat

pytestmark = pytest.mark.unit


def test_nodes_are_numbered_along_the_switches_not_by_name() -> None:
    """Racks take their nodes as cables go: a, c in one, b, d in the other."""
    topology = Topology(
        (
            Group("one", 0, ("a", "c")),
            Group("two", 0, ("b", "d")),
            Group("spine", 1, ("a", "b", "c", "d")),
        )
    )
    fabric = Fabric(dict.fromkeys("dcba", 4), topology)
    assert fabric.names == ("a", "c", "b", "d")
    assert fabric.rack.tolist() == [0, 0, 1, 1]
    assert fabric.domain.tolist() == [0, 0, 0, 0]


def test_the_cost_is_liquids_in_parts_of_the_worst() -> None:
    """0 on one node, the rack's size within it, the domain's size across racks."""
    topology = racks(2, 3)
    fabric = Fabric(dict.fromkeys((f"n0{number}" for number in range(5)), 8), topology)
    for one in fabric.names:
        for other in fabric.names:
            told = topology.cost(one, other) / 5
            assert fabric.cost(fabric.number[one], fabric.number[other]) == pytest.approx(told)


def test_three_levels_of_switches_are_three_costs() -> None:
    """The smallest group that holds both counts."""
    names = tuple(f"n{number}" for number in range(8))
    pairs = tuple(Group(f"pair{at}", 0, names[2 * at : 2 * at + 2]) for at in range(4))
    halves = tuple(Group(f"half{at}", 1, names[4 * at : 4 * at + 4]) for at in range(2))
    fabric = Fabric(dict.fromkeys(names, 1), Topology((*pairs, *halves, Group("all", 2, names))))
    assert [fabric.cost(0, other) for other in range(8)] == [0, 0.25, 0.5, 0.5, 1, 1, 1, 1]


def test_a_node_no_switch_was_given_for_is_alone() -> None:
    """It is the last one, and a rack and a domain of its own."""
    fabric = Fabric({"x": 8, "n00": 8, "n01": 8}, racks(2))
    assert fabric.names == ("n00", "n01", "x")
    assert fabric.rack.tolist() == [0, 0, 1]
    assert fabric.domain.tolist() == [0, 0, 1]


def test_a_part_of_the_nodes_keeps_the_costs_of_the_whole() -> None:
    """Which nodes are in question does not change how far they are apart."""
    part = Fabric({"n03": 8, "n01": 8}, racks(2, 2))
    assert part.names == ("n01", "n03")
    assert part.cost(0, 1) == 1.0
    assert Fabric({"n00": 8, "n01": 8}, racks(2, 2)).cost(0, 1) == 0.5


def test_nodes_without_gpus_are_left_out() -> None:
    """A login node is no place for a job."""
    assert Fabric({"n00": 0, "n01": 8}, racks(2)).names == ("n01",)
    assert len(Fabric({}, Topology(()))) == 0
    assert Fabric({"a": 1, "b": 1}, Topology(())).domain.tolist() == [0, 1]
    assert Fabric({"a": 1, "b": 1}, flat(["a", "b"])).domain.tolist() == [0, 0]


def test_what_a_job_takes_it_gives_back() -> None:
    """The index of free nodes by rack and count follows."""
    cluster = room(racks(2, 2), [8, 3, 0, 8])
    assert cluster.holes[0].tolist() == [0, 0, 0, 1, 0, 0, 0, 0, 1]
    gang, plan = ring("job", 5), Plan("job", ("n00", "n00", "n01", "n01", "n01"))
    cluster.take(plan, gang)
    assert cluster.free.tolist() == [6, 0, 0, 8]
    assert cluster.holes[0].tolist() == [1, 0, 0, 0, 0, 0, 1, 0, 0]
    cluster.give(plan, gang)
    assert cluster.free.tolist() == [8, 3, 0, 8]
    assert (cluster.holes == cluster.rebuilt().holes).all()


def test_a_node_can_be_set_to_what_slurm_says() -> None:
    """A node that is drained has nothing free."""
    cluster = room(racks(2), [8, 3])
    cluster.set_free("n00", 0)
    assert cluster.free.tolist() == [0, 3]
    assert (cluster.holes == cluster.rebuilt().holes).all()


@pytest.mark.parametrize("wrong", ["take", "give"])
def test_a_mistake_in_counting_is_refused_whole(wrong: str) -> None:
    """More than there is: nothing is changed, not even on the node where it would fit."""
    cluster = room(racks(2), [8, 3] if wrong == "take" else [0, 8])
    before = cluster.free.tolist()
    with pytest.raises(RoomError, match="n01"):
        getattr(cluster, wrong)(Plan("job", ("n00", "n01")), Gang(key="job", gpus=(4, 4)))
    assert cluster.free.tolist() == before
    assert (cluster.holes == cluster.rebuilt().holes).all()


def test_more_free_than_there_is_is_refused() -> None:
    """Also at the start."""
    with pytest.raises(RoomError, match="n00 has 8 GPUs, 9 cannot be free"):
        Room(Fabric({"n00": 8}, racks(1)), {"n00": 9})


def test_roles_become_containers_servers_first() -> None:
    """As `--slip-roles=worker:2,ps:1` says; a server needs no GPU unless it is told."""
    gang = with_roles("job", {"worker": 2, "ps": 1})
    assert (gang.roles, gang.gpus, gang.servers) == (("ps", "worker", "worker"), (0, 1, 1), 1)
    assert gang.edges == 2
    assert with_roles("job", {"worker": 3}).servers == 0
    assert with_roles("job", {"ps": 2}, server_gpus=1).servers == 0


def test_edges_are_pairs_that_talk() -> None:
    """Every server with every worker; a ring has as many as containers, one alone none."""
    assert with_roles("job", {"ps": 2, "worker": 3}).edges == 6
    assert ring("job", 4).edges == 4
    assert ring("job", 1).edges == 0
    assert nodes_of("job", 2, 8).edges == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"gpus": ()},
        {"gpus": (-1, 1)},
        {"gpus": (0, 0)},
        {"gpus": (1, 1), "servers": 2},
        {"gpus": (1, 1), "servers": -1},
        {"gpus": (1, 1), "roles": ("ps",)},
        {"gpus": (0, 1), "apart": True},
    ],
)
def test_containers_that_are_no_job_are_refused(wrong: dict[str, tuple[int, ...]]) -> None:
    """With the job's name."""
    with pytest.raises(GangError, match="job"):
        Gang(key="job", **wrong)  # type: ignore[arg-type] # every one of them is wrong


def test_a_plan_says_who_is_where() -> None:
    """Node by node with roles, and as the host file of an arbitrary distribution."""
    gang = with_roles("job", {"ps": 1, "worker": 3})
    plan = Plan("job", ("n1", "n1", "n0", "n1"))
    assert plan.roles_by_node(gang) == {"n0": ("worker",), "n1": ("ps", "worker", "worker")}
    assert plan.by_node() == {"n0": (2,), "n1": (0, 1, 3)}
    assert plan.host_lines == ("n1", "n1", "n0", "n1")
