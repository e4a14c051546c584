# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the module pyslurm 25.11, which builds only against that release of Slurm.

It has the names and signatures the backend uses, as they are in pyslurm's source, and nothing else:
another attribute is an AttributeError, another argument a TypeError.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__version__ = "25.11.2"


class RPCError(Exception):
    """pyslurm.RPCError: what slurmctld answered, as text."""


@dataclass(kw_only=True)
class JobSubmitDescription:
    """pyslurm.JobSubmitDescription, as far as changes need it."""

    required_nodes: list[str] | None = None
    excluded_nodes: list[str] | None = None
    begin_time: int | str | None = None
    time_limit: int | str | None = None
    priority: int | None = None
    comment: str | None = None
    admin_comment: str | None = None


@dataclass
class Job:
    """pyslurm.Job; what is done to jobs is kept in `done`."""

    id: int
    array_id: int | None = None
    done: list[tuple[object, ...]] = field(default_factory=list, repr=False)

    def suspend(self) -> None:
        """slurm_suspend."""
        self.done.append(("suspend", self.id))

    def unsuspend(self) -> None:
        """slurm_resume."""
        raise RPCError("Job is not suspended")

    def requeue(self, hold: bool = False) -> None:  # noqa: FBT001, FBT002 (pyslurm's signature)
        """slurm_requeue."""
        self.done.append(("requeue", self.id, hold))

    def hold(self, mode: str | None = None) -> None:
        """Priority 0."""
        self.done.append(("hold", self.id, mode))

    def release(self) -> None:
        """Priority unlimited."""
        self.done.append(("release", self.id))

    def modify(self, changes: JobSubmitDescription) -> None:
        """slurm_update_job."""
        self.done.append(("modify", self.id, changes))


class Module:
    """The module: `Job.load` knows plain job 7 and job 12, which is an array."""

    RPCError = RPCError
    JobSubmitDescription = JobSubmitDescription

    def __init__(self) -> None:
        self.done: list[tuple[object, ...]] = []
        self.Job = self

    def load(self, job_id: int) -> Job:
        """pyslurm.Job.load."""
        arrays = {7: None, 12: 12}
        if job_id not in arrays:
            raise RPCError("Invalid job id specified")
        return Job(job_id, arrays[job_id], done=self.done)
