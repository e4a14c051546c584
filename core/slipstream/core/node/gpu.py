# SPDX-License-Identifier: Apache-2.0
"""One GPU: who is protected on it, who rides along, and what they may use of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slipstream.core.node import memory
from slipstream.core.node.events import Standing
from slipstream.core.node.memory import Claim, Trials
from slipstream.core.node.pulse import Pulse
from slipstream.core.node.reasons import NodeReason
from slipstream.core.node.steps import Stage, Steps

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream.core.node.events import JobReported, NodeJob
    from slipstream.core.node.pulse import Sample
    from slipstream.core.node.rules import NodeRules

ALL_PCT = 100


@dataclass(slots=True)
class JobState:
    """A job as the machine keeps it."""

    job: NodeJob
    pulse: Pulse = field(default_factory=Pulse)
    told: JobReported | None = None
    most_mib: int = 0
    """The most it ever needed on a GPU."""
    share_pct: int = ALL_PCT
    cap_mib: int = 0
    reason: NodeReason = NodeReason.NO_OWNER
    ordered_away: bool = False
    """An operator has parked it."""

    @property
    def is_away(self) -> bool:
        """Whether it was parked by an operator and has left; until then it is on its GPUs."""
        off = (Standing.PARKED, Standing.LOADING)
        return self.ordered_away and (self.told is None or self.told.standing in off)

    @property
    def is_loading(self) -> bool:
        """Whether it has yet to use a GPU."""
        return self.told is None or self.told.standing is Standing.LOADING

    def claim(self) -> Claim:
        """What it needs: the most it was seen with, or what it is expected to."""
        return Claim(self.job.job_id, max(self.most_mib, self.job.memory_mib))


@dataclass(frozen=True, slots=True)
class Limits:
    """What one job may use of one GPU."""

    share_pct: float
    cap_mib: int
    reason: NodeReason
    at_once: bool = False


@dataclass(slots=True)
class GpuState:
    """One GPU and the reflexes on it."""

    uuid: str
    memory_mib: int
    jobs: list[int] = field(default_factory=list)
    """In the order of their numbers."""
    steps: Steps | None = None
    trials: Trials | None = None
    protected: int | None = None
    riders: tuple[int, ...] = ()
    surged: bool = False
    """The protected job needs memory that its guests still hold."""
    first: int = 0
    """Whom the smallest share is given to if there is not enough for all."""
    rotates_at_s: float = 0.0
    held_mib: int = 0
    """What jobs that are held at an operator have on it: nobody else can have that."""
    sharing: int = 0
    """How many guests the share is divided among: those that have loaded, or all."""

    def seat(
        self, protected: JobState | None, riders: Sequence[int], rules: NodeRules, at_s: float
    ) -> None:
        """Who is on it now. A new owner, or a new guest, begins from low (reflexes 1 and 2)."""
        before = self.riders
        owner = protected.job.job_id if protected else None
        self.riders = tuple(riders)
        self.sharing = len(riders)
        if protected is None or not riders or not protected.job.hooked:
            self.steps = None
        elif self.steps is None or owner != self.protected:
            self.steps = Steps(rules, protected.pulse, at_s)
        elif set(riders) - set(before):
            self.steps.restart(at_s)
        if owner != self.protected:
            self.surged = False
        self.protected = owner
        if self.steps:
            self.steps.most_pct = float(ALL_PCT * len(riders))
            self.rotates_at_s = max(self.rotates_at_s, at_s + rules.rotate_s)

    def heard(self, sample: Sample, at_s: float) -> None:
        """The protected job has done a few mini-batches."""
        if self.steps:
            self.steps.heard(sample, at_s)

    def time_passed(self, at_s: float, states: Mapping[int, JobState]) -> None:
        """It may be time for something."""
        if self.steps:
            self.steps.time_passed(at_s)
            if at_s >= self.rotates_at_s:
                self.rotates_at_s = at_s + self.steps.rules.rotate_s
                self.first = (self.first + 1) % len(self.riders)
        if self.trials:
            done = {job: states[job].pulse.minibatches for job in self.riders}
            self.trials.advance(at_s, done)

    def wakes_at_s(self) -> float | None:
        """When time alone changes something."""
        due = [self.steps.wakes_at_s() if self.steps else None]
        due.append(self.trials.due_s if self.trials else None)
        due.append(self.rotates_at_s if self._is_rationed else None)
        return min((one for one in due if one is not None), default=None)

    def quiet_until_s(self) -> float | None:
        """Until when nothing changes if everybody goes on as now; None: something may any time."""
        quiet = [float("inf")]
        if self.steps:
            until_s = self.steps.quiet_until_s
            if until_s is None:
                return None
            quiet.append(min(until_s, self.rotates_at_s) if self._is_rationed else until_s)
        if self.trials:
            if not self.trials.is_settled:
                return None
            quiet.append(self.trials.due_s)
        return min(quiet)

    @property
    def _is_rationed(self) -> bool:
        """Whether some guests have no share because there is too little for all."""
        if self.steps is None or self.steps.total_pct <= 0:
            return False
        return self.steps.total_pct < self.sharing * self.steps.rules.start_share_pct

    @property
    def free_of_held_mib(self) -> int:
        """What there is for those that are not held."""
        return max(1, self.memory_mib - self.held_mib)

    # --- what everybody may use -------------------------------------------------------------------

    def limits(
        self, states: Mapping[int, JobState], rules: NodeRules, at_s: float
    ) -> dict[int, Limits]:
        """For each job that is on the GPU and not parked."""
        riders = [states[job] for job in self.riders]
        if self.protected is None:
            return self._among_guests(riders, rules, at_s)
        self.trials = None
        owner = states[self.protected]
        if not riders:
            left_mib = max(1, memory.usable_mib(self.free_of_held_mib, rules))
            cap_mib = left_mib if self.held_mib and owner.job.hooked else 0
            return {self.protected: Limits(ALL_PCT, cap_mib, NodeReason.PROTECTED)}
        return self._beside_owner(owner, riders, rules, at_s)

    def _among_guests(
        self, riders: Sequence[JobState], rules: NodeRules, at_s: float
    ) -> dict[int, Limits]:
        """Reflexes 5 and 6: no owner."""
        claims = [one.claim() for one in riders]
        needed = sum(claim.need_mib for claim in claims)
        if len(riders) < 2 or needed <= memory.usable_mib(self.free_of_held_mib, rules):  # noqa: PLR2004 (a pair)
            self.trials = None
            free = Limits(ALL_PCT, 0, NodeReason.NO_OWNER)
            return dict.fromkeys(self.riders, free)
        if self.trials is None or self.trials.key != tuple(claims):
            self.trials = Trials(self.free_of_held_mib, claims, rules, at_s)
        caps = self.trials.caps
        return {job: Limits(ALL_PCT, caps[job], NodeReason.MEMORY_SHARED) for job in self.riders}

    def _beside_owner(
        self, owner: JobState, riders: Sequence[JobState], rules: NodeRules, at_s: float
    ) -> dict[int, Limits]:
        claims = [one.claim() for one in riders]
        if self.steps is None:  # nobody can tell whether it is slowed
            shares = dict.fromkeys(self.riders, 0.0)
            reason = NodeReason.OWNER_WITHOUT_HOOKS
        else:
            loading = {one.job.job_id for one in riders if one.is_loading}
            self.steps.neighbours(at_s, load=bool(loading))
            order = self.riders[self.first :] + self.riders[: self.first]
            sharing = [job for job in order if job not in loading] or order
            self.sharing = len(sharing)
            shares = dict.fromkeys(self.riders, 0.0) | _divided(
                self.steps.total_pct, sharing, rules
            )
            reason = self.steps.reason
        room_mib = self.free_of_held_mib
        caps = memory.beside_owner(room_mib, self._reserved(owner), claims, rules)
        hurry = self.surged or (self.steps is not None and self.steps.stage is Stage.LEARNING)
        found = {job: Limits(shares[job], caps[job], reason, at_once=hurry) for job in self.riders}
        owner_cap = caps[owner.job.job_id] if owner.job.hooked else 0
        found[owner.job.job_id] = Limits(ALL_PCT, owner_cap, NodeReason.PROTECTED)
        return found

    def _reserved(self, owner: JobState) -> Claim:
        """What an owner holds before it trains steadily says little about what it will need."""
        if owner.pulse.baseline is None and not owner.job.memory_mib:
            return Claim(owner.job.job_id, 0)
        return owner.claim()


def _divided(total_pct: float, riders: Sequence[int], rules: NodeRules) -> dict[int, float]:
    """All guests' share in equal parts; where that is less than the smallest, fewer have one."""
    least = rules.start_share_pct
    able = min(len(riders), int(total_pct / least))
    return {job: total_pct / able if place < able else 0.0 for place, job in enumerate(riders)}
