# SPDX-License-Identifier: Apache-2.0
"""One round of planning: every waiting job gets nodes or a reason, best priority first. Pure.

What one job is given is not given to the next: a round ends with what is left for a job that is
submitted before the next round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from slipstream.core.placement import Field, Need, Placement, need_of, place, taken
from slipstream.core.reasons import Reason, from_slurm

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slipstream.core.advice import Advice
    from slipstream.core.records import JobRecord
    from slipstream.core.sights import NodeSight, Request

MOST_PLANNED: Final = 256
"""Jobs a round looks at: Slurm will not start more at once, and the machine must stay quick."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a round found for one job."""

    record: JobRecord
    found: Placement | Reason


@dataclass(frozen=True, slots=True)
class Round:
    """All verdicts, and the nodes as they will be if every placed job starts."""

    verdicts: tuple[Verdict, ...]
    left: Mapping[str, NodeSight]


def plan(
    waiting: Iterable[JobRecord],
    requests: Mapping[str, Request],
    advice: Mapping[str, Advice],
    field: Field,
) -> Round:
    """Plan for all waiting jobs that carry our marker."""
    left = dict(field.nodes)
    now = Field(left, field.uses, field.topology)
    verdicts: list[Verdict] = []
    refused: dict[Need, Reason] = {}
    placed = 0
    for record in sorted(waiting, key=_order):
        found = _found(record, requests[record.token], advice, now, placed, refused)
        verdicts.append(Verdict(record, found))
        if isinstance(found, Placement):
            placed += 1
            left.update(taken(left, found, requests[record.token].role))
    return Round(tuple(verdicts), left)


def _found(
    record: JobRecord,
    request: Request,
    advice: Mapping[str, Advice],
    field: Field,
    placed: int,
    refused: dict[Need, Reason],
) -> Placement | Reason:
    if record.sight and (forbidden := from_slurm(record.sight.slurm_reason)):
        return forbidden
    if placed >= MOST_PLANNED:
        return Reason.BEHIND_OTHERS
    need = need_of(request, record.sight)
    if need is None:
        return Reason.SHAPE_NOT_HANDLED
    # Within a round room only shrinks: what was refused once is refused again, without a look.
    if need in refused:
        return refused[need]
    before = advice.get(record.advice_key)
    found = place(need, field, before.nodes if before else ())
    if not isinstance(found, Placement):
        refused[need] = found
    return found


def _order(record: JobRecord) -> tuple[int, float, str]:
    """Slurm's priority, then who came first, then the name; jobs not in the queue yet come last."""
    if record.sight is None:
        return (1, record.since_s, record.key)
    return (-record.sight.priority, record.sight.submitted_at_s, record.key)
