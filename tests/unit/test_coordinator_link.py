# SPDX-License-Identifier: Apache-2.0
"""A real coordinator on another host than the scheduler: by TCP, with nothing of its folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from coordinator_rig import Coordinator, coordinated_node, eventually
from link_rig import CLUSTER, Hall, hall, open_hall
from slipstream.cli.doctor.facts import linked
from slipstream.core.commands import Save
from slipstream.core.events import JobSaved, NodeReported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from munge_rig import Hosts

pytestmark = [
    pytest.mark.unit,
    pytest.mark.skipif(os.geteuid() != 0, reason="skipped: only root's coordinator is believed"),
]


@pytest.fixture
def pair(realms: Hosts) -> Iterator[tuple[Hall, Coordinator]]:
    """A scheduler's door, not open yet, and a coordinator that looks for it."""
    here = hall(realms.head)
    words = (f"--scheduler={here.where}", f"--cluster={CLUSTER}")
    with coordinated_node(*words, f"--munge-socket={realms.folder}/n/s") as node:
        yield here, node


def reported(here: Hall, job: str) -> bool:
    """Whether the node told of a guest."""
    reports = [one for one in here.told if isinstance(one, NodeReported)]
    return any(job in gpu.guest_jobs for one in reports for gpu in one.gpus)


def test_the_stream_resumes_whoever_is_restarted(pair: tuple[Hall, Coordinator]) -> None:
    """Late, away, back; killed and started again: the state is told anew, orders are answered."""
    here, node = pair
    assert node.metrics()["slipstream_link_up"] == 0
    node.ask(job=5)
    with open_hall(here):
        assert eventually(lambda: reported(here, "5"))
        assert eventually(lambda: node.metrics()["slipstream_link_up"] == 1)
        assert linked(node.run_dir / "metrics.sock") is True
    assert eventually(lambda: node.metrics()["slipstream_link_up"] == 0)
    assert "no link to the scheduler" in node.log()
    assert linked(node.run_dir / "metrics.sock") is False
    here.told.clear()
    with open_hall(here):
        assert eventually(lambda: reported(here, "5")), node.log()
        here.orders.save(Save("t", "5", "n1", number=2))
        assert eventually(lambda: any(isinstance(one, JobSaved) for one in here.told))
        node.kill()
        assert eventually(lambda: here.counters.links == 0)
        here.told.clear()
        node.start()
        assert eventually(lambda: here.told), node.log()
        assert here.counters.refused_links.total() == 0


def test_the_kill_switch_reaches_other_hosts(pair: tuple[Hall, Coordinator]) -> None:
    """Thrown at the scheduler's before the node came, taken back while it is there."""
    here, node = pair
    here.orders.switch(off=True)
    with open_hall(here):
        assert eventually(lambda: "switched off by the scheduler" in node.log())
        here.orders.switch(off=True)
        here.orders.switch(off=False)
        assert eventually(lambda: "switched on by" in node.log())


def test_a_scheduler_of_another_cluster_is_not_told(pair: tuple[Hall, Coordinator]) -> None:
    """The log says whose it is."""
    here, node = pair
    other = hall(here.us.munge, "other")
    other.where = here.where
    with open_hall(other):
        assert eventually(lambda: "redirected: the scheduler of 'other', not 'deep'" in node.log())
    assert other.told == []
