# SPDX-License-Identifier: Apache-2.0
"""Whether a pending job would find room on a node now. Pure, and careful: Slurm has the last word.

Per node it takes the most a job could need there; what it cannot tell (sockets, cores per GPU,
licences) is left to Slurm.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slipstream.slurm_plugin.gres import Gres
    from slipstream.slurm_plugin.records import Job, Node


@dataclass(frozen=True, slots=True)
class Need:
    """What one node of a job's must have free."""

    cpus: int
    memory_mib: int
    gres: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Room:
    """What a node has free; nothing if it takes no jobs."""

    cpus: int = 0
    memory_mib: int = 0
    gres: tuple[tuple[str, int], ...] = ()

    def fits(self, need: Need) -> bool:
        """Whether all of the need is there."""
        free = dict(self.gres)
        return (
            need.cpus <= self.cpus
            and need.memory_mib <= self.memory_mib
            and all(count <= free.get(name, 0) for name, count in need.gres)
        )

    def less(self, need: Need) -> Room:
        """What is left when it is taken."""
        free = Counter(dict(self.gres))
        free.subtract(dict(need.gres))
        return Room(self.cpus - need.cpus, self.memory_mib - need.memory_mib, tuple(free.items()))


def room_of(node: Node) -> Room:
    """What Slurm says is free there."""
    if not node.takes_jobs:
        return Room()
    free = _counted(node.gres)
    free.subtract(_counted(node.gres_used))
    return Room(
        node.cpus - node.cpus_used, node.memory_mib - node.memory_used_mib, tuple(free.items())
    )


def need_of(job: Job) -> Need:
    """The most it can need on one of its nodes."""
    nodes = max(job.node_count, 1)
    cpus = _divided(job.cpus, nodes)
    tasks = _divided(max(job.task_count, 1), nodes)
    memory_mib = job.memory_mib_per_node or (job.memory_mib_per_cpu or 0) * cpus
    gres = _counted(job.asked.per_node)
    for name, count in _counted(job.asked.per_job).items():
        gres[name] += _divided(count, nodes)
    for asked, times in ((job.asked.per_task, tasks), (job.asked.per_socket, 1)):
        for name, count in _counted(asked).items():
            gres[name] += count * times
    return Need(cpus, memory_mib, tuple(sorted(gres.items())))


def _counted(gres: Iterable[Gres]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for one in gres:
        counts[one.name] += one.count
    return counts


def _divided(count: int, nodes: int) -> int:
    return -(-count // nodes)
