# SPDX-License-Identifier: Apache-2.0
"""A cluster with a training that can be moved, and what it is told meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from core_world import looked, machine, node, request, sight
from slipstream.core.classes import Role
from slipstream.core.events import JobSaved, MoveAsked, NodeReported
from slipstream.core.sights import JobSight, Standing, Training

if TYPE_CHECKING:
    from slipstream.core.commands import Command
    from slipstream.core.events import ClusterSeen
    from slipstream.core.machine import Machine

ASKED_AT_S = 100.0


def running(ref: str = "5", where: str = "n1", role: Role = Role.OWNER) -> JobSight:
    """A job with a number that its node knows it by."""
    seen = sight(ref, request(1, role=role), Standing.RUNNING)
    return replace(seen, number=int(ref), nodes=(where,))


def trains(
    where: str, at_s: float, minibatch: int = 40, *, restorable: bool = True
) -> NodeReported:
    """Its node tells of it."""
    told = Training(ref="5", phase="training", minibatch=minibatch, restorable=restorable)
    return NodeReported(at_s=at_s, node=where, jobs=(told,))


def with_a_training() -> Machine:
    """A restorable job on the first of three nodes."""
    cluster = machine(node("n1", used=1), node("n2"), node("n3", used=4))
    cluster.handle(looked(1.0, running()))
    cluster.handle(trains("n1", 2.0))
    return cluster


def asked(*nodes: str, at_s: float = ASKED_AT_S, forced: bool = True) -> MoveAsked:
    """An operator's wish."""
    return MoveAsked(at_s=at_s, key="5", nodes=nodes, why="an operator asked", forced=forced)


def saved(at_s: float = 110.0, number: int = 1, problem: str = "") -> JobSaved:
    """What its node answers."""
    return JobSaved(
        at_s=at_s,
        node="n1",
        job_id="5",
        number=number,
        bytes_carried=500_000_000,
        seconds=0.9,
        problem=problem,
    )


def waiting(at_s: float) -> ClusterSeen:
    """It has left, and Slurm will not start it for two minutes of its own."""
    pending = sight("5", request(1), reason="BeginTime")
    return looked(at_s, replace(pending, number=5), nodes=(node("n1"),))


def story(cluster: Machine) -> str:
    """What was told of the job."""
    return "\n".join(line.text for line in cluster.state.jobs["5"].story)


def kinds(commands: list[Command]) -> list[type]:
    """What is to be done, in order."""
    return [type(command) for command in commands]
