# SPDX-License-Identifier: Apache-2.0
"""Slurm through its commands: render, run, parse. The default backend."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from slipstream.core.topology import flat
from slipstream.slurm_plugin import render
from slipstream.slurm_plugin.classify import AMBIGUOUS
from slipstream.slurm_plugin.errors import Kind, SlurmError, SlurmParseError
from slipstream.slurm_plugin.parse_jobs import parse_jobs
from slipstream.slurm_plugin.parse_nodes import parse_nodes
from slipstream.slurm_plugin.parse_text import (
    parse_controller_version,
    parse_longest_s,
    parse_pids,
    parse_ping,
    parse_submitted,
)
from slipstream.slurm_plugin.parse_topology import parse_default_topology, parse_topology
from slipstream.slurm_plugin.requests import SignalTo
from slipstream.slurm_plugin.run import SubprocessRunner
from slipstream.slurm_plugin.values import read_document, reported_errors
from slipstream.slurm_plugin.version import parse_version

if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import Signals

    from slipstream.core.topology import Topology
    from slipstream.slurm_plugin.identity import JobRef
    from slipstream.slurm_plugin.records import Job, Node, Process
    from slipstream.slurm_plugin.requests import JobUpdate, Submission
    from slipstream.slurm_plugin.run import CommandRunner, Completed
    from slipstream.slurm_plugin.values import Fields
    from slipstream.slurm_plugin.version import Version

TIMEOUT_S: Final = 20.0
"""A command gives up on a controller that is away after 9 s by itself; that answer is better."""
_Answer = TypeVar("_Answer")
_NO_TOPOLOGY: Final = "No topology information available"
_FIRST_WITH_TOPOLOGIES: Final = (25, 5)
_NAMES_UNKNOWN_JOBS_SO: Final = ("suspend", "resume")


class CliSlurm:
    """The `Slurm` protocol over scontrol, squeue, sinfo, scancel and sbatch.

    Args:
        runner: runs the commands; by default those on the PATH, for the SLURM_CONF in the
            environment.
        timeout_s: after which a command is given up.
    """

    def __init__(self, runner: CommandRunner | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._runner = runner or SubprocessRunner()
        self._timeout_s = timeout_s
        self._version: Version | None = None

    def version(self) -> Version:
        """The version of the installed commands, asked for once."""
        if self._version is None:
            self._version = self._ask(render.VERSION, parse_version)
        return self._version

    def controller_version(self) -> Version:
        """The version slurmctld runs."""
        return self._ask(render.CONFIG, parse_controller_version)

    def ping(self) -> bool:
        """Whether a controller answers."""
        # Its exit code is 1 for a controller that is down: an answer, not a failure.
        return self._understood(self._run(render.PING, check=False), parse_ping)

    def jobs(self) -> tuple[Job, ...]:
        """Every job Slurm remembers."""
        return self._ask_json(render.JOBS, parse_jobs)

    def nodes(self) -> tuple[Node, ...]:
        """Every node."""
        return self._ask_json(render.nodes(self.version()), parse_nodes)

    def longest_s(self, partition: str) -> int | None:
        """The longest time limit a partition allows."""
        return self._ask(render.partition(partition), parse_longest_s)

    def topology(self) -> Topology:
        """Racks and domains; without a topology plugin one rack of all nodes."""
        done = self._run(render.topology(self._default_topology()))
        if done.stderr.strip() and _NO_TOPOLOGY not in done.stderr:
            raise self._error(done)  # the exit code is 0 even if nobody answered
        topology = self._understood(done, parse_topology)
        return topology if topology.groups else flat(node.name for node in self.nodes())

    def submit(self, job: Submission) -> int:
        """Submit a batch job and return its number."""
        return self._understood(self._run(render.submit(job), stdin=job.script), parse_submitted)

    def suspend(self, job: JobRef) -> None:
        """Stop a running job's processes."""
        self._run(render.on_job("suspend", job))

    def resume(self, job: JobRef) -> None:
        """Let a suspended job go on."""
        self._run(render.on_job("resume", job))

    def requeue(self, job: JobRef) -> None:
        """End a batch job and put it back into the queue."""
        self._run(render.on_job("requeue", job))

    def requeue_hold(self, job: JobRef) -> None:
        """The same, held."""
        self._run(render.on_job("requeuehold", job))

    def hold(self, job: JobRef) -> None:
        """Keep a pending job from starting."""
        self._run(render.on_job("hold", job))

    def release(self, job: JobRef) -> None:
        """Let a held job start again."""
        self._run(render.on_job("release", job))

    def update(self, job: JobRef, change: JobUpdate) -> None:
        """Change a job."""
        for argv in render.update(job, change, self.version()):
            self._run(argv)

    def signal(self, job: JobRef, number: Signals, to: SignalTo = SignalTo.STEPS) -> None:
        """Send a signal to a running job's processes."""
        self._run(render.signal(job, number, to))

    def cancel(self, job: JobRef) -> None:
        """End a job."""
        done = self._run(render.cancel(job))
        if "error:" in done.stderr:  # with exit code 0
            error = self._error(done)
            if error.kind is not Kind.ENDED:
                raise error

    def list_pids(self, job_id: int, node: str) -> tuple[Process, ...]:
        """The processes of a job on this node."""
        return self._ask(render.list_pids(job_id, node), parse_pids)

    def _default_topology(self) -> str:
        """The name of the cluster's own topology where there may be several, else ""."""
        if self.version().release < _FIRST_WITH_TOPOLOGIES:
            return ""
        return self._ask(render.TOPOLOGIES, parse_default_topology)

    def _ask(self, argv: render.Argv, parse: Callable[[str], _Answer]) -> _Answer:
        return self._understood(self._run(argv), parse)

    def _ask_json(self, argv: render.Argv, parse: Callable[[Fields], _Answer]) -> _Answer:
        """An answer in JSON; an error that is reported inside it is raised."""
        done = self._run(argv)
        document = self._understood(done, lambda text: read_document(text, argv[0]))
        if said := self._understood(done, lambda _: reported_errors(document)):
            kind = Kind.OTHER if self.ping() else Kind.UNREACHABLE
            raise SlurmError(argv, said, kind, done.exit_code)
        return self._understood(done, lambda _: parse(document))

    def _understood(self, done: Completed, parse: Callable[[str], _Answer]) -> _Answer:
        try:
            return parse(done.stdout)
        except SlurmParseError as error:
            error.command = done.argv
            raise

    def _run(self, argv: render.Argv, *, stdin: str = "", check: bool = True) -> Completed:
        done = self._runner.run(argv, timeout_s=self._timeout_s, stdin=stdin)
        if check and done.exit_code:
            raise self._error(done)
        return done

    def _error(self, done: Completed) -> SlurmError:
        """The error a command ended with; where its text could mean two things, a ping tells."""
        if AMBIGUOUS not in done.said:
            return done.error()
        if not self.ping():
            return done.error(Kind.UNREACHABLE)
        return done.error(Kind.UNKNOWN_JOB if done.argv[1] in _NAMES_UNKNOWN_JOBS_SO else None)
