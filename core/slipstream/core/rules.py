# SPDX-License-Identifier: Apache-2.0
"""What a site can set about decisions. Part of the journal, so that a replay goes by the same."""

from __future__ import annotations

from dataclasses import dataclass

# At run time too: the journal reads these classes back by their annotations.
from slipstream.core.classes import Mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules decisions go by."""

    mode: Mode = Mode.OBSERVE
    """The configured one. An operator's command counts until another one is configured."""
    lease_s: float = 60.0
    """How long advice holds without being renewed; it is renewed when half of that is over."""
    arrival_s: float = 60.0
    """How long a submitted job may take into Slurm's queue before it counts as lost."""
    report_s: float = 60.0
    """How long a node's report counts; older ones are as if nobody measured."""
    forget_s: float = 600.0
    """How long a lost one is remembered for its user's question."""
    shares: tuple[tuple[str, float], ...] = ()
    """Each account's part of the GPUs, in any unit; nobody has a quota if nobody has a share."""
    guest_below_pct: float = 80.0
    """A GPU that is used more than that takes no further guest."""
    uplink_mbps: float = 0.0
    """What a rack's uplink carries, in Mbit/s; 0: nobody says, and it does not count."""
    guest_after_s: float = 300.0
    """An `auto` job that has waited so long for GPUs is a guest, if there is a seat."""
    requeue_pause_s: float = 60.0
    """Requeues of one job are at least so far apart, whoever asks."""
    grow_after_s: float = 120.0
    """After so long without a queue elastic jobs take GPUs that nobody uses."""
    extend_from_s: float = 60.0
    """A job that has waited so long for others is given that, near the end of its limit."""
