# SPDX-License-Identifier: Apache-2.0
"""What the contract suite is run on: the fake, or a real cluster, behind the same few handles.

A bench gives a `Slurm`, lets time pass, and shows what no `Slurm` can: the process of a job and the
signals that reached it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from fakes.slurm_cluster import FakeCluster, FakeNode
from fakes.slurm_commands import FakeCommands, fake_pid
from slipstream.slurm_plugin import CliSlurm

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slipstream.sandbox import Sandbox, Shape
    from slipstream.slurm_plugin import Slurm

_Seen = TypeVar("_Seen")

STUBBORN = "#!/bin/bash\ntrap '' TERM\nsleep 1000\n"
"""A script that ends only when it is killed, so that its job completes for seconds."""


class Bench(Protocol):
    """One cluster to try the protocol on; empty when a test begins."""

    slurm: Slurm
    shape: Shape
    script: str
    """Runs until it is ended, and notes its process and the signals it gets."""

    def wait(self, seconds: float) -> None:
        """Let time pass."""

    def pid_of(self, job_id: int) -> int:
        """The process of the job's batch script."""

    def signals_of(self, job_id: int) -> list[str]:
        """The signals that have reached its batch script."""

    def stop_controller(self) -> None:
        """Kill slurmctld."""

    def start_controller(self) -> None:
        """Bring it back."""


def eventually(bench: Bench, seen: Callable[[], _Seen | None], within_s: float = 20.0) -> _Seen:
    """What `seen` answers as soon as it is not None, False or empty."""
    waited_s = 0.0
    while not (found := seen()):
        if waited_s > within_s:
            raise AssertionError(f"not seen within {within_s} s; jobs: {_short(bench)}")
        bench.wait(0.1)
        waited_s += 0.1
    return found


def _short(bench: Bench) -> list[str]:
    jobs = [job for job in bench.slurm.jobs() if not job.state.ended]
    return [f"{job.ref} {job.state}|{job.flags} {job.reason} {job.nodes}" for job in jobs]


@dataclass
class FakeBench:
    """The fake, with virtual time."""

    shape: Shape
    script: str = "#!/bin/bash\n"

    def __post_init__(self) -> None:
        shape = self.shape
        gres = {"gpu": shape.gpus_per_node, "slot": shape.slots_per_node}
        nodes = [FakeNode(name, shape.cpus_per_node, gres) for name in shape.node_names]
        self.cluster = FakeCluster(nodes, dict(shape.rack_nodes))
        self.commands = FakeCommands(self.cluster)
        self.slurm: Slurm = CliSlurm(self.commands)

    def wait(self, seconds: float) -> None:
        """Nobody waits for virtual time."""
        self.cluster.advance(seconds)

    def pid_of(self, job_id: int) -> int:
        """By rule."""
        return fake_pid(job_id)

    def signals_of(self, job_id: int) -> list[str]:
        """As the fake has noted them."""
        return self.cluster.jobs[job_id].signals

    def stop_controller(self) -> None:
        """It answers no more."""
        self.cluster.up = False

    def start_controller(self) -> None:
        """It answers again."""
        self.cluster.up = True


_SCRIPT = """#!/bin/bash
trap 'echo USR1 >> {folder}/signals.$SLURM_JOB_ID' USR1
echo $$ > {folder}/pid.$SLURM_JOB_ID
while :; do sleep 1000 & wait $!; done
"""


@dataclass
class RealBench:
    """A real cluster: a sandbox of this repository."""

    sandbox: Sandbox
    shape: Shape
    slurm: Slurm
    folder: Path

    def __post_init__(self) -> None:
        self.script = _SCRIPT.format(folder=self.folder)

    def wait(self, seconds: float) -> None:
        """Real time."""
        time.sleep(seconds)

    def pid_of(self, job_id: int) -> int:
        """As the script has noted it."""
        noted = self.folder / f"pid.{job_id}"
        return int(eventually(self, lambda: noted.read_text() if noted.exists() else ""))

    def signals_of(self, job_id: int) -> list[str]:
        """As the script has noted them."""
        noted = self.folder / f"signals.{job_id}"
        return noted.read_text().split() if noted.exists() else []

    def stop_controller(self) -> None:
        """The hard way."""
        self.sandbox.kill("slurmctld")

    def start_controller(self) -> None:
        """Its keeper starts it again."""
        self.sandbox.revive()
        eventually(self, self.slurm.ping)
        eventually(self, lambda: all(node.takes_jobs for node in self.slurm.nodes()))
