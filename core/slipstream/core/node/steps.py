# SPDX-License-Identifier: Apache-2.0
"""The step rule: how much of a GPU's time all guests beside an owner have together.

They stand still until the owner's speed alone is known, then have little, then twice as much while
the owner feels nothing and half as much again while it hardly gets slower, from the first drop on
one point more at a time, and eight less at each further drop; after a hard cut they are soon back
near where it was good. A level at which the owner got slower is not tried again for a while: until
then nothing changes, and a simulator may pass over that time.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from slipstream.core.node.pulse import Window, middle
from slipstream.core.node.reasons import NodeReason

if TYPE_CHECKING:
    from slipstream.core.node.pulse import Middle, Pulse, Sample
    from slipstream.core.node.rules import NodeRules

_FASTER: Final = 0.99
"""A baseline that followed every lucky window down would soon call the usual a drop."""


class Stage(StrEnum):
    """Where the steps are."""

    LEARNING = "learning"
    """Guests stand still and the owner's speed alone is measured."""
    FAST = "fast"
    SLOW = "slow"
    HELD = "held"


class Verdict(StrEnum):
    """What a window says of the owner."""

    FINE = "fine"
    SLOWER = "slower"
    MUCH_SLOWER = "much_slower"


class Steps:
    """The steps on one GPU beside one owner."""

    def __init__(self, rules: NodeRules, pulse: Pulse, at_s: float) -> None:
        self.rules = rules
        self.pulse = pulse
        self.most_pct = 100.0
        """As many times 100 as there are guests."""
        self.reason = NodeReason.OWNER_ARRIVED
        self.total_pct = 0.0
        self.stage = Stage.LEARNING
        self.ceiling_pct = 1e9
        self.ceiling_until_s = at_s
        self._good_pct = 0.0
        """The last level at which the owner did not get slower."""
        self._is_unfelt = False
        """Whether the last window says that the owner hardly feels its guests."""
        self._factor = rules.grow_factor
        """By which they grew last."""
        self._before_look_pct = 0.0
        """What guests had before they stood still for another look at the owner,"""
        self._accused: Middle | None = None
        """and how slow it was beside them."""
        self._calm: Middle | None = None
        """The owner's speed alone before a guest began to load, while one does."""
        self._drops_in_a_row = 0
        self._still_s = rules.first_still_s
        self._began_s = at_s
        self._window = Window(at_s + rules.settle_s)
        if pulse.baseline is not None:
            self._begin(at_s)

    def restart(self, at_s: float) -> None:
        """Another guest has come: from low, as at the beginning.

        What was too much for the owner is so for one guest more, unless it was next to nothing:
        that was the machine's noise as likely as not.
        """
        if self.ceiling_pct <= self.rules.cut_points:
            self.ceiling_pct, self.ceiling_until_s = 1e9, at_s
        if self.stage is not Stage.LEARNING:
            self._begin(at_s)

    def neighbours(self, at_s: float, *, load: bool) -> None:
        """Whether guests import and read beside the owner: what it loses to that passes with it.

        A speed that was learned meanwhile is not what it is compared with afterwards.
        """
        known = self.pulse.baseline
        if load and self._calm is None:
            self._calm = known
        elif not load and self._calm is not None:
            calm, self._calm = self._calm, None
            if known is not None and calm.value_s < known.value_s:
                self.pulse.learned(calm)
            if self.stage is not Stage.LEARNING:
                self._window = Window(at_s + self.rules.settle_s)

    def heard(self, sample: Sample, at_s: float) -> None:
        """The owner has done a few mini-batches."""
        if not self._window.add(sample):
            return
        if self.stage is Stage.LEARNING:
            self._learn(at_s)
            return
        if self.total_pct > 0:
            self.pulse.beside.append(sample.each_s)
        verdict = self._verdict(at_s)
        if verdict is not None:
            self._decide(verdict, at_s)

    def time_passed(self, at_s: float) -> None:
        """Nothing was heard, and it may be time for something all the same."""
        if self.stage is Stage.LEARNING:
            idle = self.total_pct == 0 and not self._window.minibatches
            if idle and at_s >= self._began_s + self.rules.loading_s:
                self._set(self.rules.start_share_pct, NodeReason.OWNER_LOADING, at_s)
        elif self.stage is Stage.HELD and at_s >= self.ceiling_until_s:
            self.stage = Stage.SLOW
            self.ceiling_pct = 1e9
            if self.total_pct <= 0:
                self._seen_alone()
                self._begin(at_s)

    def wakes_at_s(self) -> float | None:
        """When time alone changes something."""
        if self.stage is Stage.LEARNING:
            waits = self.total_pct == 0 and not self._window.minibatches
            return self._began_s + self.rules.loading_s if waits else None
        return self.ceiling_until_s if self.stage is Stage.HELD else None

    @property
    def quiet_until_s(self) -> float | None:
        """Until when nothing changes if the owner stays as it is; None: that is not known."""
        if self.stage is Stage.HELD:
            return self.ceiling_until_s
        return float("inf") if self._is_at_most and self.stage is not Stage.LEARNING else None

    @property
    def _is_at_most(self) -> bool:
        return self.total_pct >= self._limit_pct

    @property
    def _limit_pct(self) -> float:
        limit = self.most_pct
        return min(limit, self.rules.unstable_share_pct) if self._is_unstable else limit

    @property
    def _is_unstable(self) -> bool:
        return self.pulse.spread_pct > self.rules.unstable_spread_pct

    # --- learning -----------------------------------------------------------------------------

    def _learn(self, at_s: float) -> None:
        if self.total_pct > 0:  # it was loading; now it trains, and is measured alone
            self._look(at_s, NodeReason.OWNER_ARRIVED)
            return
        rules, window = self.rules, self._window
        reports = len(window.values)
        late = at_s >= window.since_s + rules.learn_most_s and reports >= 3  # noqa: PLR2004 (a median)
        if self.pulse.is_warming_up(rules.warmup_minibatches) and not late:
            self._window = Window(window.since_s)  # the same deadline
            return
        enough = window.minibatches >= rules.learn_minibatches and reports >= rules.learn_reports
        if not enough and not late:
            return
        before, alone = self.pulse.baseline, middle(window.values)
        sure = 100 * alone.error_s <= rules.learn_error_pct * alone.value_s
        if not sure and at_s < window.since_s + rules.patience_s:
            return
        self.pulse.looked(alone)
        if before is None:
            self._begin(at_s)
            return
        # A second look: did the owner get slower by itself, or by its guests?
        if alone.value_s * (1 - rules.tolerated_drop_pct / 100) > before.value_s:
            self.pulse.beside.clear()
            self._go_on(Stage.SLOW, self._before_look_pct, at_s)
        elif not self._are_guilty:
            self._go_on(Stage.SLOW, self._before_look_pct, at_s)
        elif self._before_look_pct > rules.start_share_pct:
            self._go_on(Stage.SLOW, self._before_look_pct - rules.cut_points, at_s)
        else:
            self.stage, self.reason = Stage.HELD, NodeReason.NO_ROOM
            self.ceiling_pct, self.ceiling_until_s = 0.0, at_s + self._still_s
            self._still_s = min(2 * self._still_s, rules.hold_s)
            self._window = Window(at_s + rules.settle_s)

    @property
    def _are_guilty(self) -> bool:
        """Whether the owner was surely slower beside its guests than it was just seen to be."""
        if self._accused is None:
            return True
        least_s = self._accused.value_s - self.pulse.error_s(self._accused)
        return self.pulse.drop_pct(least_s) > self.rules.tolerated_drop_pct

    def _seen_alone(self) -> None:
        """Guests stood still in this window: it is another look at the owner."""
        if len(self._window.values) >= self.rules.learn_reports:
            self.pulse.looked(middle(self._window.values))

    def _look(self, at_s: float, reason: NodeReason) -> None:
        """Let the guests stand still and measure the owner alone again."""
        beside = self.total_pct > 0 and self._window.values
        self._accused = self.pulse.now(self._window, self.rules.sure_reports) if beside else None
        self._before_look_pct = self.total_pct
        self.stage = Stage.LEARNING
        self._began_s = at_s
        self._drops_in_a_row = 0
        self._set(0.0, reason, at_s)

    def _begin(self, at_s: float) -> None:
        unstable = self._is_unstable
        self.stage = Stage.SLOW if unstable else Stage.FAST
        reason = NodeReason.OWNER_UNSTABLE if unstable else NodeReason.BASELINE_LEARNED
        self._drops_in_a_row = 0
        self._set(self.rules.start_share_pct, reason, at_s)

    def _go_on(self, stage: Stage, total_pct: float, at_s: float) -> None:
        self.stage = stage
        self._set(max(total_pct, self.rules.start_share_pct), NodeReason.BASELINE_LEARNED, at_s)

    # --- deciding -----------------------------------------------------------------------------

    def _verdict(self, at_s: float) -> Verdict | None:
        """What the window says, if it says something: the surer the fewer mini-batches it takes."""
        rules, window, pulse = self.rules, self._window, self.pulse
        held = self.stage is Stage.HELD
        wanted = rules.resting_reports if held else rules.evidence_reports
        few = len(window.values) < rules.severe_reports
        if few or window.minibatches < rules.evidence_minibatches or pulse.baseline is None:
            return None
        now = pulse.now(window, rules.sure_reports)
        if len(window.values) < wanted:
            return self._at_a_glance(now)
        if now.value_s + 3 * now.error_s < _FASTER * pulse.baseline.value_s:
            pulse.learned(now)  # guests make nobody faster: alone it is at least as fast as this
        error_s = pulse.error_s(now)
        least = pulse.drop_pct(now.value_s - error_s)
        most = pulse.drop_pct(now.value_s + error_s)
        if at_s >= window.since_s + rules.patience_s:
            least = most = pulse.drop_pct(now.value_s)
        self._is_unfelt = most <= rules.resting_drop_pct
        if least >= rules.severe_drop_pct:
            return Verdict.MUCH_SLOWER
        if least > rules.tolerated_drop_pct:
            return Verdict.SLOWER
        return Verdict.FINE if most <= rules.tolerated_drop_pct else None

    def _at_a_glance(self, now: Middle) -> Verdict | None:
        """A step that went much too far is seen at once, and each report more is a loss."""
        least = self.pulse.drop_pct(now.value_s - 2 * self.pulse.error_s(now))
        probes = self.total_pct > self.rules.start_share_pct and self._drops_in_a_row == 0
        return Verdict.MUCH_SLOWER if probes and least >= self.rules.severe_drop_pct else None

    def _decide(self, verdict: Verdict, at_s: float) -> None:
        if verdict is Verdict.FINE:
            self._drops_in_a_row = 0
            if self.total_pct > 0:
                self._still_s = self.rules.first_still_s
            self._grow(at_s)
            return
        self._drops_in_a_row += 1
        if self.total_pct <= 0:
            self._look(at_s, NodeReason.OWNER_CHANGED)  # nobody but itself makes it slower
        elif self._drops_in_a_row > 1 or self.total_pct <= self.rules.start_share_pct:
            self._look(at_s, NodeReason.OWNER_CHANGED)
        else:
            self._cut(verdict, at_s)

    def _grow(self, at_s: float) -> None:
        rules, limit = self.rules, self._limit_pct
        bold = self._is_unfelt and self.stage is Stage.FAST
        self._factor = rules.bold_factor if bold else rules.grow_factor
        more = self._factor * self.total_pct
        known = more <= self._good_pct - rules.cut_points  # back to where it was good before
        if (self.stage is not Stage.FAST and not known) or self._is_unstable:
            more = self.total_pct + rules.grow_points
            self._good_pct = self.total_pct
        if self.stage is Stage.HELD:
            self._rest(at_s)
        elif self.total_pct >= limit:
            self._window = Window(at_s)
        elif more > self.ceiling_pct and at_s < self.ceiling_until_s:
            self.stage, self.reason = Stage.HELD, NodeReason.SETTLED
            self._rest(at_s)
        else:
            unstable = self._is_unstable
            reason = NodeReason.OWNER_UNSTABLE if unstable else NodeReason.OWNER_STEADY
            self._set(min(more, limit), reason, at_s)

    def _rest(self, at_s: float) -> None:
        """Probing may cost what is tolerated; what lasts costs less."""
        if self.total_pct <= 0:
            self._seen_alone()
        now = self.pulse.now(self._window, self.rules.sure_reports).value_s
        less = self.total_pct - self.rules.grow_points
        costs = self.pulse.drop_pct(now) > self.rules.resting_drop_pct
        if costs and less >= self.rules.start_share_pct:
            self._set(less, self.reason, at_s)
        else:
            self._window = Window(at_s)

    def _cut(self, verdict: Verdict, at_s: float) -> None:
        rules = self.rules
        if self.stage is Stage.FAST:
            self._good_pct = self.total_pct / self._factor
        self.ceiling_pct = self.total_pct - rules.grow_points
        self.ceiling_until_s = at_s + rules.hold_s
        self.stage = Stage.SLOW
        if verdict is Verdict.MUCH_SLOWER:
            less, reason = self.total_pct / rules.cut_divisor, NodeReason.OWNER_MUCH_SLOWER
        else:
            less, reason = self.total_pct - rules.cut_points, NodeReason.OWNER_SLOWER
        self._set(max(less, rules.start_share_pct), reason, at_s)

    def _set(self, total_pct: float, reason: NodeReason, at_s: float) -> None:
        self.total_pct, self.reason = total_pct, reason
        self._window = Window(at_s + self.rules.settle_s)
