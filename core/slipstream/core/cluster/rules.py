# SPDX-License-Identifier: Apache-2.0
"""The constants of the cluster's policies, and which of them are switched on.

docs/policies.md has each rule's paper, what we changed and what it is worth on a trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_FIRST_LEVEL_GPU_S: Final = 2_000.0
_LEVEL_FACTOR: Final = 4.0
_LEVELS: Final = 7


class Rule(StrEnum):
    """What can be left out, to see what it is worth."""

    QUOTAS = "quotas"
    """A guaranteed job starts within its tenant's quota only."""
    FAIRNESS = "fairness"
    """Among equals, the tenant that had least for its share is next."""
    RESERVATIONS = "reservations"
    """GPUs are kept for a guaranteed gang until all of them are there."""
    GUESTS = "guests"
    """Others ride beside guaranteed owners."""
    UPGRADES = "upgrades"
    """A guest whose GPUs lose their owner becomes it."""
    LEVELS = "levels"
    """Turns go to those who had least service."""
    AGEING = "ageing"
    """Who waits long counts as one who had less."""
    PACKING = "packing"
    """Two shared jobs on one GPU while more want GPUs than there are."""
    PAIRS = "pairs"
    """What two families did together is remembered: bad pairs are undone and not tried again."""
    MOVES = "moves"
    """Holes are filled, nodes emptied for gangs, pairs taken apart when GPUs are free."""
    GROW_SHRINK = "grow-shrink"
    """Elastic jobs take idle GPUs and give them back."""
    EARLY_FEEDBACK = "early-feedback"
    """A new job's first mini-batches come before another's next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterRules:
    """Constants, with the papers' values where they have any."""

    shares: tuple[tuple[str, float], ...] = ()
    """Each tenant's part of the cluster, in any unit; who is not in it owns nothing of it."""
    without: frozenset[Rule] = frozenset()
    levels_gpu_s: tuple[float, ...] = tuple(
        _FIRST_LEVEL_GPU_S * _LEVEL_FACTOR**at for at in range(_LEVELS)
    )
    """The service (GPUs times seconds) at which a job goes down one level."""
    most_on_gpu: int = 2
    """Jobs with a seat on one GPU at a time: speeds were measured for two."""
    guest_below_pct: float = 80.0
    """AntMan: a GPU used more than that takes no guest."""
    most_use_pct: float = 150.0
    """Predicted use of all jobs on one GPU: beyond that, taking turns is faster."""
    pair_gain: float = 1.05
    """Gandiva: a pair stays if both together are so much faster than in turns."""
    pair_memory_s: float = 3_600.0
    """How long what a pair of families did is believed."""
    patience_s: float = 86_400.0
    """A job that waits so long goes up one level."""
    overdue_s: float = 3_600.0
    """One that waits so long at the first level comes before all of it: large jobs would wait for
    ever where small ones come and go."""
    move_cost_s: float = 30.0
    move_gain: float = 3.0
    """A move must be expected to bring so many times what it costs."""
    move_pause_s: float = 600.0
    """Between two moves of one job."""
    most_moves: int = 4
    """After one event: moves are work for the disks and Slurm."""
    grow_after_s: float = 120.0
    takes_seats: bool = True
    """Whether a seat can be given to another before its job has ended. Slurm does not do that:
    there guests are stopped by their nodes, and a guest's seat is its own."""
    uplink_mbps: float = 0.0
    """What a rack's uplink carries; 0: it does not count."""
    half_life_s: float = 7 * 86_400.0
    """After that, a tenant's use of the past counts half: Slurm's default."""

    def has(self, rule: Rule) -> bool:
        """Whether a rule is on."""
        return rule not in self.without
