# SPDX-License-Identifier: Apache-2.0
"""A job as the machine keeps it: its phase, its reason and its story; and which moves are legal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

# At run time too: the journal reads these classes back by their annotations.
from slipstream.core.advice import advice_key
from slipstream.core.reasons import Reason
from slipstream.core.sights import JobSight, Standing
from slipstream.core.story import Line, as_text, told

if TYPE_CHECKING:
    from collections.abc import Mapping


class Phase(StrEnum):
    """Where a job is, for us."""

    SUBMITTED = "submitted"
    """Announced by job_submit; Slurm has not shown it yet."""
    LOST = "lost"
    """Announced and never shown: its submission failed after us."""
    WAITING = "waiting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETING = "completing"
    ENDED = "ended"


# We look at Slurm now and then: between two looks a job may have run, ended and been requeued, so
# that any phase Slurm shows can follow any other. Only we announce a job, once, and only an
# announced job can be lost.
_SHOWN: Final = frozenset(
    {Phase.WAITING, Phase.RUNNING, Phase.SUSPENDED, Phase.COMPLETING, Phase.ENDED}
)
NEXT: Final[Mapping[Phase, frozenset[Phase]]] = {
    Phase.SUBMITTED: _SHOWN | {Phase.LOST},
    Phase.LOST: _SHOWN,
    Phase.WAITING: _SHOWN,
    Phase.RUNNING: _SHOWN,
    Phase.SUSPENDED: _SHOWN,
    Phase.COMPLETING: _SHOWN,
    Phase.ENDED: _SHOWN,
}

PHASE_OF: Final[Mapping[Standing, Phase]] = {
    Standing.WAITING: Phase.WAITING,
    Standing.RUNNING: Phase.RUNNING,
    Standing.SUSPENDED: Phase.SUSPENDED,
    Standing.COMPLETING: Phase.COMPLETING,
    Standing.ENDED: Phase.ENDED,
}


REASON_OF: Final[Mapping[Phase, Reason]] = {
    Phase.SUBMITTED: Reason.NOT_SEEN_YET,
    Phase.LOST: Reason.NEVER_ARRIVED,
    Phase.RUNNING: Reason.RUNNING,
    Phase.SUSPENDED: Reason.SUSPENDED,
    Phase.COMPLETING: Reason.COMPLETING,
    Phase.ENDED: Reason.ENDED,
}
"""Of one that does not wait."""


class IllegalMoveError(Exception):
    """A job cannot go from one phase to another; tells its story."""

    def __init__(self, record: JobRecord, phase: Phase) -> None:
        legal = sorted(str(one) for one in NEXT[record.phase])
        super().__init__(
            f"job {record.key} cannot go from {record.phase} to {phase}, only to {legal}; "
            f"its story: {as_text(record.story)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job, or one task of an array.

    `key` is Slurm's name of it, or `token:…` for one that Slurm has not shown yet.
    """

    key: str
    token: str = ""
    """Empty for a job without our marker."""
    phase: Phase
    reason: Reason
    since_s: float
    """When it came into this phase."""
    sight: JobSight | None = None
    story: tuple[Line, ...] = ()
    said: str = ""
    """The last explanation in the story: what is still true is not told again."""

    @property
    def task(self) -> int | None:
        """Its number in its array."""
        _, _, task = (self.sight.ref if self.sight else "").partition("_")
        return int(task) if task else None

    @property
    def advice_key(self) -> str:
        """What advice for it is known by."""
        return advice_key(self.token, self.task)

    def moved(self, phase: Phase, at_s: float, text: str) -> JobRecord:
        """In another phase; raises if there is no way there."""
        if phase not in NEXT[self.phase]:
            raise IllegalMoveError(self, phase)
        return replace(
            self,
            phase=phase,
            since_s=self.since_s if phase is self.phase else at_s,
            story=told(self.story, at_s, text),
            # What was said of an announced job holds when it arrives; later phases are news.
            said=self.said if self.phase is Phase.SUBMITTED else "",
        )

    def noted(self, at_s: float, text: str) -> JobRecord:
        """With one more line in its story."""
        return replace(self, story=told(self.story, at_s, text), said="")

    def explained(self, reason: Reason, at_s: float, text: str) -> JobRecord:
        """With another reason; told only when it changes."""
        if reason is self.reason and text == self.said:
            return self
        story = self.story if text == self.said else told(self.story, at_s, text)
        return replace(self, reason=reason, story=story, said=text)


def unseen_key(token: str) -> str:
    """The key of a job that Slurm has not shown yet."""
    return f"token:{token}"


def seen_as(sight: JobSight) -> str:
    """Where Slurm has a job, for its story."""
    where = f" on {','.join(sight.nodes)}" if sight.nodes else ""
    return f"{sight.standing} as job {sight.ref}{where}"
