# SPDX-License-Identifier: Apache-2.0
"""What the cluster's policies know of a job when it comes. Nobody says how long it will run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

# At run time too: the journal reads these classes back by their annotations.
from slipstream.core.classes import JobClass, Role

Place: TypeAlias = tuple[str, int]
"""A GPU: its node and its index there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One job as its user and the estimator describe it."""

    ref: str
    tenant: str
    gpus: int
    submitted_at_s: float
    job_class: JobClass = JobClass.GUARANTEED
    priority: int = 0
    """Slurm's: it orders the jobs of one tenant."""
    weight: int = 1
    """`--slip-weight`: how many times as much service counts as little for it."""
    use_pct: float = 100.0
    """Predicted use of each of its GPUs."""
    memory_mib: int = 0
    """Predicted peak on each of its GPUs."""
    family: str = ""
    """Jobs of one family train alike: what was measured of one is believed of the others."""
    limit_s: float | None = None
    elastic_max: int = 0
    """With how many GPUs it may run at most; 0: only with what it asked for."""
    restorable: bool = True
    """Whether it can be moved without losing a mini-batch."""
    shares: bool = True
    """False: no guests on its GPUs."""
    role: Role | None = None
    """What it holds of Slurm, which its seat cannot change; None: as the seat has it."""
    nodes: int = 0
    """On how many nodes, with equally many GPUs on each; 0: on as few as can be."""
    on: frozenset[str] | None = None
    """The nodes that have room for it but for the GPUs; None: all."""
    before: tuple[str, ...] = ()
    """The nodes it was given before: kept while they do."""
    mbps: float | None = None
    """What each of its nodes sends, if that is known."""
    servers: bool = False
    """Whether a parameter server is among its tasks."""

    @property
    def each(self) -> int:
        """GPUs on each of its nodes, where their number is settled."""
        return -(-self.gpus // max(1, self.nodes))
