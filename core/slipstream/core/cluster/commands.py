# SPDX-License-Identifier: Apache-2.0
"""What is to be done with a job, in the imperative. docs/policies.md says what Slurm does for each.

Carrying one out twice must be the same as once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

# At run time too: the journal reads these classes back by their annotations.
from slipstream.core.classes import Role  # noqa: TC001 (read back by annotations)
from slipstream.core.cluster.asks import Place  # noqa: TC001 (read back by annotations)


@dataclass(frozen=True, slots=True)
class Start:
    """Start a waiting job on these GPUs: advice for its nodes, seats on its nodes' GPUs.

    Jobs on one GPU with different `turn`s alternate there; with the same they run together.
    """

    ref: str
    places: tuple[Place, ...]
    role: Role
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Park:
    """End a job's turn at its next boundary; its state stays in the memory of its nodes."""

    ref: str


@dataclass(frozen=True, slots=True)
class Unpark:
    """Give a parked job the GPUs it left."""

    ref: str
    role: Role


@dataclass(frozen=True, slots=True)
class Move:
    """Checkpoint a running or parked job and restore it on these GPUs."""

    ref: str
    places: tuple[Place, ...]
    role: Role
    turn: int = 0


@dataclass(frozen=True, slots=True)
class Resize:
    """Let an elastic job go on with these GPUs instead of the ones it has."""

    ref: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Upgrade:
    """Make a guest the owner of the GPUs it sits on."""

    ref: str


@dataclass(frozen=True, slots=True)
class Downgrade:
    """Make an owner the guest of another on the GPUs it sits on."""

    ref: str


ClusterCommand: TypeAlias = Start | Park | Unpark | Move | Resize | Upgrade | Downgrade
