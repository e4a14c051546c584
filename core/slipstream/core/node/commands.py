# SPDX-License-Identifier: Apache-2.0
"""What the node is to do, in the imperative. Carrying one out twice is the same as once.

All of them end in the control blocks of a job's processes (docs/architecture.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from slipstream.core.node.reasons import NodeReason  # noqa: TC001 (read back by annotations)


@dataclass(frozen=True, slots=True)
class SetShare:
    """Let a job use so much of its GPUs' time; 100 is no limit, 0 is none of it."""

    job_id: int
    share_pct: int
    reason: NodeReason


@dataclass(frozen=True, slots=True)
class SetCap:
    """Let a job hold so much memory on each of its GPUs; 0 is no cap.

    `at_once`: it should not wait for a boundary that a throttled job may be far from.
    """

    job_id: int
    cap_mib: int
    reason: NodeReason
    at_once: bool = False


@dataclass(frozen=True, slots=True)
class Park:
    """Empty its GPUs at the boundary; `gang` are the nodes that must do so in step."""

    job_id: int
    reason: NodeReason
    gang: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hold:
    """Begin no further device operation; the memory stays where it is.

    A job that comes to a boundary all the same parks there. For jobs that reach no boundary.
    """

    job_id: int
    reason: NodeReason
    gang: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Return:
    """Come back onto its GPUs and stand still there: its turn is next."""

    job_id: int
    reason: NodeReason
    gang: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Unpark:
    """It may come back."""

    job_id: int
    reason: NodeReason
    gang: tuple[str, ...] = ()


NodeCommand: TypeAlias = SetShare | SetCap | Park | Hold | Return | Unpark
