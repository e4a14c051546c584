# SPDX-License-Identifier: Apache-2.0
"""What the cluster did hour by hour, and what more it could have done (`report --cluster`). Pure.

Sums of seconds over what was seen, sampled every few seconds; a week of hours at most.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from slipstream.core.reasons import Reason
from slipstream.core.records import Phase
from slipstream.core.seats import holders

if TYPE_CHECKING:
    from slipstream.core.state import State

HOURS: Final = 168
_HOUR_S: Final = 3600.0
_LONGEST_STEP_S: Final = 30.0
"""Between two samples: what lies in a longer gap nobody has seen."""
_WAITS: Final = (Phase.WAITING, Phase.SUBMITTED)
_HAS_A_PLACE: Final = (Reason.WOULD_ADVISE, Reason.ADVISED)


@dataclass(slots=True)
class Hour:
    """One; GPUs and jobs times seconds."""

    began_s: float
    seen_s: float = 0.0
    gpu_s: float = 0.0
    owned_s: float = 0.0
    reported_s: float = 0.0
    """GPUs that a coordinator told of."""
    used_s: float = 0.0
    """Of those, their use."""
    owned_idle_s: float = 0.0
    """Of those with an owner, what was not used."""
    guest_s: float = 0.0
    waiting_s: float = 0.0
    """Jobs with our flags that waited."""
    placeable_s: float = 0.0
    """Of those, while a place was chosen for them, or would have been."""


class Ledger:
    """The last hours."""

    def __init__(self) -> None:
        self._hours: deque[Hour] = deque(maxlen=HOURS)
        self._last_s: float | None = None

    def sample(self, state: State, at_s: float) -> None:
        """The cluster is like this now, and was since the last time."""
        last_s, self._last_s = self._last_s, at_s
        if last_s is None or not 0 < at_s - last_s <= _LONGEST_STEP_S:
            return
        hour, step_s = self._hour(at_s), at_s - last_s
        nodes = [node for node in state.nodes.values() if node.takes_jobs]
        uses = [gpu.use_pct / 100 for one in state.reports.values() for gpu in one.gpus]
        held = holders(state.jobs.values(), state.upgrades)
        idle = [
            1 - min(1.0, gpu.use_pct / 100)
            for name, report in state.reports.items()
            for gpu in report.gpus
            if gpu.owner_job or (name, gpu.index) in held
        ]
        waits = [one for one in state.jobs.values() if one.token and one.phase in _WAITS]
        hour.seen_s += step_s
        hour.gpu_s += step_s * sum(node.gpus for node in nodes)
        hour.owned_s += step_s * sum(node.gpus_used for node in nodes)
        hour.guest_s += step_s * sum(node.slots_used for node in nodes)
        hour.reported_s += step_s * len(uses)
        hour.used_s += step_s * sum(uses)
        hour.owned_idle_s += step_s * sum(idle)
        hour.waiting_s += step_s * len(waits)
        hour.placeable_s += step_s * sum(one.reason in _HAS_A_PLACE for one in waits)

    def told(self) -> list[dict[str, Any]]:
        """The oldest first."""
        return [asdict(one) for one in self._hours]

    def _hour(self, at_s: float) -> Hour:
        began_s = at_s - at_s % _HOUR_S
        if not self._hours or self._hours[-1].began_s != began_s:
            self._hours.append(Hour(began_s))
        return self._hours[-1]
