# SPDX-License-Identifier: Apache-2.0
"""What guests did together on one GPU, as their nodes measured it. Pure.

The node itself ends what does not pay: its guests take turns. Here it is remembered by families, so
that the next ones are not put together where these did badly, and one of a bad pair is moved where
a GPU is free (the brain's `pairs` and `moves`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from slipstream.core.cluster.rules import ClusterRules

if TYPE_CHECKING:
    from slipstream.core.events import NodeReported
    from slipstream.core.records import JobRecord
    from slipstream.core.sights import PackSeen
    from slipstream.core.state import State

MOST_PAIRS: Final = 1024
"""Families come and go: the oldest are forgotten first."""
_PAIR: Final = 2
_PAYS: Final = ClusterRules().pair_gain


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Two families of jobs on one GPU."""

    families: tuple[str, str]
    total: float
    """Their speeds together, in turns it would be 1."""
    at_s: float


def reported(state: State, before: NodeReported | None, report: NodeReported) -> None:
    """A node tells what its guests do together; what it told before is known."""
    known = set(before.packed) if before else set()
    for one in report.packed:
        if one not in known:
            _learn(state, one, report.at_s)


def family_of(state: State, record: JobRecord) -> str:
    """Jobs of one family train alike: those of one name."""
    request = state.requests.get(record.token)
    return (request.name if request else "") or record.key


def against(state: State, record: JobRecord) -> list[str]:
    """Whom a guest is kept apart from, for all that was measured of its like."""
    family = family_of(state, record)
    found = []
    for one in state.pairs.values():
        if family in one.families and one.total < _PAYS:
            first, second = one.families
            other = second if first == family else first
            found.append(f"beside {other} its like did {one.total:.2f} of what one does alone")
    return found


def _learn(state: State, one: PackSeen, at_s: float) -> None:
    records = [record for ref in one.refs if (record := state.numbered(ref))]
    if len(records) != len(one.refs):
        return
    if len(records) == _PAIR:
        first, second = sorted(family_of(state, record) for record in records)
        state.pairs.pop((first, second), None)
        state.pairs[first, second] = Paired(
            families=(first, second), total=sum(one.rates), at_s=at_s
        )
        while len(state.pairs) > MOST_PAIRS:
            del state.pairs[next(iter(state.pairs))]
    for record, rate in zip(records, one.rates, strict=True):
        others = ",".join(other.key for other in records if other is not record)
        end = "they take turns" if one.apart else "they stay together"
        text = f"beside job {others} it has {100 * rate:.0f} % of its speed alone: {end}"
        state.put(record.noted(at_s, text))
