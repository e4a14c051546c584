# SPDX-License-Identifier: Apache-2.0
"""What the cluster did hour by hour, and what more it could have done (`report --cluster`). Pure.

Sums of seconds over what was seen, sampled every few seconds; a week of hours at most. Two answers
to what could have been: of jobs with our flags, what was decided about them; of all jobs in line
for GPUs, the `shadow` of what would be if they had asked for guests' seats.
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, Final

from slipstream.core.reasons import Reason
from slipstream.core.records import Phase
from slipstream.core.seats import holders
from slipstream.scheduler.dashboard.shadow import Sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slipstream.core.state import State

HOURS: Final = 168
_HOUR_S: Final = 3600.0
_LONGEST_STEP_S: Final = 30.0
"""Between two samples: what lies in a longer gap nobody has seen."""
_WAITS: Final = (Phase.WAITING, Phase.SUBMITTED)
_NOBODY: Final = Sample()
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
    line_s: float = 0.0
    """Jobs in line for GPUs, with our flags or without."""
    seated_s: float = 0.0
    """Of those, while there would have been a guest's seat for them."""
    without_cpu_s: float = 0.0
    """Of those, while there would have been one but for a CPU."""
    work_s: float = 0.0
    """What they would have done on those seats, in what owners left idle."""
    began_jobs: float = 0.0
    sooner_jobs: float = 0.0
    """Of those that began, who would have begun sooner; and by how much, all together."""
    sooner_s: float = 0.0


class Ledger:
    """The last hours."""

    def __init__(self) -> None:
        self._hours: deque[Hour] = deque(maxlen=HOURS)
        self._last_s: float | None = None

    def sample(self, state: State, at_s: float, would: Sample = _NOBODY) -> None:
        """The cluster is like this now, and was since the last time; and what would be."""
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
        _would(hour, would, step_s)

    def told(self) -> list[dict[str, Any]]:
        """The oldest first."""
        return [asdict(one) for one in self._hours]

    def recall(self, hours: Iterable[Mapping[str, Any]]) -> None:
        """Hours that were told before; what an older or newer release told otherwise is left."""
        known = [one.name for one in fields(Hour)]
        for told in hours:
            self._hours.append(Hour(**{name: float(told[name]) for name in known if name in told}))

    def _hour(self, at_s: float) -> Hour:
        began_s = at_s - at_s % _HOUR_S
        if not self._hours or self._hours[-1].began_s != began_s:
            self._hours.append(Hour(began_s))
        return self._hours[-1]


def _would(hour: Hour, would: Sample, step_s: float) -> None:
    hour.line_s += step_s * would.waiting
    hour.seated_s += step_s * would.seated
    hour.without_cpu_s += step_s * would.without_cpu
    hour.work_s += step_s * would.working
    hour.began_jobs += would.began
    hour.sooner_jobs += len(would.sooner_s)
    hour.sooner_s += sum(would.sooner_s)
