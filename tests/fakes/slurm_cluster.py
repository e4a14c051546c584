# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster in memory that does to jobs what Slurm 22.05.8 was seen to do.

Time is virtual: nothing happens until `advance`. Only what the contract suite proves against a real
cluster is modelled; anything else raises, it does not pretend.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fakes.slurm_job import FakeJob

CRED_EXPIRE_S = 5.0
COMPLETING_S = 0.3
KILL_WAIT_S = 5.0


class Refused(Exception):  # noqa: N818 (what slurmctld says, not an error of the fake)
    """slurmctld's answer to a request it does not carry out."""


@dataclass
class FakeNode:
    """One node: how many of each GRES it has; CPUs are counted, not numbered."""

    name: str
    cpus: int
    gres: dict[str, int]


@dataclass
class FakeCluster:
    """Nodes, the queue and a clock."""

    nodes: list[FakeNode]
    racks: dict[str, tuple[str, ...]]
    now_s: float = 1_800_000_000.0
    up: bool = True
    longest: str = "UNLIMITED"
    """The partition's MaxTime."""
    jobs: dict[int, FakeJob] = field(default_factory=dict)
    last_job_id: int = 0
    _completing_until_s: dict[int, float] = field(default_factory=dict)

    def advance(self, seconds: float) -> None:
        """Let time pass, then end what completes and start what can start."""
        self.now_s += seconds
        for job_id, until_s in list(self._completing_until_s.items()):
            if until_s <= self.now_s:
                del self._completing_until_s[job_id]
                self._completed(self.jobs[job_id])
        self._schedule()

    def add(self, job: FakeJob, tasks: tuple[int, ...] = ()) -> int:
        """Put a job, or an array of these tasks, into the queue."""
        self._check_gres(job)
        self._check_nodes((*job.required, *job.excluded))
        self.last_job_id += 1
        job.job_id = self.last_job_id
        if tasks:
            job.array_job_id, job.waiting_tasks = job.job_id, tasks
        self.jobs[job.job_id] = job
        return job.job_id

    def find(self, ref: str) -> list[FakeJob]:
        """The records `12` (an array: all its tasks) or `12_3` names, the latter taken apart."""
        array, _, task = ref.partition("_")
        if not array.isdigit() or (task and not task.isdigit()):
            raise Refused("Invalid job id specified")
        if not task:
            of_array = [job for job in self.jobs.values() if job.array_job_id == int(array)]
            found = of_array or [job for job in [self.jobs.get(int(array))] if job]
        else:
            found = [job for job in [self._task(int(array), int(task))] if job]
        if not found:
            raise Refused("Invalid job id specified")
        return found

    def suspend(self, job: FakeJob) -> None:
        """Stop it; stopping it again is no error."""
        _must_run(job)
        if job.state == "RUNNING":
            job.ran_before_s += self.now_s - (job.changed_at_s or job.started_at_s)
            job.changed_at_s = self.now_s
            job.state, job.priority = "SUSPENDED", 0

    def resume(self, job: FakeJob) -> None:
        """Let it go on."""
        _must_run(job)
        if job.state != "SUSPENDED":
            raise Refused("Job is not suspended")
        job.changed_at_s = self.now_s
        job.state, job.priority = "RUNNING", job.rank

    def requeue(self, job: FakeJob, *, hold: bool) -> None:
        """Back into the queue; a suspended one stays held, one that has ended lives again."""
        if job.state == "PENDING" or job.comes_back:
            raise Refused("Job is pending execution")
        if not job.requeueable:
            raise Refused("Requested operation is presently disabled")
        held = hold or job.state == "SUSPENDED"
        was_running = job.state == "RUNNING"
        self._leave_nodes(job)
        job.restarts += 1
        job.comes_back = "HELD" if held else "PENDING"
        if was_running:
            self._complete(job)
        else:
            self._completed(job)

    def hold(self, job: FakeJob) -> None:
        """Accepted in every state; what runs goes on."""
        if not job.ended:
            job.priority = 0
            job.reason = "JobHeldAdmin" if job.state == "PENDING" else job.reason

    def release(self, job: FakeJob) -> None:
        """Accepted in every state."""
        if not job.ended and job.state != "SUSPENDED":
            job.priority, job.reason = job.rank, "None"

    def cancel(self, job: FakeJob) -> None:
        """End it; a waiting one is gone from the queue at once."""
        if job.ended:
            return
        was_on_nodes = job.on_nodes
        self._leave_nodes(job, forget=False)
        job.state, job.ended_at_s, job.comes_back = "CANCELLED", self.now_s, ""
        if was_on_nodes:
            self._complete(job)

    def must_be_valid(self, job: FakeJob) -> None:
        """Refuse a job no node could ever take."""
        self._check_gres(job)
        self._check_nodes((*job.required, *job.excluded))

    def free(self, node: FakeNode) -> dict[str, list[int]]:
        """The units of each GRES nobody holds on a node."""
        taken: dict[str, set[int]] = {name: set() for name in node.gres}
        for job in self.jobs.values():
            for name, units in job.held_gres.get(node.name, {}).items():
                taken[name] |= set(units)
        return {
            name: [unit for unit in range(count) if unit not in taken[name]]
            for name, count in node.gres.items()
        }

    def free_cpus(self, node: FakeNode) -> int:
        """CPUs nobody holds; a suspended job's are free, as in Slurm."""
        running = [j for j in self.jobs.values() if j.state == "RUNNING" and node.name in j.nodes]
        return node.cpus - sum(-(-job.cpus // job.node_count) for job in running)

    def _task(self, array_job_id: int, task: int) -> FakeJob | None:
        for job in list(self.jobs.values()):
            if job.array_job_id != array_job_id:
                continue
            if job.array_task_id == task and not job.waiting_tasks:
                return job
            if task in job.waiting_tasks:
                return self._split(job, task)
        return None

    def _split(self, array: FakeJob, task: int) -> FakeJob:
        """A waiting task as a record of its own; the last one keeps the array's number."""
        left = tuple(other for other in array.waiting_tasks if other != task)
        if not left:
            array.waiting_tasks, array.array_task_id = (), task
            return array
        self.last_job_id += 1
        alone = replace(
            array, job_id=self.last_job_id, array_task_id=task, waiting_tasks=(), signals=[]
        )
        array.waiting_tasks = left
        self.jobs[alone.job_id] = alone
        return alone

    def _schedule(self) -> None:
        waiting = [
            job for job in self.jobs.values() if job.state == "PENDING" and not job.completing
        ]
        for job in sorted(waiting, key=lambda job: (-job.priority, job.job_id)):
            for task in job.waiting_tasks or (None,):
                if job.held or job.eligible_at_s > self.now_s:
                    job.reason = job.reason if job.held else "BeginTime"
                elif self._throttled(job):
                    job.reason = "JobArrayTaskLimit"
                elif (places := self._places(job)) is None:
                    job.reason = "Resources"
                else:
                    self._begin(job if task is None else self._split(job, task), places)
                    continue
                break

    def _throttled(self, job: FakeJob) -> bool:
        running = [
            other
            for other in self.jobs.values()
            if job.array_job_id and other.array_job_id == job.array_job_id and other.on_nodes
        ]
        return bool(job.array_most_at_once) and len(running) >= job.array_most_at_once

    def _places(self, job: FakeJob) -> list[FakeNode] | None:
        """The first nodes that have room, those it requires before others."""
        fitting: list[FakeNode] = []
        for node in sorted(self.nodes, key=lambda node: node.name not in job.required):
            wanted = job.gres_wanted(len(fitting))
            free = self.free(node)
            roomy = all(len(free.get(name, [])) >= count for name, count in wanted.items())
            if roomy and self.free_cpus(node) > 0 and node.name not in job.excluded:
                fitting.append(node)
            elif node.name in job.required:
                return None
            if len(fitting) == max(job.node_count, len(job.required)):
                return fitting
        return None

    def _begin(self, job: FakeJob, places: list[FakeNode]) -> None:
        if any(int(job.left_at_s.get(node.name, 0)) == int(self.now_s) for node in places):
            # slurmd takes a credential of the second in which it revoked one for the revoked one:
            # the job is lost for good.
            job.state, job.ended_at_s, job.reason = "FAILED", self.now_s, "None"
            return
        job.held_gres = {
            node.name: {
                name: self.free(node)[name][:count]
                for name, count in job.gres_wanted(index).items()
                if count
            }
            for index, node in enumerate(places)
        }
        job.nodes = tuple(sorted(node.name for node in places))
        job.state, job.reason, job.started_at_s = "RUNNING", "None", self.now_s

    def _leave_nodes(self, job: FakeJob, *, forget: bool = True) -> None:
        if job.on_nodes and forget:
            job.left_at_s |= dict.fromkeys(job.nodes, self.now_s)
        job.held_gres = {}

    def _complete(self, job: FakeJob) -> None:
        job.completing = True
        takes_s = KILL_WAIT_S if job.stubborn else COMPLETING_S
        self._completing_until_s[job.job_id] = self.now_s + takes_s

    def _completed(self, job: FakeJob) -> None:
        job.completing = False
        if not job.comes_back:
            return
        held, job.comes_back = job.comes_back == "HELD", ""
        job.state, job.nodes, job.started_at_s, job.ended_at_s = "PENDING", (), 0, 0
        job.changed_at_s = job.ran_before_s = 0
        job.submitted_at_s = self.now_s
        # Only now, so that a start given while it completed is forgotten.
        job.eligible_at_s = self.now_s + CRED_EXPIRE_S + 1
        job.priority = 0 if held or job.priority == 0 else job.rank
        job.reason = "JobHeldUser" if held else "BeginTime"

    def _check_gres(self, job: FakeJob) -> None:
        for name, count in job.gres_wanted(0).items():
            most = max(node.gres.get(name, -1) for node in self.nodes)
            if most < 0:
                raise Refused("Invalid generic resource (gres) specification")
            if count > most:
                raise Refused("Requested node configuration is not available")

    def _check_nodes(self, names: tuple[str, ...]) -> None:
        if not set(names) <= {node.name for node in self.nodes}:
            raise Refused("Invalid node name specified")


def _must_run(job: FakeJob) -> None:
    if job.state == "PENDING" or job.comes_back:
        raise Refused("Job is pending execution")
    if not job.on_nodes:
        raise Refused("Job/step already completing or completed")
