# SPDX-License-Identifier: Apache-2.0
"""What runs already fills the uplinks of racks, and a gang keeps clear of the full ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import RULES, holds, looked, machine, node, request, sight
from slipstream.core.classes import JobClass
from slipstream.core.commands import Advise
from slipstream.core.estimate import Basis, Estimate
from slipstream.core.events import NodeReported, TopologyRead
from slipstream.core.sights import Measured, Training
from slipstream.core.topology import Group
from slipstream.core.wires import Wires, seen

if TYPE_CHECKING:
    from slipstream.core.machine import Machine
    from slipstream.core.sights import Request

pytestmark = pytest.mark.unit

NAMES = tuple(f"n{number}" for number in range(1, 9))
RACKS = tuple(Group(f"r{at // 2}", 0, NAMES[at : at + 2]) for at in range(0, 8, 2))
GROUPS = (*RACKS, Group("d", 1, NAMES))
UPLINKS = replace(RULES, uplink_mbps=1_000.0)


def gang(number: int, mbps: float) -> Request:
    """A guaranteed job of two nodes that is known to send so much."""
    asked = replace(request(number, gpus=4, nodes=2), job_class=JobClass.GUARANTEED)
    return replace(asked, estimate=Estimate(basis=Basis.FAMILY, network_mbps=mbps))


def cluster(*, uplinks: bool = True, servers: bool = False) -> Machine:
    """Racks of two nodes. One job runs across r0 and r1; a node of each rack is free."""
    one = machine(
        *(node(name, used=0 if at % 2 else 4) for at, name in enumerate(NAMES)),
        rules=UPLINKS if uplinks else RULES,
    )
    one.handle(TopologyRead(1.0, GROUPS))
    roles = (("ps", 1), ("worker", 1)) if servers else ()
    runs = replace(
        holds("5", replace(gang(5, 900.0), roles=roles)),
        number=5,
        nodes=("n1", "n3"),
        gpus=8,
        gpu_places=tuple((name, index) for name in ("n1", "n3") for index in range(4)),
    )
    one.handle(looked(2.0, runs))
    return one


def placed(one: Machine, mbps: float) -> tuple[str, ...]:
    """Where a gang of two nodes goes then."""
    commands = one.handle(looked(4.0, sight("7", gang(7, mbps))))
    (advice,) = (it.advice for it in commands if isinstance(it, Advise))
    return advice.nodes


def report(name: str, mbps: float) -> NodeReported:
    """What a node measured of the job that runs."""
    told = Training(ref="5", measured=Measured(network_mbps=mbps))
    return NodeReported(at_s=3.0, node=name, jobs=(told,))


def test_a_gang_keeps_clear_of_uplinks_that_are_full() -> None:
    """It has to be on two racks: on those that nobody sends from."""
    assert placed(cluster(uplinks=False), 500.0) == ("n2", "n4")
    assert placed(cluster(), 500.0) == ("n6", "n8")


def test_one_that_still_fits_beside_it_goes_where_it_would() -> None:
    """A tenth of the uplink is left."""
    assert placed(cluster(), 100.0) == ("n2", "n4")


def test_what_was_measured_counts_before_what_was_expected() -> None:
    """It sends far less than was thought."""
    one = cluster()
    one.handle(report("n1", 180.0))
    one.handle(report("n3", 140.0))
    assert seen(one.state, one.state.reports) == Wires(1_000.0, (("r0", 200.0), ("r1", 200.0)))
    assert placed(one, 500.0) == ("n2", "n4")


def test_nothing_is_counted_where_the_site_says_nothing() -> None:
    """And nothing of jobs within a rack, of one node, or that have ended."""
    assert seen(cluster(uplinks=False).state, {}) == Wires()
    one = cluster()
    assert seen(one.state, {}).sent == (("r0", 900.0), ("r1", 900.0))
    near = replace(one.state.jobs["5"].sight, nodes=("n1", "n2"))  # type: ignore[type-var]
    one.handle(looked(3.0, near))  # type: ignore[arg-type]
    assert seen(one.state, {}).sent == ()
    one.handle(looked(3.5, gone=("5",)))
    assert seen(one.state, {}).sent == ()


def test_a_parameter_server_sends_to_each_worker_and_they_to_it() -> None:
    """One worker in another rack: the same over both uplinks."""
    one = cluster(servers=True)
    assert seen(one.state, {}).sent == (("r0", 900.0), ("r1", 900.0))


def test_a_batch_keeps_clear_of_them_too() -> None:
    """Two gangs that come together, placed by the group GA."""
    one = cluster()
    free = tuple(node(name) for name in ("n5", "n6", "n7", "n8"))
    one.handle(looked(3.0, nodes=free))
    commands = one.handle(looked(4.0, sight("7", gang(7, 500.0)), sight("8", gang(8, 500.0))))
    nodes = {at for it in commands if isinstance(it, Advise) for at in it.advice.nodes}
    assert nodes == {"n5", "n6", "n7", "n8"}
