# SPDX-License-Identifier: Apache-2.0
"""Grow-shrink: jobs that said they may (`--slip-elastic`) take GPUs of their node that stay idle.

They give them back as soon as anybody waits. Who has fewest GPUs grows first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.core.cluster.rules import Rule

if TYPE_CHECKING:
    from slipstream.core.cluster.floor import Floor
    from slipstream.core.cluster.jobs import Job


class Elastic:
    """The seated jobs that may grow, and when to look at them again."""

    def __init__(self, floor: Floor) -> None:
        self._floor = floor
        self._able: dict[int, Job] = {}
        self.due_s: float | None = None

    def sat(self, job: Job) -> None:
        """A job has GPUs."""
        one_node = len(self._floor.ground.nodes_of(job.gpus)) == 1
        if job.ask.elastic_max > job.ask.gpus and one_node:
            self._able[job.number] = job

    def stood(self, job: Job) -> None:
        """It has none any more."""
        self._able.pop(job.number, None)

    def after(self) -> None:
        """After an event: does the cluster begin to be idle, or is it no longer?"""
        floor = self._floor
        idle = bool(self._able) and not len(floor.queues) and floor.rules.has(Rule.GROW_SHRINK)
        if not idle:
            self.due_s = None
        elif self.due_s is None:
            self.due_s = floor.now_s + floor.rules.grow_after_s

    def woken(self) -> None:
        """It may have been idle long enough."""
        floor = self._floor
        if self.due_s is None or self.due_s > floor.now_s:
            return
        self.due_s = None
        for job in sorted(self._able.values(), key=lambda one: (len(one.gpus), one.number)):
            node = floor.ground.node_of[job.gpus[0]]
            free = [gpu for gpu in floor.ground.gpus_of[node] if not floor.ground.on[gpu]]
            more = free[: job.ask.elastic_max - len(job.gpus)]
            if more and node not in floor.ground.closed:
                floor.resize(job, (*job.gpus, *more))

    def shrink(self) -> bool:
        """Somebody waits: all go back to what they asked for; whether that freed anything."""
        grown = [job for job in self._able.values() if len(job.gpus) > job.ask.gpus]
        for job in sorted(grown, key=lambda one: one.number):
            self._floor.resize(job, job.gpus[: job.ask.gpus])
        return bool(grown)
