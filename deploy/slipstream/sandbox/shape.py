# SPDX-License-Identifier: Apache-2.0
"""The shape of a sandbox: how many nodes, GPUs, slots, racks and CPUs. Pure data, checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from slipstream.sandbox.errors import SandboxError

LIMITS: Final = {
    "nodes": (1, 64),
    "gpus_per_node": (1, 16),
    "slots_per_gpu": (1, 16),
    "racks": (1, 64),
    "cpus_per_node": (1, 512),
    "node_memory_mib": (256, 8 << 20),
    "gpu_memory_mib": (64, 1 << 20),
    "uplink_mbit": (1, 100_000),
}
UNITS: Final = {"node_memory_mib": " MiB", "gpu_memory_mib": " MiB", "uplink_mbit": " Mbit/s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the cluster looks to Slurm. The machine underneath may be far smaller."""

    nodes: int = 4
    gpus_per_node: int = 4
    slots_per_gpu: int = 3
    racks: int = 2
    cpus_per_node: int = 32
    node_memory_mib: int = 65_536
    gpu_memory_mib: int = 16_384
    uplink_mbit: int = 1_000
    owners_hold_all_cpus: bool = False
    """Each GPU asked for takes its equal part of the CPUs, so that owners leave none to guests."""

    def __post_init__(self) -> None:
        wrong = [sentence for name in LIMITS if (sentence := self._out_of_limits(name))]
        if self.racks > self.nodes:
            wrong.append(
                f"racks is {self.racks} but there are only {self.nodes} nodes to fill them"
            )
        if self.owners_hold_all_cpus and self.cpus_per_node % self.gpus_per_node:
            wrong.append(
                f"owners can hold all CPUs only if cpus_per_node ({self.cpus_per_node}) "
                f"divides evenly among gpus_per_node ({self.gpus_per_node})"
            )
        if wrong:
            raise SandboxError("not a shape a cluster can have: " + "; ".join(wrong))

    def _out_of_limits(self, name: str) -> str | None:
        low, high = LIMITS[name]
        value: int = getattr(self, name)
        if low <= value <= high:
            return None
        return f"{name} is {value}, it must be {low} to {high}{UNITS.get(name, '')}"

    @property
    def node_names(self) -> tuple[str, ...]:
        """n1, n2, … in order."""
        return tuple(f"n{number}" for number in range(1, self.nodes + 1))

    @property
    def rack_nodes(self) -> dict[str, tuple[str, ...]]:
        """Rack name to its nodes: neighbours by number, sizes as equal as can be."""
        names = self.node_names
        edges = [round(rack * self.nodes / self.racks) for rack in range(self.racks + 1)]
        return {
            f"rack{rack + 1}": names[edges[rack] : edges[rack + 1]] for rack in range(self.racks)
        }

    @property
    def slots_per_node(self) -> int:
        """The guests' seats of one node."""
        return self.gpus_per_node * self.slots_per_gpu

    def to_dict(self) -> dict[str, int | bool]:
        """As stored in sandbox.json; `Shape(**stored)` brings it back."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def sentence(self) -> str:
        """For people."""
        return (
            f"{self.nodes} nodes x {self.gpus_per_node} GPUs in {self.racks} rack"
            f"{'s' if self.racks > 1 else ''}, {self.cpus_per_node} CPUs each"
        )
