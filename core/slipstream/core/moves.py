# SPDX-License-Identifier: Apache-2.0
"""A move of a job to other nodes or to another size, as the machine keeps it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Stage(StrEnum):
    """How far a move has come."""

    SAVING = "saving"
    LEAVING = "leaving"
    PLACING = "placing"
    RESTORING = "restoring"


PATIENCE_S: Final[Mapping[Stage, float]] = {
    Stage.SAVING: 90.0,
    Stage.LEAVING: 60.0,
    Stage.PLACING: 60.0,
    Stage.RESTORING: 180.0,
}
CRED_EXPIRE_S: Final = 180.0
"""What Slurm makes a requeued job wait (`cred_expire` and a second: 121 s by default), and more.
On another node it need not; on the one it left it must, or slurmd may take its new credential for
the one it has revoked, and the job is lost."""


LOST: Final = "JobLaunchFailure"
"""What Slurm says of a job whose processes are gone when its controller, back from its death, looks
for them: so of one that it was asked to requeue and has forgotten to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saga:
    """One move under way. `number` fences it: what is told of an earlier one does not count."""

    key: str
    token: str
    job_id: str
    """What its node knows it by."""
    number: int
    origin: tuple[str, ...]
    target: tuple[str, ...]
    gpus: int = 0
    """Of each node, if it is to own them there: an upgrade."""
    size: int = 0
    """GPUs it goes on with, if that is another number than before."""
    was: int = 0
    """GPUs it had before."""
    forced: bool = False
    """An operator wants it."""
    stage: Stage = Stage.SAVING
    asked_at_s: float
    since_s: float
    submitted_at_s: int = 0
    """The run of it that is moved: Slurm takes a requeue for a new submission."""
    starts: int = 0
    """How often it was told to start on its new nodes."""
    gone: bool = False
    """Slurm has shown that it leaves."""
    forgotten: bool = False
    """Slurm shows the run again that had left: its controller died before it wrote that down."""
    lost: bool = False
    """It has even taken that for a failure of the job: it was requeued once more."""

    @property
    def stays_here(self) -> bool:
        """Whether it goes on on the node that it leaves, as soon as Slurm lets it."""
        return self.target == self.origin

    @property
    def grows(self) -> bool:
        """Whether it will hold more than it does."""
        return self.size > self.was > 0

    def at(self, stage: Stage, at_s: float) -> Saga:
        """In the next stage."""
        return replace(self, stage=stage, since_s=at_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """When a job last left nodes by a move of ours, so that it is left alone for a while.

    Also of one that was to leave and could not: its next move has another number.
    """

    number: int
    at_s: float | None = None
    """None: it has not left yet."""
    nodes: tuple[str, ...] = ()
    tried_at_s: float = 0.0
    """When it was last to leave, by anybody's wish: to be saved costs a training time."""
