# SPDX-License-Identifier: Apache-2.0
"""Who is on which GPU, and which GPUs take guests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core_world import Field, holds, node, place, request, token
from slipstream.core.classes import Role
from slipstream.core.placement import Need, Placement, need_of
from slipstream.core.reasons import Reason
from slipstream.core.records import PHASE_OF, JobRecord
from slipstream.core.seats import crowds, guests_of, owners_of, shut_gpus
from slipstream.core.sights import GpuUse, JobSight, Standing
from slipstream.core.topology import flat

pytestmark = pytest.mark.unit

SHARES = request(1)
ALONE = replace(request(2), shares=False)
GUEST = request(3, role=Role.GUEST)
REQUESTS = {token(1): SHARES, token(2): ALONE, token(3): GUEST}


def record(sight: JobSight) -> JobRecord:
    """As the machine keeps it."""
    return JobRecord(
        key=sight.ref,
        token=sight.request.token if sight.request else "",
        phase=PHASE_OF[sight.standing],
        reason=Reason.RUNNING,
        since_s=0.0,
        sight=sight,
    )


def report(*takes: bool, guests: int = 0) -> tuple[GpuUse, ...]:
    """What a coordinator tells of its GPUs, with so many guests on the first."""
    return tuple(
        GpuUse(
            index=index,
            takes_guests=one,
            guest_jobs=tuple(f"{number}" for number in range(guests if not index else 0)),
        )
        for index, one in enumerate(takes)
    )


NO_HOOKS, NO_SHARE = "owner 7 has no hooks", "owner 8 does not share"


@pytest.mark.parametrize(
    ("owners", "used", "uses", "shut"),
    [
        pytest.param([], 0, None, {}, id="an idle node"),
        pytest.param([holds("7", SHARES, 0)], 1, None, {}, id="an owner with hooks that shares"),
        pytest.param([holds("7", None, 0)], 1, None, {0: NO_HOOKS}, id="a plain owner"),
        pytest.param(
            [holds("8", ALONE, 0, 2)],
            2,
            None,
            {0: NO_SHARE, 2: NO_SHARE},
            id="--no-slip-share on two GPUs",
        ),
        pytest.param(
            [holds("7", None, 0), holds("8", ALONE, 1), holds("9", SHARES, 2)],
            3,
            None,
            {0: NO_HOOKS, 1: NO_SHARE},
            id="one of each",
        ),
        pytest.param(
            [holds("7", SHARES, 0)],
            1,
            report(False, True, True, True),
            {0: "owner 7 takes none now"},
            id="the coordinator knows better than the marker",
        ),
        pytest.param(
            [holds("7", None, 0)],
            1,
            report(True, True, True, True, guests=2),
            {0: NO_HOOKS},
            id="but not better than a job without one",
        ),
        pytest.param(
            [],
            0,
            report(True, True, True, False),
            {3: "GPU 3 takes none now"},
            id="a GPU nobody owns that is said to take none",
        ),
        pytest.param(
            [holds("7", SHARES, 0)],
            3,
            None,
            {1: "an owner is not known", 2: "an owner is not known"},
            id="GPUs in use by jobs we cannot see",
        ),
        pytest.param([], 3, report(True, True, True, True), {}, id="the same, with a report"),
        pytest.param(
            [replace(holds("7", None, 0), standing=Standing.ENDED)], 0, None, {}, id="it has ended"
        ),
        pytest.param(
            [replace(holds("7", None, 0), standing=Standing.SUSPENDED)],
            1,
            None,
            {0: NO_HOOKS},
            id="it is suspended and keeps its GPU",
        ),
    ],
)
def test_which_gpus_are_shut(
    owners: list[JobSight], used: int, uses: tuple[GpuUse, ...] | None, shut: dict[int, str]
) -> None:
    """One node of four GPUs, its owners and what its coordinator says."""
    here = crowds(map(record, owners), REQUESTS)
    known = here["n1"].owners if here else {}
    held = owners_of(node("n1", used=used), known, uses or ())
    assert len(held) == used
    assert shut_gpus(held, REQUESTS, uses) == shut


def sits(number: int, slots: int = 1) -> JobRecord:
    """A guest on n1, which its node knows by its number."""
    running = holds(str(number), GUEST)
    return record(replace(running, slots=slots, number=number))


@pytest.mark.parametrize(
    ("guests", "slots_used", "told", "shut", "at"),
    [
        pytest.param([], 0, {}, [], [], id="nobody"),
        pytest.param([sits(7)], 1, {2: ("7",)}, [], [(2,)], id="as its node tells"),
        pytest.param([sits(7)], 1, {}, [0], [(1,)], id="nobody tells: on an open GPU"),
        pytest.param([sits(7), sits(8)], 2, {}, [], [(0,), (1,)], id="not on the same"),
        pytest.param([sits(7, 2)], 2, {}, [0], [(1, 2)], id="two seats are two GPUs"),
        pytest.param([], 2, {}, [0, 1, 2], [(3,), (3,)], id="two whom only Slurm counts"),
        pytest.param([], 4, {}, [0, 1, 2], [(3,), (3,), (3,), (0,)], id="seats are filled first"),
        pytest.param([], 0, {1: ("9",)}, [], [(1,)], id="one whom only its node tells of"),
        pytest.param([sits(7)], 3, {0: ("7", "9")}, [], [(0,), (0,), (1,)], id="all of it"),
    ],
)
def test_where_guests_sit(
    guests: list[JobRecord],
    slots_used: int,
    told: dict[int, tuple[str, ...]],
    shut: list[int],
    at: list[tuple[int, ...]],
) -> None:
    """One node of four GPUs with three slots each."""
    uses = tuple(GpuUse(index=index, guest_jobs=jobs) for index, jobs in told.items())
    found = guests_of(node("n1", slots_used=slots_used), guests, uses, shut)
    assert [places for _, places in found] == at
    assert [one for one, _ in found if one] == guests


def guest(seats: int = 1, nodes: int = 1) -> Need:
    """What a guest needs."""
    need = need_of(request(role=Role.GUEST, gpus=seats, nodes=nodes))
    assert need
    return need


def field(*names: str, shut: dict[str, int]) -> Field:
    """Nodes of four GPUs, some of them held by owners without hooks."""
    return Field(
        {name: node(name, used=shut.get(name, 0)) for name in names},
        {},
        flat(names),
        tuple(
            record(holds(f"{number}", None, *range(count), name=name))
            for number, (name, count) in enumerate(shut.items(), 90)
        ),
    )


@pytest.mark.parametrize(
    ("need", "shut", "found"),
    [
        pytest.param(guest(), {}, ("n1",), id="all open: the first name"),
        pytest.param(guest(), {"n1": 4}, ("n2",), id="the first is shut"),
        pytest.param(guest(2), {"n1": 3, "n2": 2}, ("n2",), id="two open GPUs"),
        pytest.param(guest(1, 2), {"n1": 4}, Reason.NO_GUEST_SEAT, id="one open node of two"),
        pytest.param(guest(), {"n1": 4, "n2": 4}, Reason.NO_GUEST_SEAT, id="every GPU is shut"),
        pytest.param(guest(13), {}, Reason.NO_NODE_FITS, id="more seats than slots"),
        pytest.param(guest(5), {}, ("n1",), id="more seats than GPUs"),
    ],
)
def test_where_a_guest_is_placed(
    need: Need, shut: dict[str, int], found: tuple[str, ...] | Reason
) -> None:
    """Two nodes of four GPUs."""
    placed = place(need, field("n1", "n2", shut=shut))
    assert (placed.nodes if isinstance(placed, Placement) else placed) == found


def test_a_kept_node_that_shuts_is_not_kept() -> None:
    """The advice of before gives way."""
    placed = place(guest(), field("n1", "n2", shut={"n1": 4}), keep=("n1",))
    assert isinstance(placed, Placement)
    assert placed.nodes == ("n2",)


@pytest.mark.parametrize(
    ("use_pct", "memory_mib", "found"),
    [(79.0, 0, ("n1",)), (80.0, 0, None), (10.0, 9_000, ("n1",)), (10.0, 13_000, None)],
)
def test_a_guest_is_kept_from_busy_gpus_and_full_ones(
    use_pct: float, memory_mib: int, found: tuple[str, ...] | None
) -> None:
    """AntMan's 80 %, as measured; and its predicted memory beside what is used."""
    uses = (GpuUse(index=0, use_pct=use_pct, memory_used_mib=memory_mib, memory_mib=16_000),)
    one = Field({"n1": node("n1", gpus=1)}, {"n1": uses}, flat(["n1"]))
    placed = place(replace(guest(), gpu_memory_mib=4_000), one)
    assert (placed.nodes if isinstance(placed, Placement) else None) == found


def test_seats_without_cpus_are_seats() -> None:
    """Drained nodes, shut GPUs and taken slots are none; CPUs and memory are not asked for."""
    cluster = field("n1", "n2", "n3", "n4", "n5", shut={"n1": 4, "n2": 3})
    nodes = {
        **cluster.nodes,
        "n2": replace(cluster.nodes["n2"], cpus_used=32),
        "n3": replace(node("n3"), takes_jobs=False),
        "n4": node("n4", slots_used=12),
        "n5": replace(node("n5"), memory_used_mib=65_536),
    }
    cluster = replace(cluster, nodes=nodes)

    def waits(need: Need) -> tuple[str, ...]:
        found = cluster.mirrored().waits_at(need, nodes, 1.0)
        return found.nodes if found else ()

    assert waits(guest()) == ("n2", "n5")
    assert waits(guest(1, 2)) == ("n2", "n5")
    assert waits(guest(2)) == ("n5",)
    assert waits(guest(1, 3)) == ()
    assert waits(replace(guest(), only_nodes=("n1",))) == ()


def test_no_more_nodes_are_named_than_a_record_holds() -> None:
    """However large the cluster."""
    cluster = field(*(f"n{number:04}" for number in range(200)), shut={})
    found = cluster.mirrored().waits_at(guest(), cluster.nodes, 1.0)
    assert found
    assert len(found.nodes) == 64
