# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster: equal nodes in racks, and what a disturbance costs a job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.core.cluster.events import NodeCame
from slipstream.simulator.measured import GPU_MIB

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.simulator.traces import TraceJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """So many nodes with so many GPUs each."""

    nodes: int
    gpus_per_node: int = 8
    nodes_per_rack: int = 16
    gpu_mib: int = GPU_MIB

    @property
    def gpus(self) -> int:
        """In all."""
        return self.nodes * self.gpus_per_node

    def came(self) -> list[NodeCame]:
        """The events that tell a policy of the cluster."""
        digits = len(str(self.nodes))
        return [
            NodeCame(
                at_s=0.0,
                node=f"n{at:0{digits}}",
                gpus=self.gpus_per_node,
                memory_mib=self.gpu_mib,
                rack=f"r{at // self.nodes_per_rack}",
            )
            for at in range(self.nodes)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of its own progress that a job loses; docs/simulator.md says where from."""

    unpark_s: float = 1.0
    """To be parked and come back on the same GPUs (bench park; Gandiva: 0.1 to 1 s)."""
    move_s: float = 30.0
    """To be checkpointed and restored elsewhere, or requeued (bench checkpoint and sandbox)."""
    turn_loss: float = 0.02
    """The part of a GPU's time that alternating costs (Gandiva: at most 2 % at 60 s)."""


def sized(trace: Sequence[TraceJob], load_pct: float, gpus_per_node: int = 8) -> Shape:
    """A cluster that this load would keep busy from the first submission to the last."""
    span_s = trace[-1].submitted_at_s - trace[0].submitted_at_s
    work = sum(job.gpus * job.run_s for job in trace)
    gpus = work / max(span_s, 1.0) * 100.0 / load_pct
    widest = max(job.gpus for job in trace)
    return Shape(nodes=math.ceil(max(gpus, widest) / gpus_per_node), gpus_per_node=gpus_per_node)
