# SPDX-License-Identifier: Apache-2.0
"""Jobs across nodes take turns in step: their first node decides, and the others follow it.

What it decided goes through the scheduler, at once when it changes and every two seconds. A node
that has not heard of it for a while decides for itself: nobody waits for a call that never comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from slipstream.core.node.turns import Turn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slipstream.coordinator.tenants import Tenant
    from slipstream.core.node.turns import Member
    from slipstream.wire.control_block import Directive

REPEATED_EVERY_S: Final = 2.0
BELIEVED_FOR_S: Final = 8.0
NOTICE_S: Final = 0.5
"""How far ahead of its last mini-batch a gang is asked to stop: its other nodes must hear of it."""
MOST_CALLS: Final = 64


@dataclass(frozen=True, slots=True)
class Call:
    """What the node that leads a gang has decided."""

    leader: str
    runs: bool
    after: int = 0
    """The mini-batch after which it waits; 0: at once."""
    returns: bool = False
    """It is next, and comes back to stand still until then."""


@dataclass(frozen=True, slots=True)
class Together:
    """How the ranks of a gang are stopped after the same mini-batch on all its nodes."""

    notice_s: float = 0.0
    """On the node that leads: so far ahead."""
    after: int | None = None
    """On the others: the one that it has named."""


class Gangs:
    """The gangs of a node: what was heard of their leaders, and what it says of those it leads."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._heard: dict[int, tuple[float, Call]] = {}
        self._nodes: dict[int, tuple[str, ...]] = {}
        self._now_s = 0.0

    def seen(self, tenants: Mapping[int, Tenant], now_s: float) -> None:
        """Who is here now."""
        self._now_s = now_s
        self._nodes = {job: one.gang for job, one in tenants.items() if self._node in one.gang}
        self._heard = {job: told for job, told in self._heard.items() if job in self._nodes}

    def called(self, job_id: int, call: Call, now_s: float) -> bool:
        """A call has come; whether it is of the job's own first node."""
        nodes = self._nodes.get(job_id, ())
        believed = bool(nodes) and nodes[0] == call.leader != self._node
        if believed:
            self._heard[job_id] = (now_s, call)
        return believed

    def nodes(self, job_id: int) -> tuple[str, ...]:
        """All nodes of a job that has several, the first of them first."""
        return self._nodes.get(job_id, ())

    def follows(self, job_id: int) -> Call | None:
        """What a job's leader said last, while that counts."""
        at_s, call = self._heard.get(job_id, (0.0, None))
        return call if call and self._now_s - at_s < BELIEVED_FOR_S else None

    def following(self) -> dict[int, Call]:
        """Those whose leaders were heard, and what they said."""
        calls = {job: self.follows(job) for job in self._heard}
        return {job: call for job, call in calls.items() if call}

    def together(self, job_id: int) -> Together | None:
        """How its ranks are to be stopped; None: as those of a node alone."""
        call = self.follows(job_id)
        if call:
            return Together(after=call.after)
        return Together(notice_s=NOTICE_S) if self._leads(job_id) else None

    def calls(
        self, members: Iterable[Member], orders: Mapping[int, Directive]
    ) -> list[dict[str, Any]]:
        """What the other nodes of gangs have to know, in the scheduler's words."""
        return [
            {
                "job_id": one.job.job_id,
                "runs": one.turn is Turn.RUNNING,
                "returns": one.returns,
                "after": orders[one.job.job_id].armed_for_minibatch,
                "nodes": list(one.job.gang),
            }
            for one in members
            if self._leads(one.job.job_id) and one.job.job_id in orders
        ][:MOST_CALLS]

    def _leads(self, job_id: int) -> bool:
        return self.nodes(job_id)[:1] == (self._node,)
