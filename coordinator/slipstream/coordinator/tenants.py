# SPDX-License-Identifier: Apache-2.0
"""Which jobs of Slurm run on this node, and which GPUs they hold: from /proc, flagged or not.

A task is a child of a slurmstepd, and what Slurm told it stands in its environment (slurmstepd has
overwritten its own). What was read first counts: a script may exec a program that knows less.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final

from slipstream.coordinator.processes import gpus_held, indices, number
from slipstream.coordinator.seats import Task
from slipstream.coordinator.steps import STEPD, carried_by
from slipstream.slurm_plugin.errors import SlurmParseError
from slipstream.slurm_plugin.hosts import expand

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slipstream.coordinator.processes import ProcFs
    from slipstream.coordinator.steps import Step

CARRIER: Final = "SLURM_SLIPSTREAM"
"""What was asked for with our flags; only jobs of ours have it."""
_WORD = re.compile(r"[A-Za-z0-9_.:-]{1,31}")
_SLURM: Final = "slurm"
_PLACEHOLDER = re.compile(r"slipstream-owner-(\d{1,10})")
_MOST_LETTERS: Final = 4096
_YOUNG_S: Final = 10
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_STARTERS: Final = ("slurmd", STEPD)
"""Processes that may be another program a moment later: they are looked at again."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A job with tasks on this node."""

    job_id: int
    uid: int
    tasks: tuple[Task, ...]
    holds: frozenset[int]
    """The GPUs that Slurm gave it, by index."""
    sees: tuple[int, ...]
    """What it was told in CUDA_VISIBLE_DEVICES."""
    carrier: Mapping[str, str]
    stands_for: int = 0
    """The guest that its GPUs are for, if it is a placeholder of the scheduler's."""
    nodes: int = 0
    """How many nodes it runs on; 0 if Slurm did not say."""
    gang: tuple[str, ...] = ()
    """All of them, in Slurm's order, if they are several."""

    @property
    def is_guest(self) -> bool:
        """Whether it rides on GPUs of others."""
        return self.carrier.get("role") == "guest" and not self.holds

    @property
    def keeps_guests_away(self) -> bool:
        """Whether it said --no-slip-share."""
        return self.carrier.get("share") == "no"


class Tenants:
    """Looks, and remembers what need not be looked at again."""

    def __init__(self, procfs: ProcFs, node: str, gpu_state: str) -> None:
        self._procfs = procfs
        self._node = node
        self._gpu_state = gpu_state
        self._dull: set[int] = set()
        self._found: dict[int, Tenant] = {}
        """A tenant for each task, by its process."""
        self._steps: dict[tuple[int, int], Step] = {}
        """By process and its start: to read a title waits for a process that is just starting."""

    def look(self) -> dict[int, Tenant]:
        """The jobs that are here now: only those are looked at that are not known yet."""
        there = self._procfs.pids()
        self._dull &= there
        self._found = {pid: one for pid, one in self._found.items() if self._lives(one)}
        fresh = there - self._dull - self._found.keys()
        kin = {pid: told for pid in fresh if (told := self._procfs.kin(pid))}
        steps = {
            pid: step
            for pid, one in kin.items()
            if one.name == STEPD
            if (step := self._steps.get((pid, one.started_ticks)) or carried_by(self._procfs, pid))
        }
        self._steps = {(pid, kin[pid].started_ticks): step for pid, step in steps.items()}
        # Who was just started may be about to exec another program: it is looked at again.
        young_ticks = (time.clock_gettime(time.CLOCK_BOOTTIME) - _YOUNG_S) * _TICKS_PER_S
        for pid, one in kin.items():
            if one.name in _STARTERS:
                continue
            environment = self._procfs.environment(pid) if one.parent in steps else {}
            if one.parent in steps and "SLURMD_NODENAME" not in environment:
                continue  # it has not come to the exec that tells it so
            found = environment and self._tenant(pid, steps[one.parent], environment)
            if found:
                self._found[pid] = found
            elif one.started_ticks <= young_ticks:
                self._dull.add(pid)
        return _by_job(self._found.values())

    def _lives(self, one: Tenant) -> bool:
        (task,) = one.tasks
        return self._procfs.lives(task.pid, task.started_ticks)

    def _tenant(self, pid: int, step: Step, environment: dict[str, str]) -> Tenant | None:
        job = environment.get("SLURM_JOB_ID", "")
        job_id = number(job) if step.job in ("", job) else None  # it may say what it likes
        started_ticks, uid = self._procfs.started_ticks(pid), self._procfs.real_uid(pid)
        # Nodes of a sandbox share a machine, and those of two sandboxes their names.
        here = (environment.get("SLURMD_NODENAME"), environment.get("SLIPSTREAM_GPU_STATE", ""))
        if here != (self._node, self._gpu_state) or not job_id:
            return None
        if not started_ticks or uid is None:
            return None  # it has just ended
        task = Task(
            step=step.name,
            task=number(environment.get("SLURM_LOCALID", "")) or 0,
            pid=pid,
            started_ticks=started_ticks,
        )
        words = (word.partition("=") for word in environment.get(CARRIER, "").split(","))
        carrier = {key: value for key, _, value in words if _WORD.fullmatch(value)}
        # A guest is told of its GPUs under the names of an owner's, and holds none of them. The
        # SPANK plugin has written the role anew where Slurm did give it GPUs.
        holds = () if carrier.get("role") == "guest" else gpus_held(step.name, environment)
        return Tenant(
            job_id=job_id,
            uid=uid,
            tasks=(task,),
            holds=frozenset(holds),
            sees=indices(environment.get("CUDA_VISIBLE_DEVICES", "")),
            carrier=carrier,
            stands_for=_stands_for(uid, environment),
            nodes=number(environment.get("SLURM_JOB_NUM_NODES", "")) or 0,
            gang=_gang(environment.get("SLURM_JOB_NODELIST", "")),
        )


def _gang(nodes: str) -> tuple[str, ...]:
    """Several nodes, as Slurm writes them; what cannot be read is none."""
    with contextlib.suppress(SlurmParseError):
        found = expand(nodes) if len(nodes) < _MOST_LETTERS else ()
        return found if len(found) > 1 else ()
    return ()


def _stands_for(uid: int, environment: Mapping[str, str]) -> int:
    """By its name, which anybody can give a job, and its user, which nobody else can be."""
    found = _PLACEHOLDER.fullmatch(environment.get("SLURM_JOB_NAME", ""))
    return int(found[1]) if found and uid in _schedulers() else 0


@cache
def _schedulers() -> frozenset[int]:
    """Whom the scheduler may run as: root, or Slurm's user."""
    with contextlib.suppress(KeyError):
        return frozenset({0, pwd.getpwnam(_SLURM).pw_uid})
    return frozenset({0})


def _by_job(found: Iterable[Tenant]) -> dict[int, Tenant]:
    """One tenant for each job: Slurm tells a task of its own GPUs only."""
    jobs: dict[int, Tenant] = {}
    for one in found:
        known = jobs.get(one.job_id, one)
        jobs[one.job_id] = Tenant(
            job_id=one.job_id,
            uid=known.uid,
            tasks=tuple(sorted({*known.tasks, *one.tasks})),
            holds=known.holds | one.holds,
            sees=tuple(dict.fromkeys((*known.sees, *one.sees))),
            carrier={**known.carrier, **one.carrier},
            stands_for=known.stands_for,
            nodes=max(known.nodes, one.nodes),
            gang=known.gang or one.gang,
        )
    return jobs
