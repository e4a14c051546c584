# SPDX-License-Identifier: Apache-2.0
"""Advice: where a pending job may start, until when that holds, and why."""

from __future__ import annotations

from dataclasses import dataclass

# At run time too: the journal reads these classes back by their annotations.
from slipstream.core.classes import Strength  # noqa: TC001
from slipstream.core.reasons import Reason  # noqa: TC001


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Nodes for the job with this token. Expiry is the fail-open: after `until_s` it is void."""

    token: str
    nodes: tuple[str, ...]
    tasks_per_node: int
    strength: Strength
    until_s: float
    reason: Reason
