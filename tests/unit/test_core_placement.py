# SPDX-License-Identifier: Apache-2.0
"""Which nodes a job is given, and why none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core_world import Field, full, node, place, request, sight
from slipstream.core.classes import JobClass, Per, Role
from slipstream.core.estimate import Estimate
from slipstream.core.placement import Need, Placement, need_of, taken
from slipstream.core.reasons import Reason
from slipstream.core.sights import Gpus, GpuUse, NodeSight
from slipstream.core.topology import Group, Topology, flat

pytestmark = pytest.mark.unit

RACKS = Topology(
    (
        Group("rack1", 0, ("n1", "n2")),
        Group("rack2", 0, ("n3", "n4")),
        Group("spine", 1, ("n1", "n2", "n3", "n4")),
    )
)


def field(*nodes: NodeSight, topology: Topology | None = None, **use_pct: float) -> Field:
    """A cluster; `n1=80.0` says that n1's GPUs are used so much."""
    return Field(
        {one.name: one for one in nodes},
        {
            name: tuple(GpuUse(index=index, use_pct=use) for index in range(4))
            for name, use in use_pct.items()
        },
        topology or (flat(one.name for one in nodes) if nodes else Topology(())),
    )


def owner(gpus: int = 1, nodes: int = 1) -> Need:
    """An owner of so many GPUs on each of so many nodes."""
    need = need_of(request(gpus=gpus, nodes=nodes))
    assert need
    return need


def guest(seats: int = 1, nodes: int = 1) -> Need:
    """A guest with so many seats on each of so many nodes."""
    return replace(owner(seats, nodes), role=Role.GUEST, job_class=JobClass.OPPORTUNISTIC)


def chosen(need: Need, cluster: Field, keep: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The nodes it is given."""
    found = place(need, cluster, keep)
    assert isinstance(found, Placement), found
    return found.nodes


def test_an_owner_goes_where_the_fewest_gpus_stay_free() -> None:
    """Two free GPUs are a better home for a two-GPU job than four."""
    assert chosen(owner(2), field(node("n1"), node("n2", used=2), node("n3", used=1))) == ("n2",)


def test_equal_nodes_are_settled_by_name() -> None:
    """Two nodes fit equally well: the alphabetically first one is taken."""
    assert chosen(owner(), field(node("n2"), node("n1"))) == ("n1",)


def test_equal_nodes_of_a_gang_are_near_each_other() -> None:
    """n1 is full: two empty nodes below one switch beat two below different ones."""
    cluster = field(full(node("n1")), node("n2"), node("n3"), node("n4"), topology=RACKS)
    assert chosen(owner(4, nodes=2), cluster) == ("n3", "n4")


def test_a_gang_grows_around_the_nodes_that_fit_best() -> None:
    """n4 fits exactly and is sure; of the equal others its neighbour n3 joins it."""
    cluster = field(node("n1"), node("n2"), node("n3"), node("n4", used=2), topology=RACKS)
    assert chosen(owner(2, nodes=2), cluster) == ("n3", "n4")


def test_fit_comes_before_nearness() -> None:
    """Holes are filled across racks before whole nodes are broken."""
    cluster = field(node("n1", used=2), node("n2"), node("n3", used=2), node("n4"), topology=RACKS)
    assert chosen(owner(2, nodes=2), cluster) == ("n1", "n3")


def test_a_guest_goes_where_gpus_are_least_used() -> None:
    """Use that was measured counts before the number of free seats."""
    cluster = field(node("n1"), node("n2", slots_used=6), n1=80.0, n2=10.0)
    assert chosen(guest(), cluster) == ("n2",)


def test_a_guest_leaves_owners_that_have_just_started_alone() -> None:
    """Both nodes are quiet: the one whose GPUs nobody owns is taken, whatever the names."""
    cluster = field(node("n1", used=4), node("n2"), n1=0.0, n2=0.0)
    assert chosen(guest(), cluster) == ("n2",)


def test_guests_of_equally_used_nodes_spread_by_free_seats() -> None:
    """41 % and 48 % are the same to us; the emptier node is taken."""
    cluster = field(node("n1", slots_used=3), node("n2", slots_used=1), n1=41.0, n2=48.0)
    assert chosen(guest(), cluster) == ("n2",)


def test_an_owned_gpu_nobody_measures_counts_as_busy() -> None:
    """Without reports a guest prefers the node with an idle GPU, though its seats are fewer."""
    cluster = field(node("n1", used=4), node("n2", used=3, slots_used=2))
    assert chosen(guest(), cluster) == ("n2",)


def test_nodes_given_before_are_kept_while_they_do() -> None:
    """Advice does not jump to a node that fits a little better."""
    cluster = field(node("n1"), node("n2", used=3))
    assert chosen(owner(), cluster) == ("n2",)
    assert chosen(owner(), cluster, keep=("n1",)) == ("n1",)
    assert chosen(owner(), field(full(node("n1")), node("n2")), keep=("n1",)) == ("n2",)


@pytest.mark.parametrize(
    ("need", "cluster", "reason"),
    [
        pytest.param(owner(5), field(node("n1")), Reason.NO_NODE_FITS, id="more than any node has"),
        pytest.param(owner(), field(), Reason.NO_NODE_FITS, id="no nodes"),
        pytest.param(owner(1, 2), field(node("n1")), Reason.NO_NODE_FITS, id="too few nodes"),
        pytest.param(owner(), field(full(node("n1"))), Reason.NO_FREE_GPU, id="all owned"),
        pytest.param(guest(), field(full(node("n1"))), Reason.NO_FREE_SLOT, id="all seats taken"),
        pytest.param(
            owner(),
            field(replace(node("n1"), takes_jobs=False)),
            Reason.NO_FREE_GPU,
            id="the only node is drained",
        ),
        pytest.param(
            owner(),
            field(replace(node("n1"), cpus_used=32)),
            Reason.NO_FREE_CPU_OR_MEMORY,
            id="no CPU beside the GPU",
        ),
        pytest.param(
            replace(owner(), memory_mib_per_node=40_000),
            field(replace(node("n1"), memory_used_mib=40_000)),
            Reason.NO_FREE_CPU_OR_MEMORY,
            id="no memory beside the GPU",
        ),
        pytest.param(
            replace(owner(), partitions=("debug",)),
            field(node("n1")),
            Reason.NO_NODE_FITS,
            id="another partition",
        ),
        pytest.param(
            replace(owner(), excluded_nodes=("n1",)),
            field(node("n1")),
            Reason.NO_NODE_FITS,
            id="its user excluded the node",
        ),
    ],
)
def test_no_placement_has_a_reason(need: Need, cluster: Field, reason: Reason) -> None:
    """A refusal is a value, and it is the right one."""
    assert place(need, cluster) is reason


def test_only_nodes_that_were_asked_for_are_given() -> None:
    """--nodelist stands above fit."""
    need = replace(owner(), only_nodes=("n2",))
    assert chosen(need, field(node("n1", used=3), node("n2"))) == ("n2",)


def test_gpus_per_job_are_spread_over_as_few_nodes_as_hold_them() -> None:
    """--gpus=6 on nodes of four: three on each of two."""
    asked = replace(request(), gpus=Gpus(Per.JOB, 6))
    need = need_of(asked)
    assert need
    found = place(need, field(node("n1"), node("n2"), node("n3")))
    assert found == Placement(("n1", "n2"), 3, 1, 1)


def test_gpus_per_task_count_for_every_task() -> None:
    """Four tasks of one GPU on two nodes: two on each."""
    asked = replace(request(nodes=2), gpus=Gpus(Per.TASK, 1), tasks=4, cpus_per_task=2)
    need = need_of(asked)
    assert need
    assert place(need, field(node("n1"), node("n2"))) == Placement(("n1", "n2"), 2, 2, 4)


@pytest.mark.parametrize("gpus", [Gpus(Per.SOCKET, 1), Gpus(Per.NODE, 0)])
def test_strange_shapes_are_left_to_slurm(gpus: Gpus) -> None:
    """GPUs per socket, or none at all, are not placed by us."""
    assert need_of(replace(request(), gpus=gpus)) is None


def test_what_slurm_knows_of_a_job_counts_in_its_need() -> None:
    """The partition it ended up in, the nodes its user wants and does not want."""
    seen = replace(sight("1"), partition="a,b", required_nodes=("n1",), excluded_nodes=("n2", "n3"))
    need = need_of(request(), seen)
    assert need
    assert need.partitions == ("a", "b")
    assert need.only_nodes == ("n1",)
    assert need.excluded_nodes == ("n2", "n3")


def test_what_is_given_is_taken() -> None:
    """A guest takes seats and CPUs, no GPU."""
    before = node("n1", used=1, slots_used=2)
    placed = Placement(("n1",), 2, 1, 4)
    after = taken({"n1": before}, placed, Role.GUEST)["n1"]
    assert (after.gpus_used, after.slots_used, after.cpus_used) == (1, 4, before.cpus_used + 4)
    assert taken({"n1": before}, placed, Role.OWNER)["n1"].gpus_used == 3


def test_a_large_gang_is_placed_within_the_time_of_a_submission() -> None:
    """64 of 1,000 equal nodes in 40 racks: found, near each other, without trying everything."""
    names = [f"n{number:04}" for number in range(1000)]
    racks = tuple(
        Group(f"rack{rack:02}", 0, tuple(names[rack * 25 : rack * 25 + 25])) for rack in range(40)
    )
    cluster = field(
        *(node(name) for name in names),
        topology=Topology((*racks, Group("spine", 1, tuple(names)))),
    )
    nodes = chosen(owner(4, nodes=50), cluster)
    assert len(nodes) == 50
    assert len({name for name in nodes if name < "n0050"}) == 50  # two whole racks


FARTHER = Topology(
    (
        Group("rack1", 0, ("n1", "n2")),
        Group("rack2", 0, ("n3", "n4", "n5", "n6", "n7", "n8")),
        Group("spine", 1, tuple(f"n{number}" for number in range(1, 9))),
    )
)


def quiet(asked: Need, mbps: float) -> Need:
    """The same job, known to send so much."""
    return replace(asked, mbps=mbps)


def test_nearness_is_worth_an_empty_node_only_to_a_job_that_sends_much() -> None:
    """n1 and n3 are holes in two racks; n2 beside n1 is empty."""
    holes = [node("n1", used=2), node("n2"), node("n3", used=2)]
    cluster = field(*holes, *(full(node(f"n{at}")) for at in range(4, 9)), topology=FARTHER)
    assert chosen(owner(2, nodes=2), cluster) == ("n1", "n2")
    assert chosen(quiet(owner(2, nodes=2), 10_000.0), cluster) == ("n1", "n2")
    assert chosen(quiet(owner(2, nodes=2), 100.0), cluster) == ("n1", "n3")


def test_what_a_job_sends_comes_from_its_estimate() -> None:
    """Nothing estimated is nothing known."""
    told = need_of(replace(request(nodes=2), estimate=Estimate(network_mbps=120.0)))
    unknown = need_of(replace(request(nodes=2), estimate=Estimate()))
    assert told
    assert unknown
    assert (told.mbps, unknown.mbps) == (120.0, None)
    alone = need_of(replace(request(), estimate=Estimate(network_mbps=120.0)))
    assert alone == need_of(request())  # on one node it does not count: they need the same


def test_tasks_with_roles_have_a_node_each() -> None:
    """A server and five workers, three tasks on each of two nodes: the server is task 0."""
    asked = replace(request(nodes=2, gpus=3), tasks=6, roles=(("ps", 1), ("worker", 5)))
    need = need_of(asked)
    assert need
    found = place(need, field(node("n1"), node("n2")))
    assert isinstance(found, Placement)
    assert found.nodes == ("n1", "n2")
    assert found.hosts == ("n1", "n1", "n1", "n2", "n2", "n2")
    kept = place(need, field(node("n1"), node("n2")), keep=("n1", "n2"))
    assert kept == found


def test_servers_sit_in_the_middle_of_their_workers() -> None:
    """n3 is in the other rack: the server is in the rack with the other two nodes."""
    asked = replace(request(nodes=3, gpus=4), tasks=6, roles=(("server", 1), ("worker", 5)))
    need = need_of(asked)
    assert need
    found = place(need, field(node("n2"), node("n3"), node("n4"), topology=RACKS))
    assert isinstance(found, Placement)
    assert found.hosts[0] in ("n3", "n4")


@pytest.mark.parametrize("roles", [(), (("worker", 2),), (("ps", 9), ("worker", 9))])
def test_roles_that_are_not_the_tasks_are_left_to_the_job(
    roles: tuple[tuple[str, int], ...],
) -> None:
    """Where they do not add up nobody knows which task is which."""
    need = need_of(replace(request(nodes=2), tasks=4, roles=roles))
    assert need
    found = place(need, field(node("n1"), node("n2")))
    assert isinstance(found, Placement)
    assert found.hosts == ()


def test_what_is_given_to_owners_of_several_nodes_can_be() -> None:
    """Nodes of different size, one unknown to the topology: all that are given have room."""
    cluster = field(
        *(node("n1", used=3), node("n2", gpus=8, used=4), node("n3", used=1), node("x")),
        topology=RACKS,
    )
    nodes = chosen(owner(3, nodes=3), cluster)
    assert nodes == ("n2", "n3", "x")


def test_equal_nodes_of_a_guest_are_near_each_other() -> None:
    """n1 is full: two quiet nodes below one switch beat two below different ones."""
    cluster = field(full(node("n1")), node("n2"), node("n3"), node("n4"), topology=RACKS)
    assert chosen(guest(4, nodes=2), cluster) == ("n3", "n4")


def test_a_guest_of_several_nodes_grows_around_the_quietest() -> None:
    """n4 is quieter than the others and sure; of those its neighbour n3 joins it."""
    cluster = field(
        *(node(f"n{at}") for at in range(1, 5)),
        topology=RACKS,
        n1=40.0,
        n2=40.0,
        n3=40.0,
        n4=0.0,
    )
    assert chosen(guest(2, nodes=2), cluster) == ("n3", "n4")


def test_quiet_comes_before_near_for_guests() -> None:
    """Two quiet nodes in two racks, not the busy neighbour."""
    cluster = field(
        *(node(f"n{at}") for at in range(1, 5)),
        topology=RACKS,
        n1=0.0,
        n2=60.0,
        n3=0.0,
        n4=60.0,
    )
    assert chosen(guest(2, nodes=2), cluster) == ("n1", "n3")
