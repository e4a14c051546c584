# SPDX-License-Identifier: Apache-2.0
"""Who sits on which GPU of this node. Pure: values in, values out; the daemon keeps the table.

A GPU is named by its UUID: an index may mean another one after a restart of the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slipstream.wire.control_block import Role

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slipstream.coordinator.joining import Owner


@dataclass(frozen=True, slots=True, order=True)
class Task:
    """The first process of a task: as long as it lives, its job is on this node."""

    step: str
    task: int
    pid: int
    started_ticks: int


@dataclass(frozen=True, slots=True)
class Seat:
    """A job on this node."""

    job_id: int
    uid: int
    role: Role
    class_name: str
    token: str
    gpu_uuids: tuple[str, ...] = ()
    tasks: tuple[Task, ...] = ()

    def with_task(self, task: Task) -> Seat:
        """The same job with one more task."""
        return replace(self, tasks=tuple(sorted({*self.tasks, task})))

    def without_tasks(self, ended: Iterable[Task]) -> Seat:
        """The same job without these tasks."""
        gone = set(ended)
        return replace(self, tasks=tuple(task for task in self.tasks if task not in gone))

    def on(self, gpu_uuids: Sequence[str]) -> Seat:
        """The same job on these GPUs."""
        return replace(self, gpu_uuids=tuple(gpu_uuids))


@dataclass(frozen=True, slots=True)
class GpuUse:
    """A GPU as the choice sees it: how much it was used lately."""

    uuid: str
    index: int
    use_pct: float
    memory_used_mib: int


def choose(
    gpus: Iterable[GpuUse],
    seats: Mapping[int, Seat],
    count: int,
    *,
    owned: Mapping[str, Owner] | None = None,
    kept: Sequence[str] = (),
) -> tuple[str, ...]:
    """Distinct GPUs for a guest, the least used first; `kept` are those that it has already.

    GPUs that nobody owns, then those whose owner takes guests, and others only if there are not
    enough: the guest then stands still. Among equals fewest jobs, then least use, then least
    memory; fewer than `count` if there are not more.
    """
    owners = owned or {}
    openness = {uuid: 1 if owner.takes_guests else 2 for uuid, owner in owners.items()}
    jobs_on = count_jobs(seats)
    free = sorted(
        (gpu for gpu in gpus if gpu.uuid not in kept),
        key=lambda gpu: (
            openness.get(gpu.uuid, 0),
            jobs_on.get(gpu.uuid, 0),
            round(gpu.use_pct),
            gpu.memory_used_mib,
            gpu.index,  # the index settles ties
        ),
    )
    return (*kept, *(gpu.uuid for gpu in free[: max(0, count - len(kept))]))


def of_task(
    gpu_uuids: Sequence[str], task: int, *, gpus_per_task: int, tasks_per_gpu: int
) -> tuple[str, ...]:
    """Those of a job's GPUs on this node that one of its tasks sees, as Slurm binds an owner's.

    All of them without `gpus_per_task`. Tasks are numbered from 0 on the node; more tasks than
    there are GPUs begin again with the first.
    """
    count = len(gpu_uuids)
    if not 0 < gpus_per_task < count:
        return tuple(gpu_uuids)
    first = task // tasks_per_gpu if tasks_per_gpu else task * gpus_per_task
    return tuple(gpu_uuids[(first + at) % count] for at in range(gpus_per_task))


def count_jobs(seats: Mapping[int, Seat]) -> dict[str, int]:
    """How many jobs, owners and guests, are on each GPU."""
    found: dict[str, int] = {}
    for seat in seats.values():
        for uuid in seat.gpu_uuids:
            found[uuid] = found.get(uuid, 0) + 1
    return found


def guests_of(seats: Mapping[int, Seat], uuid: str) -> list[int]:
    """The guests of a GPU."""
    return sorted(
        job for job, seat in seats.items() if seat.role == Role.GUEST and uuid in seat.gpu_uuids
    )
