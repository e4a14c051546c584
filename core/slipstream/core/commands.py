# SPDX-License-Identifier: Apache-2.0
"""What is to be done, in the imperative. Each can be carried out: see docs/architecture.md.

Carrying one out twice must be the same as once: after a crash it may be.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

# At run time too: the journal reads these classes back by their annotations.
from slipstream.core.advice import Advice  # noqa: TC001 (read back by annotations)
from slipstream.core.classes import JobClass, Role  # noqa: TC001 (read back by annotations)


@dataclass(frozen=True, slots=True)
class Admit:
    """Take a submitted job in, and tell its user `message`."""

    token: str
    job_class: JobClass
    role: Role
    message: str


@dataclass(frozen=True, slots=True)
class Advise:
    """Put this advice on the board, in place of any other for the same token."""

    advice: Advice

    @property
    def token(self) -> str:
        """Whose job it is about."""
        return self.advice.token

    @property
    def task(self) -> int | None:
        """Which task of an array."""
        return self.advice.task


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Take the advice for this token, or for one task of an array with it, off the board."""

    token: str
    task: int | None = None


class Arrival(StrEnum):
    """How an admission ended."""

    SEEN = "seen"
    """Slurm has the job."""
    LOST = "lost"
    """It never came: refused after us, or Slurm went down over it."""


@dataclass(frozen=True, slots=True)
class Settle:
    """Close the admission of this token in the journal."""

    token: str
    arrival: Arrival
    ref: str = ""


@dataclass(frozen=True, slots=True)
class Save:
    """Have a node save a job and carry that to the shared filesystem; `number` fences the move."""

    token: str
    job_id: str
    node: str
    number: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Have the nodes that a saved job moves to fetch it ahead; nothing depends on it."""

    token: str
    job_id: str
    nodes: tuple[str, ...]
    uid: int
    number: int
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Requeue:
    """Put a running job back into Slurm's queue: it was saved."""

    token: str
    key: str
    number: int
    submitted_at_s: int = 0
    """Which of its runs was saved: each requeue is a new submission to Slurm. 0: not known."""


@dataclass(frozen=True, slots=True)
class Start:
    """Let a requeued job start now, on these nodes and on no others.

    By advice alone another node could be quicker, and the one it left is the worst of all.
    """

    token: str
    key: str
    number: int
    nodes: tuple[str, ...]
    gpus: int = 0
    """Of each node, if it owns them from now on instead of sitting beside others."""
    size: int = 0
    """GPUs of each node, if it goes on with another number of them."""
    at_once: bool = True
    """False: on the node that it left. When it starts there is Slurm's to say."""


@dataclass(frozen=True, slots=True)
class Resize:
    """Let a waiting job ask for so many GPUs of each node; nothing else of it is changed."""

    token: str
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class MakeGuest:
    """Let a waiting job ask for guest seats in place of GPUs, so many on each node."""

    token: str
    key: str
    seats: int


@dataclass(frozen=True, slots=True)
class Extend:
    """Give a running job this time limit, if that is more than it has: it waited for others."""

    token: str
    key: str
    run: int
    """When Slurm took it for submitted: a requeued job's clock begins anew."""
    limit_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Upgrade:
    """Have a placeholder hold GPUs of a guest's node, in the guest's place in Slurm's order."""

    token: str
    number: str
    """The guest, as its node knows it."""
    node: str
    gpus: int
    partition: str = ""
    priority: int = 0
    ends_at_s: int | None = None
    """When the guest's limit ends it; None: never."""


@dataclass(frozen=True, slots=True)
class GiveBack:
    """End a placeholder: the guest is gone, or a guest again."""

    token: str
    key: str
    """Of the placeholder."""


Command: TypeAlias = (
    Admit
    | Advise
    | Withdraw
    | Settle
    | Save
    | Prepare
    | Requeue
    | Start
    | Resize
    | MakeGuest
    | Extend
    | Upgrade
    | GiveBack
)
