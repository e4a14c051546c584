# SPDX-License-Identifier: Apache-2.0
"""What a sandbox is doing: its daemons, its nodes as Slurm sees them, its GPUs as NVML does."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from slipstream.sandbox import nvml_probe
from slipstream.sandbox.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.sandbox.nvml_probe import GpuSample
    from slipstream.sandbox.sandbox import Sandbox

_HEALTHY_STATES = frozenset({"idle", "mixed", "allocated", "completing"})


@dataclass(frozen=True, slots=True)
class DaemonStatus:
    """One daemon and whether it lives."""

    name: str
    pid: int
    alive: bool


@dataclass(frozen=True, slots=True)
class Status:
    """A sandbox at one moment; no daemons means it is not up."""

    name: str
    daemons: tuple[DaemonStatus, ...] = ()
    node_states: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[GpuSample, ...] = ()
    error: str = ""

    @property
    def well(self) -> bool:
        """Every daemon lives and every node can take jobs."""
        return (
            bool(self.daemons)
            and not self.error
            and all(daemon.alive for daemon in self.daemons)
            and all(state in _HEALTHY_STATES for state in self.node_states.values())
        )

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return {**asdict(self), "well": self.well}


def status_of(sandbox: Sandbox) -> Status:
    """Look at everything once."""
    name = sandbox.layout.name
    if not sandbox.is_up:
        return Status(name)
    daemons = tuple(
        DaemonStatus(daemon, process.pid, process.alive)
        for daemon, process in sandbox.daemons().items()
    )
    try:
        states = _node_states(sandbox)
    except SandboxError as error:
        return Status(name, daemons, error=str(error))
    return Status(name, daemons, states, sample_gpus(sandbox))


def sample_gpus(sandbox: Sandbox) -> tuple[GpuSample, ...]:
    """Every GPU of every node, once."""
    nodes = sandbox.plan().shape.node_names
    probes = [nvml_probe.probe(node, sandbox.node_environment(node)) for node in nodes]
    lines = [probe.communicate()[0] for probe in probes]
    return tuple(sample for line in lines if line for sample in nvml_probe.read(line))


def _node_states(sandbox: Sandbox) -> dict[str, str]:
    done = sandbox.run("sinfo", "-h", "-N", "-o", "%N %T")
    return dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
