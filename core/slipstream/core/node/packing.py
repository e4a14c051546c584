# SPDX-License-Identifier: Apache-2.0
"""Guests on a GPU that nobody owns: tried together, measured, kept together or taken apart.

Each is looked at alone for a moment, unless it was alone before, then all of them together. Who do
no more together than they would in turns take turns: Gandiva's packing, and its undo.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from slipstream.core.node.events import Standing
from slipstream.core.node.pulse import Middle, Window, middle
from slipstream.core.node.reasons import NodeReason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slipstream.core.node.gpu import JobState, Limits
    from slipstream.core.node.pulse import Sample
    from slipstream.core.node.rules import NodeRules

_FEWEST_REPORTS: Final = 3
_QUEUED: Final = 2
"""Mini-batches that a process may have launched ahead,"""
_LONGEST_S: Final = 3.0
"""and how long they are waited for."""


class Packed(StrEnum):
    """How far the trial of some guests has come."""

    WAITING = "waiting"
    """Somebody has not done its first mini-batches."""
    ALONE = "alone"
    """One is looked at, the others stand still."""
    TOGETHER = "together"
    KEPT = "kept"
    APART = "apart"


@dataclass(frozen=True, slots=True)
class PackVerdict:
    """What guests did together: the speed of each, 1 being its speed alone."""

    at_s: float
    jobs: tuple[int, ...]
    rates: tuple[float, ...]
    apart: bool

    @property
    def total(self) -> float:
        """In turns it would be 1."""
        return sum(self.rates)


class Packing:
    """The guests of one GPU, as long as they are the same ones."""

    def __init__(self, jobs: Sequence[int], rules: NodeRules, *, anew: bool = False) -> None:
        self.jobs = tuple(jobs)
        self.stage = Packed.WAITING
        self.verdict: PackVerdict | None = None
        self.looked_at: int | None = None
        self.due_s: float | None = None
        """When time alone decides something."""
        self._rules = rules
        self._anew = anew
        """What was known of each alone is too old."""
        self._alone_s: dict[int, float] = {}
        self._windows: dict[int, Window] = {}
        self._each_s: dict[int, float] = {}
        self._since_s = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether nothing is being tried."""
        return self.stage in (Packed.KEPT, Packed.APART)

    @property
    def still(self) -> frozenset[int]:
        """Who has nothing of the GPU while another is looked at."""
        looks = self.stage is Packed.ALONE
        return frozenset(job for job in self.jobs if looks and job != self.looked_at)

    def limited(self, limits: Mapping[int, Limits]) -> dict[int, Limits]:
        """What everybody may use, while somebody is looked at."""
        return {
            job: replace(limit, share_pct=0.0, reason=NodeReason.PACKING_TRIED)
            if job in self.still
            else limit
            for job, limit in limits.items()
        }

    def heard(self, job_id: int, sample: Sample) -> None:
        """One of them has done a few mini-batches."""
        self._each_s[job_id] = sample.each_s
        if job_id in self._windows:
            self._windows[job_id].add(sample)

    def advance(self, at_s: float, states: Mapping[int, JobState]) -> bool:
        """Go on where that can be; says whether anything has changed."""
        before = (self.stage, self.looked_at)
        match self.stage:
            case Packed.WAITING if all(self._trains(states[job]) for job in self.jobs):
                self._next(at_s, states)
            case Packed.ALONE if self._is_seen(at_s):
                self._seen_alone(at_s, states)
            case Packed.TOGETHER if self._is_seen(at_s):
                self._judge(at_s)
        return (self.stage, self.looked_at) != before

    def _trains(self, state: JobState) -> bool:
        trains = state.told is not None and state.told.standing is Standing.TRAINING
        return trains and not state.pulse.is_warming_up(self._rules.warmup_minibatches)

    def _next(self, at_s: float, states: Mapping[int, JobState]) -> None:
        """Look at the next one alone, or at all of them together."""
        for job in self.jobs:
            known = states[job].pulse.baseline
            if job not in self._alone_s and known and not self._anew:
                self._alone_s[job] = known.value_s
        self.looked_at = next((job for job in self.jobs if job not in self._alone_s), None)
        self.stage = Packed.TOGETHER if self.looked_at is None else Packed.ALONE
        looked_at = self.jobs if self.looked_at is None else (self.looked_at,)
        # What has been launched is not taken back: those that stand still are done with it first.
        queued_s = max((_QUEUED * self._each_s.get(job, 0.0) for job in self.still), default=0.0)
        self._since_s = at_s + min(_LONGEST_S, max(self._rules.settle_s, queued_s))
        self._windows = {job: Window(self._since_s) for job in looked_at}
        self.due_s = self._since_s + self._rules.patience_s

    def _is_seen(self, at_s: float) -> bool:
        """Whether enough was measured, or no more is waited for."""
        rules, took_s = self._rules, at_s - self._since_s
        if took_s >= rules.learn_most_s:
            return True
        if took_s >= rules.patience_s:
            self.due_s = self._since_s + rules.learn_most_s
        return took_s >= rules.patience_s and all(
            len(one.values) >= rules.evidence_reports
            and one.minibatches >= rules.evidence_minibatches
            for one in self._windows.values()
        )

    def _seen_alone(self, at_s: float, states: Mapping[int, JobState]) -> None:
        job = self.looked_at
        found = self._middles()
        if job is None or job not in found:
            self._settle(at_s, Packed.KEPT, self._rules.forget_trial_s)  # nobody can tell
            return
        self._alone_s[job] = found[job].value_s
        states[job].pulse.learned(found[job])
        self._next(at_s, states)

    def _judge(self, at_s: float) -> None:
        found = self._middles()
        if len(found) < len(self.jobs):
            self._settle(at_s, Packed.KEPT, self._rules.forget_trial_s)
            return
        rates = tuple(self._alone_s[job] / found[job].value_s for job in self.jobs)
        apart = sum(rates) < self._rules.pair_gain
        self.verdict = PackVerdict(at_s, self.jobs, rates, apart)
        self._settle(at_s, Packed.APART if apart else Packed.KEPT, self._rules.forget_pair_s)

    def _middles(self) -> dict[int, Middle]:
        return {
            job: middle(one.values)
            for job, one in self._windows.items()
            if len(one.values) >= _FEWEST_REPORTS
        }

    def _settle(self, at_s: float, stage: Packed, for_s: float) -> None:
        self.stage, self.looked_at = stage, None
        self._windows = {}
        self.due_s = at_s + for_s
