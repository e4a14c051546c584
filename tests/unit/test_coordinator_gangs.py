# SPDX-License-Identifier: Apache-2.0
"""Jobs across nodes take turns in step: real coordinators, and ranks that wait for each other."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator_rig import eventually, told
from scheduler_rig import served
from slipstream.coordinator.gangs import BELIEVED_FOR_S, NOTICE_S, Call, Gangs, Together
from slipstream.coordinator.seats import Task
from slipstream.coordinator.tenants import Tenant
from slipstream.core.classes import JobClass, Mode, Role
from slipstream.core.node.events import NodeJob
from slipstream.core.node.turns import Member, Turn
from slipstream.scheduler.messages import TurnCalled, TurnsCalled, read_told
from slipstream.wire import control_block
from slipstream.wire.control_block import Directive, Phase, Progress, Up
from stepd_rig import Slurm, slurm_node

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

RANK = Path(__file__).parents[1] / "gang_rank.py"
JOBS = (7, 8)


def tenants(*nodes: str, job: int = 7) -> dict[int, Tenant]:
    """One job on these nodes."""
    task = Task("batch", 0, 100, 555)
    return {job: Tenant(job, 0, (task,), frozenset(), (), {}, nodes=len(nodes), gang=nodes)}


def test_the_first_node_leads_and_the_others_follow_it_for_a_while() -> None:
    """Then each decides for itself: nobody waits for a call that never comes."""
    gangs = Gangs("n2")
    gangs.seen(tenants("n1", "n2"), 100.0)
    assert gangs.together(7) is None
    assert gangs.called(7, Call("n1", runs=False, after=40), 100.0)
    assert (gangs.following(), gangs.together(7)) == (
        {7: Call("n1", runs=False, after=40)},
        Together(after=40),
    )
    gangs.seen(tenants("n1", "n2"), 100.0 + BELIEVED_FOR_S)
    assert (gangs.following(), gangs.together(7)) == ({}, None)
    leads = Gangs("n1")
    leads.seen(tenants("n1", "n2"), 100.0)
    assert leads.together(7) == Together(notice_s=NOTICE_S)


@pytest.mark.parametrize(
    ("nodes", "leader"),
    [
        pytest.param(("n1", "n2"), "n3", id="not of the gang"),
        pytest.param(("n1", "n2", "n3"), "n3", id="not its first"),
        pytest.param(("n2", "n1"), "n1", id="led here"),
        pytest.param(("n1", "n3"), "n1", id="not a job of this node"),
        pytest.param((), "n1", id="a job of one node"),
    ],
)
def test_only_the_first_node_of_a_job_is_followed(nodes: tuple[str, ...], leader: str) -> None:
    """As Slurm told this node who that is."""
    gangs = Gangs("n2")
    gangs.seen(tenants(*nodes), 100.0)
    assert not gangs.called(7, Call(leader, runs=False), 100.0)
    assert gangs.following() == {}


def test_a_call_is_read_and_carried_to_the_other_nodes() -> None:
    """Job, whether it runs, after which mini-batch it waits, whether it is next."""
    call = {"job_id": 7, "runs": False, "after": 40, "nodes": ["n1", "n2"]}
    for returns in (False, True):
        told = [{**call, "returns": returns} if returns else call]
        line = json.dumps({"v": 1, "node": "n1", "at_s": 1.0, "calls": told}).encode()
        expected = TurnCalled(7, runs=False, after=40, nodes=("n1", "n2"), returns=returns)
        assert read_told(line) == TurnsCalled("n1", (expected,))


def test_a_leader_calls_a_gang_back_before_its_turn() -> None:
    """What the wheel of its first node wants of it is what its other nodes hear."""
    gangs = Gangs("n1")
    gangs.seen(tenants("n1", "n2"), 100.0)
    job = NodeJob(
        job_id=7,
        job_class=JobClass.SHARED,
        role=Role.GUEST,
        gpus=("a",),
        gang=("n1", "n2"),
    )
    member = Member(job=job, turn=Turn.WAITING, ready=True, returns=True)
    (call,) = gangs.calls([member], {7: Directive()})
    assert call == {"job_id": 7, "runs": False, "returns": True, "after": 0, "nodes": ["n1", "n2"]}


@dataclass
class Rank:
    """A process of a gang."""

    page: Path

    @property
    def progress(self) -> Progress:
        """What its page says."""

        def words(first: int, count: int) -> list[int]:
            return memoryview(self.page.read_bytes()).cast("Q").tolist()[first : first + count]

        found = control_block.read_half(Up, words)
        return control_block.read_progress(found) if found else Progress()


@contextlib.contextmanager
def gang(job: int, nodes: dict[str, Slurm]) -> Iterator[list[Rank]]:
    """A job of two ranks, one on each node, that meet in each mini-batch."""
    ends = socket.socketpair()
    ranks, started = [], []
    for (name, slurm), end in zip(nodes.items(), ends, strict=True):
        carrier = "class=shared,role=guest"
        environment = {"SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2"}
        slurm.start(job, SLURMD_NODENAME=name, SLURM_SLIPSTREAM=carrier, **environment)
        if name == "n1":  # its batch script has a page that nobody claims
            slurm.node.ask(job=job, **{"class": "shared"})
        answer = slurm.node.ask(job=job, step=0, **{"class": "shared"})
        page = Path(told(answer)["SLIPSTREAM_CONTROL"])
        words = [sys.executable, str(RANK), str(page), str(end.fileno())]
        started.append(subprocess.Popen(words, pass_fds=[end.fileno()]))
        ranks.append(Rank(page))
    try:
        yield ranks
    finally:
        for process in started:
            process.kill()
            process.wait()
        for end in ends:
            end.close()


def test_ranks_on_two_nodes_are_stopped_after_the_same_minibatch(tmp_path: Path) -> None:
    """Two gangs on two GPUs: both train in turns, and none waits for a rank that stands still."""
    events = f"--events-socket={tmp_path}/events.sock"
    words = ("--turn-s=1", events)
    with (
        served(tmp_path),
        slurm_node(*words, gpu_count=1, mode=Mode.ENFORCE) as one,
        slurm_node(*words, "--node=n2", gpu_count=1, mode=Mode.ENFORCE) as two,
        gang(7, {"n1": one, "n2": two}) as seven,
        gang(8, {"n1": one, "n2": two}) as eight,
    ):
        gangs = dict(zip(JOBS, (seven, eight), strict=True))
        parked: dict[int, set[int]] = {job: set() for job in JOBS}

        def turned() -> bool:
            for job, ranks in gangs.items():
                first, second = (rank.progress for rank in ranks)
                if {first.phase, second.phase} == {Phase.PARKED}:
                    assert first.minibatches == second.minibatches
                    parked[job].add(first.minibatches)
            time.sleep(0.02)
            return all(len(counts) >= 2 for counts in parked.values())

        assert eventually(turned), (parked, one.node.log(), two.node.log())
        late = 'slipstream_node_commands_total{kind="unpark",why="park_late"}'
        assert not one.node.metrics().get(late)
        assert not two.node.metrics().get(late)
        called = 'slipstream_node_commands_total{kind="unpark",why="gang_called"}'
        assert two.node.metrics()[called] >= 1
