# SPDX-License-Identifier: Apache-2.0
"""Which nodes a job is given, and why none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core_world import full, node, request, sight
from slipstream.core.classes import Per, Role
from slipstream.core.placement import Field, Need, Placement, need_of, place, taken
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
    return replace(owner(seats, nodes), role=Role.GUEST)


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
    cluster = field(node("n1", used=4), node("n2", used=3, slots_used=5))
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
