# SPDX-License-Identifier: Apache-2.0
"""Which GPUs take guests, and how many seats that leaves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core_world import holds, node, request, token
from slipstream.core.classes import Role
from slipstream.core.placement import Field, Need, Placement, need_of, place, with_seats
from slipstream.core.reasons import Reason
from slipstream.core.records import PHASE_OF, JobRecord
from slipstream.core.seats import Shut, free_seats, holders, shut_gpus
from slipstream.core.sights import GpuUse, JobSight, Standing
from slipstream.core.topology import flat

pytestmark = pytest.mark.unit

SHARES = request(1)
ALONE = replace(request(2), shares=False)
REQUESTS = {token(1): SHARES, token(2): ALONE}
N1 = node("n1", used=1)


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


@pytest.mark.parametrize(
    ("owners", "used", "uses", "shut"),
    [
        pytest.param([], 0, None, None, id="an idle node"),
        pytest.param([holds("7", SHARES, 0)], 1, None, None, id="an owner with hooks that shares"),
        pytest.param(
            [holds("7", None, 0)],
            1,
            None,
            Shut(1, 0, ("owner 7 has no hooks",)),
            id="a plain owner",
        ),
        pytest.param(
            [holds("7", ALONE, 0, 2)],
            2,
            None,
            Shut(2, 0, ("owner 7 does not share",)),
            id="--no-slip-share on two GPUs",
        ),
        pytest.param(
            [holds("7", None, 0), holds("8", ALONE, 1), holds("9", SHARES, 2)],
            3,
            None,
            Shut(2, 0, ("owner 7 has no hooks", "owner 8 does not share")),
            id="one of each",
        ),
        pytest.param(
            [holds("7", SHARES, 0)],
            1,
            report(False, True, True, True),
            Shut(1, 0, ("owner 7 takes none now",)),
            id="the coordinator knows better than the marker",
        ),
        pytest.param(
            [holds("7", None, 0)],
            1,
            report(True, True, True, True, guests=2),
            Shut(1, 2, ("owner 7 has no hooks",)),
            id="but not better than a job without one; guests were there before",
        ),
        pytest.param(
            [],
            0,
            report(True, True, True, False),
            Shut(1, 0, ("GPU 3 takes none now",)),
            id="a GPU nobody owns that is said to take none",
        ),
        pytest.param(
            [holds("7", SHARES, 0)],
            3,
            None,
            Shut(2, 0, ("an owner is not known",)),
            id="GPUs in use by jobs we cannot see",
        ),
        pytest.param([], 3, report(True, True, True, True), None, id="the same, with a report"),
        pytest.param(
            [replace(holds("7", None, 0), standing=Standing.ENDED)],
            0,
            None,
            None,
            id="it has ended",
        ),
        pytest.param(
            [replace(holds("7", None, 0), standing=Standing.SUSPENDED)],
            1,
            None,
            Shut(1, 0, ("owner 7 has no hooks",)),
            id="it is suspended and keeps its GPU",
        ),
    ],
)
def test_which_gpus_are_shut(
    owners: list[JobSight], used: int, uses: tuple[GpuUse, ...] | None, shut: Shut | None
) -> None:
    """One node of four GPUs, its owners and what its coordinator says."""
    held = holders(map(record, owners))
    reports = {} if uses is None else {"n1": uses}
    found = shut_gpus({"n1": node("n1", used=used)}, held, REQUESTS, reports)
    assert found == ({} if shut is None else {"n1": shut})


@pytest.mark.parametrize(
    ("shut", "slots_used", "count", "free"),
    [
        pytest.param(None, 5, 1, 7, id="nothing is shut: as Slurm counts"),
        pytest.param(Shut(1), 0, 1, 9, id="three slots of one GPU do not count"),
        pytest.param(Shut(1), 8, 1, 1, id="guests sit on the open ones, as far as we know"),
        pytest.param(Shut(1, seats_used=2), 8, 1, 3, id="two are known to sit on the shut one"),
        pytest.param(Shut(3), 0, 1, 3, id="one GPU is open"),
        pytest.param(Shut(3), 0, 2, 0, id="two seats are two GPUs"),
        pytest.param(Shut(4), 0, 1, 0, id="none is open"),
        pytest.param(Shut(1), 12, 1, 0, id="all slots are taken"),
    ],
)
def test_how_many_seats_are_free(shut: Shut | None, slots_used: int, count: int, free: int) -> None:
    """Four GPUs of three slots each."""
    assert max(0, free_seats(node("n1", slots_used=slots_used), shut, count)) == free


def test_a_node_of_slots_alone_is_counted_by_slurm() -> None:
    """No GPU that Slurm knows of: none can be shut."""
    assert free_seats(replace(node("n1"), gpus=0), Shut(1), 1) == 12


def guest(seats: int = 1, nodes: int = 1) -> Need:
    """What a guest needs."""
    need = need_of(request(role=Role.GUEST, gpus=seats, nodes=nodes))
    assert need
    return need


def field(*names: str, shut: dict[str, Shut]) -> Field:
    """Idle nodes, some of them shut in part."""
    return Field({name: node(name) for name in names}, {}, flat(names), shut)


@pytest.mark.parametrize(
    ("need", "shut", "found"),
    [
        pytest.param(guest(), {}, ("n1",), id="all open: the first name"),
        pytest.param(guest(), {"n1": Shut(4)}, ("n2",), id="the first is shut"),
        pytest.param(guest(2), {"n1": Shut(3), "n2": Shut(2)}, ("n2",), id="two open GPUs"),
        pytest.param(guest(1, 2), {"n1": Shut(4)}, Reason.NO_GUEST_SEAT, id="one open node of two"),
        pytest.param(
            guest(), {"n1": Shut(4), "n2": Shut(4)}, Reason.NO_GUEST_SEAT, id="every GPU is shut"
        ),
        pytest.param(guest(13), {}, Reason.NO_NODE_FITS, id="more seats than slots"),
    ],
)
def test_where_a_guest_is_placed(
    need: Need, shut: dict[str, Shut], found: tuple[str, ...] | Reason
) -> None:
    """Two idle nodes of four GPUs."""
    placed = place(need, field("n1", "n2", shut=shut))
    assert (placed.nodes if isinstance(placed, Placement) else placed) == found


def test_an_owner_does_not_care_who_takes_guests() -> None:
    """Slurm gives it GPUs of its own."""
    need = need_of(request(gpus=4))
    assert need
    assert isinstance(place(need, field("n1", shut={"n1": Shut(4)})), Placement)


def test_a_kept_node_that_shuts_is_not_kept() -> None:
    """The advice of before gives way."""
    cluster = field("n1", "n2", shut={"n1": Shut(4)})
    placed = place(guest(), cluster, keep=("n1",))
    assert isinstance(placed, Placement)
    assert placed.nodes == ("n2",)


def test_seats_without_cpus_are_seats() -> None:
    """Drained nodes, shut GPUs and taken slots are none; CPUs and memory are not asked for."""
    cluster = field("n1", "n2", "n3", "n4", "n5", shut={"n1": Shut(4), "n2": Shut(3)})
    nodes = {
        **cluster.nodes,
        "n2": replace(node("n2"), cpus_used=32),
        "n3": replace(node("n3"), takes_jobs=False),
        "n4": node("n4", slots_used=12),
        "n5": replace(node("n5"), memory_used_mib=65_536),
    }
    cluster = replace(cluster, nodes=nodes)
    assert with_seats(guest(), cluster).nodes == ("n2", "n5")
    assert with_seats(guest(1, 2), cluster).nodes == ("n2", "n5")
    assert with_seats(guest(2), cluster).nodes == ("n5",)
    assert with_seats(guest(1, 3), cluster).nodes == ()
    assert with_seats(replace(guest(), only_nodes=("n1",)), cluster).nodes == ()


def test_no_more_nodes_are_named_than_a_record_holds() -> None:
    """However large the cluster."""
    names = [f"n{number:04}" for number in range(1000)]
    assert len(with_seats(guest(), field(*names, shut={})).nodes) == 64
