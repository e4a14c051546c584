# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster: its nodes, and what a disturbance costs a job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.core.cluster.events import NodeCame
from slipstream.simulator.measured import GPU_MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.simulator.traces import TraceJob


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes with GPUs, as policies are told of them."""

    nodes: tuple[NodeCame, ...]

    @property
    def gpus(self) -> int:
        """In all."""
        return sum(node.gpus for node in self.nodes)

    @property
    def largest(self) -> int:
        """GPUs of the largest node."""
        return max((node.gpus for node in self.nodes), default=0)

    def holds(self, gpus: int) -> bool:
        """Whether a job finds its GPUs here once all others have left: whole nodes and a rest."""
        if not self.nodes:
            return False
        whole, rest = divmod(gpus, self.largest)
        sizes = sorted((node.gpus for node in self.nodes), reverse=True)
        wanted = [self.largest] * whole + [rest] * (rest > 0)
        return len(wanted) <= len(sizes) and all(map(int.__le__, wanted, sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of its own progress that a job loses; docs/simulator.md says where from."""

    unpark_s: float = 1.0
    """To be parked and come back on the same GPUs (bench park; Gandiva: 0.1 to 1 s)."""
    move_s: float = 30.0
    """To be checkpointed and restored elsewhere, or requeued (bench checkpoint and sandbox)."""
    parked_per_gpu: int = 3
    """What a node's memory keeps parked, Gandiva's height of 4 with the one that runs. Who is
    parked beyond that is written out: it comes back as from a move."""
    turn_loss: float = 0.02
    """The part of a GPU's time that alternating costs (Gandiva: at most 2 % at 60 s)."""


def equal(nodes: int, gpus_per_node: int = 8) -> Shape:
    """So many nodes with so many GPUs each."""
    digits = len(str(nodes))
    return Shape(
        tuple(node(f"n{at:0{digits}}", gpus_per_node) for at in range(nodes)),
    )


def node(name: str, gpus: int, gpu_mib: int = GPU_MIB) -> NodeCame:
    """One of them."""
    return NodeCame(at_s=0.0, node=name, gpus=gpus, memory_mib=gpu_mib)


def sized(trace: Sequence[TraceJob], load_pct: float, gpus_per_node: int = 8) -> Shape:
    """A cluster that this load would keep busy from the first submission to the last."""
    span_s = trace[-1].submitted_at_s - trace[0].submitted_at_s
    work = sum(job.gpus * job.run_s for job in trace)
    gpus = work / max(span_s, 1.0) * 100.0 / load_pct
    widest = max(job.gpus for job in trace)
    return equal(math.ceil(max(gpus, widest) / gpus_per_node), gpus_per_node)
