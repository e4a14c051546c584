# SPDX-License-Identifier: Apache-2.0
"""What the poller sees becomes events: complete at first, then only what changed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core_world import token
from slipstream.core.events import ClusterSeen, SlurmFound, SlurmLost, TopologyRead
from slipstream.core.sights import Standing
from slipstream.core.topology import Group, Topology
from slipstream.scheduler.watcher import Watcher, node_sight_of, sight_of
from slipstream.slurm_plugin import (
    Gres,
    Job,
    JobFlag,
    JobState,
    Kind,
    Node,
    NodeFlag,
    NodeState,
    Poller,
    SlurmError,
)
from slipstream.slurm_plugin.records import Array, Asked, NodeShare, Times

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.core.events import Event

pytestmark = pytest.mark.unit

MARKER = f"[slipstream v=1 token={token(1)} class=shared role=owner gpus=node:1 weight=1]"
JOB = Job(
    job_id=7,
    uid=1000,
    partition="batch",
    priority=5,
    state=JobState.PENDING,
    asked=Asked(),
    times=Times(100),
    admin_comment=MARKER,
    reason="Resources",
)
NODE = Node(
    name="n1",
    state=NodeState.MIXED,
    gres=(Gres("gpu", "a100", 4), Gres("slot", "", 12)),
    gres_used=(Gres("gpu", "a100", 1), Gres("slot", "", 5)),
    cpus=32,
    cpus_used=6,
    memory_mib=65_536,
    memory_used_mib=1_000,
    partitions=("batch",),
)


class Script:
    """Slurm as a list of answers: what the poller gets is under the test's hand."""

    def __init__(self) -> None:
        self.queue: tuple[Job, ...] = (JOB,)
        self.up = True

    def ping(self) -> bool:
        """As set."""
        return self.up

    def jobs(self) -> tuple[Job, ...]:
        """The queue, or nobody answers."""
        if not self.up:
            raise SlurmError(("squeue",), "no controller", Kind.UNREACHABLE)
        return self.queue

    def nodes(self) -> tuple[Node, ...]:
        """One."""
        return (NODE,)

    def topology(self) -> Topology:
        """One rack."""
        return Topology((Group("rack", 0, ("n1",)),))


def watched() -> tuple[Script, Poller, list[Event]]:
    """A watcher whose events can be read."""
    slurm = Script()
    events: list[Event] = []

    def deliver(told: Sequence[Event]) -> None:
        events.extend(told)

    poller = Poller(slurm, clock=lambda: 50.0)  # type: ignore[arg-type]
    Watcher(slurm, poller, deliver)  # type: ignore[arg-type]
    return slurm, poller, events


def test_the_first_look_is_complete_and_the_next_ones_are_not() -> None:
    """Topology first, so that the first plan knows it."""
    slurm, poller, events = watched()
    poller.poll()
    assert [type(event) for event in events] == [TopologyRead, ClusterSeen]
    first = events[1]
    assert isinstance(first, ClusterSeen)
    assert first.complete
    assert (first.at_s, len(first.jobs), len(first.nodes)) == (50.0, 1, 1)
    slurm.queue = ()
    poller.poll()
    assert events[2] == ClusterSeen(at_s=50.0, jobs_gone=("7",))


def test_slurm_away_and_back_are_told_once_each() -> None:
    """And what was seen stays seen in between."""
    slurm, poller, events = watched()
    poller.poll()
    slurm.up = False
    poller.poll()
    poller.poll()
    slurm.up = True
    poller.poll()
    assert [type(event) for event in events[2:]] == [SlurmLost, SlurmFound, ClusterSeen]
    assert events[-1] == ClusterSeen(at_s=50.0)


@pytest.mark.parametrize(
    ("state", "flags", "standing"),
    [
        (JobState.PENDING, JobFlag.NONE, Standing.WAITING),
        (JobState.RUNNING, JobFlag.NONE, Standing.RUNNING),
        (JobState.RUNNING, JobFlag.CONFIGURING, Standing.RUNNING),
        (JobState.SUSPENDED, JobFlag.NONE, Standing.SUSPENDED),
        (JobState.COMPLETED, JobFlag.COMPLETING, Standing.COMPLETING),
        (JobState.UNTOLD, JobFlag.COMPLETING, Standing.COMPLETING),
        (JobState.COMPLETED, JobFlag.NONE, Standing.ENDED),
        (JobState.TIMEOUT, JobFlag.NONE, Standing.ENDED),
        (JobState.NODE_FAIL, JobFlag.NONE, Standing.ENDED),
    ],
)
def test_slurms_states_become_standings(
    state: JobState, flags: JobFlag, standing: Standing
) -> None:
    """Each has its place."""
    assert sight_of(replace(JOB, state=state, flags=flags)).standing is standing


def test_a_job_is_seen_with_what_it_holds_and_asks() -> None:
    """Seats over all its nodes, the marker's request, Slurm's reason."""
    holds = (
        NodeShare("n1", (Gres("gpu", "a100", 2, (0, 1)), Gres("slot", "", 1))),
        NodeShare("n2", (Gres("gpu", "a100", 1, (1,)),)),
    )
    seen = sight_of(replace(JOB, holds=holds, nodes=("n1", "n2")))
    assert (seen.gpus, seen.slots, seen.nodes) == (3, 1, ("n1", "n2"))
    assert seen.gpu_places == (("n1", 0), ("n1", 1), ("n2", 1))
    assert seen.request
    assert seen.request.token == token(1)
    assert (seen.slurm_reason, seen.priority, seen.submitted_at_s) == ("Resources", 5, 100)


def test_a_task_of_an_array_goes_by_both_numbers() -> None:
    """12_3: the only safe name of it."""
    assert sight_of(replace(JOB, array=Array(12, 3))).ref == "12_3"


def test_a_broken_marker_leaves_the_job_to_slurm(caplog: pytest.LogCaptureFixture) -> None:
    """With a line for the operator."""
    broken = replace(JOB, admin_comment=MARKER.replace("shared", "bogus"))
    assert sight_of(broken).request is None
    assert "marker of job 7 not understood" in caplog.text


def test_a_node_is_seen_with_its_seats() -> None:
    """GPUs of any type, slots, CPUs; drained nodes take no jobs."""
    seen = node_sight_of(NODE)
    assert (seen.gpus, seen.gpus_used, seen.slots, seen.slots_used) == (4, 1, 12, 5)
    assert (seen.cpus, seen.cpus_used, seen.takes_jobs, seen.state) == (32, 6, True, "MIXED")
    assert not node_sight_of(replace(NODE, flags=NodeFlag.DRAIN)).takes_jobs
