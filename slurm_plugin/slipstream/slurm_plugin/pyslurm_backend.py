# SPDX-License-Identifier: Apache-2.0
"""Slurm through pyslurm, where it fits the Slurm that runs: changes to jobs without a process each.

Written against the source of pyslurm 25.11.2. What that version cannot do, or does in a way that
breaks the protocol, goes through the commands, which is everything not overridden here:

- reading jobs: it drops `gres/gpu:2` of --gpus, takes task 0 of an array for no task, and raises on
  a name that is no UTF-8;
- reading nodes: it has no indices of GRES in use;
- signals and cancelling: it reads errno after a call that worked, so an old error looks like a new;
- tasks of arrays and whole arrays: it knows jobs by number only;
- emptying a field, node counts, and GRES in the form of its own release.

Its calls hold Python's global lock until slurmctld answers: not for a daemon with other threads to
serve. Importing it reads slurm.conf, and a broken one ends the process, so nothing here imports it
before the versions are known to fit.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from slipstream.slurm_plugin.classify import classify
from slipstream.slurm_plugin.cli import CliSlurm
from slipstream.slurm_plugin.errors import SlurmError, SlurmParseError
from slipstream.slurm_plugin.identity import TaskId
from slipstream.slurm_plugin.version import parse_version

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slipstream.slurm_plugin.identity import JobRef
    from slipstream.slurm_plugin.requests import JobUpdate
    from slipstream.slurm_plugin.run import CommandRunner
    from slipstream.slurm_plugin.version import Version

_SECONDS_PER_MINUTE: Final = 60
_ONLY_BY_COMMAND: Final = ("gres_per_node", "gres_counts", "node_count", "task_count", "cpus")


@dataclass(frozen=True, slots=True)
class Unavailable:
    """Why pyslurm cannot be used here, as a sentence."""

    reason: str


def find_pyslurm(running: Version) -> Any | Unavailable:  # noqa: ANN401 (pyslurm has no types)
    """The pyslurm module if one is installed for the Slurm that runs."""
    try:
        installed = parse_version(metadata.version("pyslurm"))
    except metadata.PackageNotFoundError:
        return Unavailable("pyslurm is not installed")
    except SlurmParseError as error:
        return Unavailable(f"pyslurm: {error}")
    if installed.release != running.release:
        return Unavailable(f"pyslurm {installed} is not for the Slurm that runs, {running}")
    try:
        return importlib.import_module("pyslurm")
    except ImportError as error:
        return Unavailable(f"pyslurm {installed} cannot be imported: {error}")


class PyslurmSlurm(CliSlurm):
    """The `Slurm` protocol with changes to single jobs made through pyslurm.

    Args:
        pyslurm: the module, from `find_pyslurm`.
        runner: runs the commands for all the rest.
    """

    def __init__(self, pyslurm: Any, runner: CommandRunner | None = None) -> None:  # noqa: ANN401
        super().__init__(runner)
        self._pyslurm = pyslurm

    def suspend(self, job: JobRef) -> None:
        """Stop a running job's processes."""
        self._change(job, "suspend", lambda one: one.suspend(), super().suspend)

    def resume(self, job: JobRef) -> None:
        """Let a suspended job go on."""
        self._change(job, "unsuspend", lambda one: one.unsuspend(), super().resume)

    def requeue(self, job: JobRef) -> None:
        """End a batch job and put it back into the queue."""
        self._change(job, "requeue", lambda one: one.requeue(), super().requeue)

    def requeue_hold(self, job: JobRef) -> None:
        """The same, held."""
        self._change(job, "requeue", lambda one: one.requeue(hold=True), super().requeue_hold)

    def hold(self, job: JobRef) -> None:
        """Keep a pending job from starting."""
        self._change(job, "hold", lambda one: one.hold(), super().hold)

    def release(self, job: JobRef) -> None:
        """Let a held job start again."""
        self._change(job, "release", lambda one: one.release(), super().release)

    def update(self, job: JobRef, change: JobUpdate) -> None:
        """Change a job."""
        wanted = description(change)
        if wanted is None:
            super().update(job, change)
            return
        self._change(
            job,
            "modify",
            lambda one: one.modify(self._pyslurm.JobSubmitDescription(**wanted)),
            lambda ref: super(PyslurmSlurm, self).update(ref, change),
        )

    def _change(
        self,
        job: JobRef,
        verb: str,
        call: Callable[[Any], None],
        by_command: Callable[[JobRef], None],
    ) -> None:
        """Call pyslurm for a plain job, the command for a task or an array."""
        if isinstance(job, TaskId):
            by_command(job)
            return
        try:
            record = self._pyslurm.Job.load(job)  # raises for an unknown job, as commands do
            if record.array_id is None:
                call(record)
                return
        except self._pyslurm.RPCError as error:
            command = ("pyslurm", f"Job({job}).{verb}")
            raise SlurmError(command, str(error), classify(str(error))) from error
        by_command(job)


def description(change: JobUpdate) -> Mapping[str, object] | None:
    """A change as arguments of pyslurm's JobSubmitDescription; None if it cannot be said so."""
    if any(getattr(change, name) is not None for name in _ONLY_BY_COMMAND):
        return None
    limit = change.time_limit_s
    wanted: dict[str, object | None] = {
        "required_nodes": None if change.required_nodes is None else list(change.required_nodes),
        "excluded_nodes": None if change.excluded_nodes is None else list(change.excluded_nodes),
        "begin_time": change.start_at_s,
        "time_limit": -(-limit // _SECONDS_PER_MINUTE) if isinstance(limit, int) else limit,
        "priority": change.priority,
        "comment": change.comment,
        "admin_comment": change.admin_comment,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    # pyslurm takes an empty value for one that is not given, except for the priority.
    return given if all(value or name == "priority" for name, value in given.items()) else None
