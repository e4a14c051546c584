# SPDX-License-Identifier: Apache-2.0
"""Where a shared job is in its turns; who turns the wheel is in `wheel`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from slipstream.core.node.reasons import NodeReason

if TYPE_CHECKING:
    from slipstream.core.node.events import NodeJob


class Turn(StrEnum):
    """Where a job is in its turns."""

    WAITING = "waiting"
    """Off the GPU: parked, or held before its first use of it."""
    RUNNING = "running"
    PARKING = "parking"
    """Asked to leave, and not gone yet."""


@dataclass(slots=True)
class Member:
    """A shared job on the wheel."""

    job: NodeJob
    turn: Turn
    ready: bool
    """Whether it would use the GPU now: it has loaded."""
    is_starting: bool = False
    """Whether it is surely not on the GPU yet: who is ready need not wait for it."""
    why_turns: NodeReason = NodeReason.WAITS_FOR_TURN
    """What it is told while another has its turn."""
    reason: NodeReason = NodeReason.TURN
    served_s: float = 0.0
    charged_at_s: float = 0.0
    ends_at_s: float = 0.0
    """When its turn ends, or when it must have parked."""
    asked_at_s: float = 0.0
    late_s: float = 0.0
    """What its last turn was too long: the next one is so much shorter, and charged in full."""
    began_at_s: float = 0.0
    """Its last turn: of those who had the same, whoever waits longest is next."""
    minibatches: int = 0
    is_new: bool = True
    is_kept: bool = False
    """This turn is not cut short for a new job."""
    called: bool = False
    """By the node that leads it: it runs,"""
    called_back: bool = False
    """or is next, and should be there by then."""
    ordered_away: bool = False
    """By an operator."""
    told_to_park: bool = False
    returns: bool = False
    """It was told to come back before its turn,"""
    is_back: bool = False
    """and is there, standing still."""
    has_stopped: bool = False
    """Asked to park, it has done its last mini-batch; its memory may still be on its way."""
    next_is_called: bool = False
    """Who comes after this turn has been seen to."""
    can_hold: bool = False
    """Whether it can be stopped at its next device operation."""
    quiet_since_s: float | None = None
    boundary_at_s: float = 0.0
    minibatch_s: float = 0.0
    """How long its last ones took, in one turn."""
    rests: bool = False
    """It does not use the GPU in its turn, and another job could."""
    holding: bool = False
    """It was told to begin no further device operation,"""
    is_held: bool = False
    """and has none: its memory is on the GPU, and the turn is another's."""
    wants_gpu: bool = True
    """False: it is held, and has not come to a device operation since."""
    hold_failed: bool = False
    """It was told to, and never did: it is not told again."""
    no_room: bool = False
    """It is late, and goes on because nobody who waits fits beside its memory."""
    since: int = 0
    """In which order they came: a node may see job numbers in any."""

    @property
    def is_out(self) -> bool:
        """Whether it takes no turns for now; of a gang the node that leads decides that, too."""
        return self.ordered_away and self.job.leads

    @property
    def may_be_held(self) -> bool:
        """Whether it can be stopped without a boundary.

        Never across nodes: its ranks there would wait for it in a collective, which has a time
        limit.
        """
        return self.can_hold and not self.hold_failed and not self.job.gang

    def idle_from_s(self) -> float | None:
        """Since when it has neither used the GPU in its turn nor reached a boundary."""
        if self.quiet_since_s is None:
            return None
        return max(self.quiet_since_s, self.boundary_at_s, self.began_at_s)

    @property
    def had(self) -> float:
        """What it had for its weight: whoever has least is next."""
        return self.served_s / self.job.weight
