# SPDX-License-Identifier: Apache-2.0
"""Who may hold how much of a GPU's memory. Caps of one GPU never add up to more than it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream.core.node.rules import NodeRules

_GRAINS: Final = 256
"""Caps are whole parts of the device of this size: a few bytes more or less change nothing."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What a job needs on a GPU: the most it ever held there or is expected to; 0: unknown."""

    job_id: int
    need_mib: int


def usable_mib(device_mib: int, rules: NodeRules) -> int:
    """The device, but for the margin."""
    return device_mib - int(device_mib * rules.margin_pct / 100)


def beside_owner(
    device_mib: int, owner: Claim, guests: Sequence[Claim], rules: NodeRules
) -> dict[int, int]:
    """Caps of an owner and its guests: what the owner does not need is theirs."""
    usable = usable_mib(device_mib, rules)
    reserve = int(owner.need_mib * (1 + rules.headroom_pct / 100))
    if not owner.need_mib:
        reserve = usable - int(device_mib * rules.unknown_guests_pct / 100)
    rest = max(0, usable - reserve)
    caps = divided(rest, guests, grain_mib=max(1, device_mib // _GRAINS))
    return {owner.job_id: max(1, device_mib - sum(caps.values())), **caps}


def divided(rest_mib: int, claims: Sequence[Claim], *, grain_mib: int) -> dict[int, int]:
    """Everybody's need from the smallest up, then the remainder in equal parts.

    Who gets nothing has a cap of 1 MiB: 0 would be none.
    """
    caps: dict[int, int] = {}
    left, open_claims = rest_mib, len(claims)
    # An unknown need is the largest there is. The number settles ties.
    for claim in sorted(claims, key=lambda one: (one.need_mib or rest_mib, one.job_id)):
        part = min(claim.need_mib or rest_mib, left // open_claims)
        caps[claim.job_id] = part
        left -= part
        open_claims -= 1
    each = left // len(claims) if claims else 0
    return {job: max(1, (part + each) // grain_mib * grain_mib) for job, part in caps.items()}


@dataclass(frozen=True, slots=True)
class _Trial:
    giver: int
    taker: int
    step_mib: int
    before: float


class Trials:
    """No owner and too little memory: move some, measure, keep or undo.

    Throughput is in parts of the most each job ever reached, so that a small model's many
    mini-batches do not outweigh a large one's few.
    """

    def __init__(
        self, device_mib: int, claims: Sequence[Claim], rules: NodeRules, at_s: float
    ) -> None:
        self.rules = rules
        self.key = tuple(claims)
        self._grain = max(1, device_mib // _GRAINS)
        self._step = max(self._grain, int(device_mib * rules.memory_step_pct / 100))
        self.caps = divided(usable_mib(device_mib, rules), claims, grain_mib=self._grain)
        self.due_s = at_s + rules.trial_s
        self._trial: _Trial | None = None
        self._failed_until_s: dict[tuple[int, int], float] = {}
        self._best: dict[int, float] = {}
        self._counted = dict.fromkeys(self.caps, 0)
        self._since_s = at_s

    def advance(self, at_s: float, minibatches: Mapping[int, int]) -> bool:
        """When it is due: judge the last trial and begin another; says whether caps changed."""
        if at_s < self.due_s:
            return False
        before = dict(self.caps)
        score = self._score(at_s, minibatches)
        if self._trial:
            self._judge(self._trial, score, at_s)
        self._trial = self._next(score, at_s)
        if self._trial:
            self.caps[self._trial.giver] -= self._trial.step_mib
            self.caps[self._trial.taker] += self._trial.step_mib
        self._counted, self._since_s = dict(minibatches), at_s
        self.due_s = at_s + self.rules.trial_s
        return self.caps != before

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to try at the moment."""
        return self._trial is None

    def _score(self, at_s: float, minibatches: Mapping[int, int]) -> float:
        """The sum of everybody's throughput since the last change, each against its best."""
        took_s = max(1e-9, at_s - self._since_s)
        score = 0.0
        for job in self.caps:
            rate = (minibatches.get(job, 0) - self._counted.get(job, 0)) / took_s
            self._best[job] = max(rate, self._best.get(job, 0.0))
            score += rate / self._best[job] if self._best[job] else 0.0
        return score

    def _judge(self, trial: _Trial, score: float, at_s: float) -> None:
        if score >= trial.before * (1 + self.rules.trial_gain_pct / 100):
            return
        self.caps[trial.giver] += trial.step_mib
        self.caps[trial.taker] -= trial.step_mib
        pair = trial.giver, trial.taker
        self._failed_until_s[pair] = at_s + self.rules.forget_trial_s

    def _next(self, score: float, at_s: float) -> _Trial | None:
        lacks = {claim.job_id: claim.need_mib - self.caps[claim.job_id] for claim in self.key}
        pairs = sorted(
            (-lacks[taker], taker, giver)  # who lacks most; then the numbers settle ties
            for taker in lacks
            for giver in lacks
            if taker != giver
            and lacks[taker] > 0
            and self.caps[giver] - self._step >= self._grain
            and self._failed_until_s.get((giver, taker), at_s) <= at_s
        )
        if not pairs:
            return None
        _, taker, giver = pairs[0]
        return _Trial(giver, taker, self._step, score)
