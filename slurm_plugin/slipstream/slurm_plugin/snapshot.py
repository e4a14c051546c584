# SPDX-License-Identifier: Apache-2.0
"""What a poll saw, and what changed since the one before. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from slipstream.slurm_plugin.records import each_task
from slipstream.slurm_plugin.states import JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slipstream.slurm_plugin.errors import SlurmError
    from slipstream.slurm_plugin.identity import JobRef
    from slipstream.slurm_plugin.records import Job, Node


@dataclass(frozen=True)
class Snapshot:
    """The jobs and nodes of the last poll that worked, and how the last poll went.

    `at_s` is when that poll began: everything that happened before is in it. While slurmctld is
    away the jobs and nodes stay as they were last seen, `error` says why and `failures` for how
    many polls.
    """

    jobs: tuple[Job, ...] = ()
    nodes: tuple[Node, ...] = ()
    at_s: float | None = None
    error: SlurmError | None = None
    failures: int = 0

    @property
    def stale(self) -> bool:
        """The last poll did not work, or there was none yet: Slurm may know better by now."""
        return self.error is not None or self.at_s is None

    def age_s(self, now_s: float) -> float:
        """How old jobs and nodes are; without end before the first poll that worked."""
        return float("inf") if self.at_s is None else now_s - self.at_s

    @cached_property
    def tasks(self) -> tuple[Job, ...]:
        """The jobs, each array task by itself."""
        return each_task(self.jobs)

    @cached_property
    def gres_in_use(self) -> Mapping[str, Mapping[str, tuple[int, ...]]]:
        """For each node and GRES name the indices that jobs hold.

        From the jobs, because Slurm tells the indices in use on a node only for GRES with a type.
        """
        return gres_in_use(self.jobs)


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs between two polls; arrays task by task."""

    added: tuple[Job, ...] = ()
    changed: tuple[tuple[Job, Job], ...] = ()
    """Each as it was and as it is."""
    gone: tuple[Job, ...] = ()
    nodes: tuple[Node, ...] = ()
    """Nodes that are new or differ, as they are."""
    nodes_gone: tuple[str, ...] = field(default=())

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.gone or self.nodes or self.nodes_gone)


def changes_between(before: Snapshot, after: Snapshot) -> Changes:
    """What happened between two snapshots, in the order of Slurm's lists."""
    seen = {job.job_id: job for job in before.jobs}
    now = {job.job_id: job for job in after.jobs}
    same = {number for number, job in now.items() if _no_news(seen.get(number), job)}
    # Arrays are taken apart only where something happened: they may have many thousand tasks.
    old = _by_ref(job for number, job in seen.items() if number not in same)
    new = _by_ref(job for number, job in now.items() if number not in same)
    nodes_before = {node.name: node for node in before.nodes}
    nodes_after = {node.name: node for node in after.nodes}
    return Changes(
        added=tuple(job for ref, job in new.items() if ref not in old),
        changed=tuple(
            (old[ref], job)
            for ref, job in new.items()
            if ref in old and not _no_news(old[ref], job)
        ),
        gone=tuple(job for ref, job in old.items() if ref not in new),
        nodes=tuple(node for node in after.nodes if nodes_before.get(node.name) != node),
        nodes_gone=tuple(name for name in nodes_before if name not in nodes_after),
    )


def gres_in_use(jobs: Iterable[Job]) -> dict[str, dict[str, tuple[int, ...]]]:
    """For each node and GRES name the indices that jobs hold, in order."""
    held: dict[str, dict[str, tuple[int, ...]]] = {}
    for job in jobs:
        for share in job.holds:
            for gres in share.gres:
                by_name = held.setdefault(share.node, {})
                by_name[gres.name] = tuple(sorted((*by_name.get(gres.name, ()), *gres.indices)))
    return held


def _by_ref(jobs: Iterable[Job]) -> dict[JobRef, Job]:
    return {job.ref: job for job in each_task(jobs)}


def _no_news(old: Job | None, new: Job) -> bool:
    # Most of a long queue is as it was: to compare is much cheaper than to make others of it.
    return old is not None and (old == new or _without_estimates(old) == _without_estimates(new))


def _without_estimates(job: Job) -> Job:
    """Slurm re-estimates when a pending job will start at each scheduling pass: no news."""
    if job.state is not JobState.PENDING:
        return job
    return replace(job, times=replace(job.times, started_at_s=None, ended_at_s=None))
