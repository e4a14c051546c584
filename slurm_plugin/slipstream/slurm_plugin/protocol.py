# SPDX-License-Identifier: Apache-2.0
"""Slurm as the rest of Slipstream sees it: one protocol, whatever carries it out.

Every method is one request: no state is kept between two, nothing is retried, and no job is looked
up first to see whether the request makes sense. What Slurm refuses is a `SlurmError`; its `kind`
says what to do. Traps that a caller must know are in the docstrings, `obstacles` has them as code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from slipstream.slurm_plugin.requests import SignalTo

if TYPE_CHECKING:
    from signal import Signals

    from slipstream.core.topology import Topology
    from slipstream.slurm_plugin.identity import JobRef
    from slipstream.slurm_plugin.records import Job, Node, Process
    from slipstream.slurm_plugin.requests import JobUpdate, Submission
    from slipstream.slurm_plugin.version import Version


class Slurm(Protocol):
    """One Slurm cluster.

    All methods raise `SlurmError`. Where `kind` is TIMED_OUT the request may have been carried out:
    look before you ask again. An array's own number stands for all its tasks, `Job.ref` for one.
    """

    def version(self) -> Version:
        """The version of the installed Slurm; needs no controller."""
        ...

    def ping(self) -> bool:
        """Whether a controller answers. Takes milliseconds, up or down; never raises for it."""
        ...

    def jobs(self) -> tuple[Job, ...]:
        """Every job Slurm remembers, those that ended within MinJobAge too."""
        ...

    def nodes(self) -> tuple[Node, ...]:
        """Every node. 22.05 tells which GPUs are in use only where they have a type."""
        ...

    def longest_s(self, partition: str) -> int | None:
        """The longest time limit a partition allows; None: any."""
        ...

    def topology(self) -> Topology:
        """Racks and domains; one rack of all nodes on a cluster without a topology plugin."""
        ...

    def submit(self, job: Submission) -> int:
        """Submit a batch job and return its number."""
        ...

    def suspend(self, job: JobRef) -> None:
        """Stop a running job's processes; its memory and GRES stay its own.

        Its priority becomes 0, so that a requeue from here leaves it held. Suspending a suspended
        job is no error. Operators and root only.
        """
        ...

    def resume(self, job: JobRef) -> None:
        """Let a suspended job go on; WRONG_STATE if it was not suspended."""
        ...

    def requeue(self, job: JobRef) -> None:
        """End a batch job and put it back into the queue.

        It completes first, then it is pending and not eligible for cred_expire and a second. To
        start it elsewhere at once, wait until it completes no more, then update `start_at_s`: a
        start given before is forgotten. The node it left must not get it back within the second it
        left in: slurmd would take the new credential for the revoked one, and the job is lost.

        Not guarded: a job that has ended within MinJobAge starts again too; one that completes must
        not be requeued; a suspended one ends up held.
        """
        ...

    def requeue_hold(self, job: JobRef) -> None:
        """The same, and it stays in the queue until it is released."""
        ...

    def hold(self, job: JobRef) -> None:
        """Keep a pending job from starting; as an operator, so that its user cannot release it.

        Accepted for a running job as well: it runs on and will be held if it is requeued.
        """
        ...

    def release(self, job: JobRef) -> None:
        """Let a held job start again; no error if it was not held."""
        ...

    def update(self, job: JobRef, change: JobUpdate) -> None:
        """Change a job: all of `change` or nothing, but see `JobUpdate` about GRES."""
        ...

    def signal(self, job: JobRef, number: Signals, to: SignalTo = SignalTo.STEPS) -> None:
        """Send a signal to a running job's processes.

        scancel waits for a job that is not running to become so, for minutes: a signal to a pending
        job ends as TIMED_OUT here. A suspended job's signal is BUSY or waits for its resume.
        """
        ...

    def cancel(self, job: JobRef) -> None:
        """End a job, or take it out of the queue; no error if it has ended by itself."""
        ...

    def list_pids(self, job_id: int, node: str) -> tuple[Process, ...]:
        """The processes of a job on the node this runs on.

        By the job's own number, also for an array task. NOT_ON_NODE if it has none there.
        """
        ...
