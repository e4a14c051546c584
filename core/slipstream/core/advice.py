# SPDX-License-Identifier: Apache-2.0
"""Advice: where a pending job may start, until when that holds, and why."""

from __future__ import annotations

from dataclasses import dataclass

# At run time too: the journal reads these classes back by their annotations.
from slipstream.core.classes import Strength  # noqa: TC001 (read back by annotations)
from slipstream.core.reasons import Reason  # noqa: TC001 (read back by annotations)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Nodes for the job with this token. Expiry is the fail-open: after `until_s` it is void."""

    token: str
    nodes: tuple[str, ...]
    tasks_per_node: int
    strength: Strength
    until_s: float
    reason: Reason
    task: int | None = None
    """Of a job array: each of its waiting tasks has advice of its own."""
    hosts: tuple[str, ...] = ()
    """The node of each task, if its tasks have roles and it starts on just these nodes."""

    @property
    def key(self) -> str:
        """One piece of advice per key."""
        return advice_key(self.token, self.task)


def advice_key(token: str, task: int | None) -> str:
    """What a piece of advice is known by."""
    return token if task is None else f"{token}_{task}"
