# SPDX-License-Identifier: Apache-2.0
"""The watchdog: what a dead scheduler has bound is let go, and nothing else is touched."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from core_world import token
from fakes.slurm_cluster import FakeCluster, FakeNode
from fakes.slurm_commands import FakeCommands
from lua.answering import Answering
from slipstream.scheduler.watchdog import Watchdog, answers
from slipstream.slurm_plugin import CliSlurm, Gres, SlurmError
from slipstream.slurm_plugin.requests import JobUpdate, Submission

if TYPE_CHECKING:
    from pathlib import Path

    from fakes.slurm_job import FakeJob

pytestmark = pytest.mark.unit

PATIENCE_S = 120.0


class World:
    """The GPU of one node is taken, and a job waits for it that could run on the other."""

    def __init__(self, words: str = " bound=1") -> None:
        self.cluster = FakeCluster([FakeNode(name, 8, {"gpu": 1}) for name in ("n1", "n2")], {})
        self.slurm = CliSlurm(FakeCommands(self.cluster))
        for _ in range(2):
            self.slurm.submit(
                Submission(
                    script="#!/bin/sh\n", gres_per_node=(Gres("gpu"),), required_nodes=("n2",)
                )
            )
        self.cluster.advance(1.0)
        comment = f"[slipstream v=1 token={token(1)}{words}]"
        self.slurm.update(2, JobUpdate(admin_comment=comment))
        self.lives = True
        self.off = False
        self.now_s = 0.0
        self.watchdog = Watchdog(
            self.slurm, lambda: self.lives, lambda: self.off, PATIENCE_S, lambda: self.now_s
        )

    def where(self) -> tuple[str, ...]:
        """Where the job in question runs, a moment later; nowhere if it waits."""
        self.cluster.advance(1.0)
        job: FakeJob = self.cluster.jobs[2]
        return job.nodes if job.state == "RUNNING" else ()

    def let_go_at(self, now_s: float) -> list[object]:
        """Which jobs are let go then."""
        self.now_s = now_s
        return list(self.watchdog.look())


def test_while_a_scheduler_answers_nothing_is_done() -> None:
    """However long that takes, and also while it is switched off: it takes back its own."""
    world = World()
    world.off = True
    assert [world.let_go_at(at_s) for at_s in (1.0, 1e6)] == [[], []]
    assert world.where() == ()


def test_what_a_dead_scheduler_bound_is_let_go_after_two_leases() -> None:
    """Counted from its last answer; the job then starts where there is room, and is left alone."""
    world = World()
    assert world.let_go_at(1000.0) == []
    world.lives = False
    assert world.let_go_at(1000.0 + PATIENCE_S - 1) == []
    assert world.where() == ()
    assert world.let_go_at(1000.0 + PATIENCE_S) == [2]
    assert world.where() == ("n1",)
    assert "bound" not in world.cluster.jobs[2].admin_comment
    assert world.let_go_at(2000.0) == []


def test_the_kill_switch_does_not_wait() -> None:
    """It is let go at the next look."""
    world = World()
    world.lives, world.off = False, True
    assert world.let_go_at(1.0) == [2]
    assert world.where() == ("n1",)


@pytest.mark.parametrize("words", ["", " role=guest"])
def test_what_its_user_wants_is_left_alone(words: str) -> None:
    """Its own --nodelist is no binding of ours."""
    world = World(words)
    world.lives = False
    assert world.let_go_at(1e6) == []
    assert world.where() == ()


def test_slurm_away_is_told_and_tried_again() -> None:
    """Whoever runs it goes on."""
    world = World()
    world.lives = world.cluster.up = False
    with pytest.raises(SlurmError):
        world.let_go_at(1e6)
    world.cluster.up = True
    assert world.let_go_at(1e6) == [2]


def test_a_scheduler_is_there_if_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one that is gone, nor a socket behind which nobody speaks."""
    path = tmp_path / "api.sock"
    assert not answers(path)
    with Answering(path, lambda _line: b"HTTP/1.0 503 Service Unavailable\r\n\r\n"):
        assert answers(path)
    monkeypatch.setattr("slipstream.scheduler.watchdog._ANSWERS_WITHIN_S", 0.05)
    with socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(path))
        hung.listen(1)
        assert not answers(path)
