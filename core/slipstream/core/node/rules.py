# SPDX-License-Identifier: Apache-2.0
"""The node machine's constants. SEEDS' where it has them; the others are explained here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRules:
    """What a site can set; `docs/node-machine.md` has the reasons."""

    # --- the step rule (AntMan's reflexes, TGS's steps) ---
    tolerated_drop_pct: float = 3.0
    """How much of its own rate an owner may lose before guests get less."""
    resting_drop_pct: float = 1.5
    """How much it may lose for long: while nothing is tried guests have a little less."""
    severe_drop_pct: float = 9.0
    """From here on guests have a tenth."""
    grow_factor: float = 1.5
    bold_factor: float = 2.0
    """While the owner surely loses no more than `resting_drop_pct`."""
    grow_points: float = 1.0
    cut_points: float = 8.0
    cut_divisor: float = 10.0
    start_share_pct: float = 1.0
    """All guests of a GPU together begin here; also the smallest share that is not none."""
    unstable_spread_pct: float = 15.0
    """An owner whose mini-batch times spread more than this by themselves is unstable."""
    unstable_share_pct: float = 20.0
    """Guests beside an unstable owner never have more than this."""

    # --- evidence ---
    settle_s: float = 0.15
    """What was measured so soon after a change is a mixture of before and after."""
    evidence_minibatches: int = 4
    evidence_reports: int = 5
    severe_reports: int = 3
    """So few are enough to see that the owner lost more than `severe_drop_pct`."""
    sure_reports: int = 10
    """From so many on a window's own spread counts, and not the baseline's if that is larger."""
    resting_reports: int = 20
    """While nothing is tried there is time to see what a small share does now and then."""
    patience_s: float = 3.0
    """A window that decides nothing for so long is decided by its middle."""
    warmup_minibatches: int = 8
    """A job's first ones are slower than all that follow, and no baseline."""
    learn_minibatches: int = 12
    learn_reports: int = 5
    learn_error_pct: float = 1.0
    """A baseline that may be wrong by more than this is measured for longer, up to `patience_s`."""
    learn_most_s: float = 30.0
    """A baseline is taken after so long from what there is, if there are three reports."""
    loading_s: float = 30.0
    """An owner that has not trained for so long leaves its guests the smallest share."""
    hold_s: float = 30.0
    """A level that slowed the owner is not tried again for so long."""
    first_still_s: float = 1.0
    """Guests whose smallest share seems to slow the owner stand still for so long, each time in a
    row twice as long, up to `hold_s`: a neighbour's busy second looks the same once, not twice."""
    rotate_s: float = 10.0
    """Guests that have no share because there is too little for all have one after so long."""

    # --- guests together on a GPU that nobody owns ---
    pair_gain: float = 1.05
    """Gandiva: they stay together if they do so much more than in turns."""
    forget_pair_s: float = 3_600.0
    """After so long it is tried again."""

    # --- memory ---
    margin_pct: float = 2.0
    """Of the device: never given to anybody."""
    unknown_guests_pct: float = 10.0
    """Of the device: what all guests keep when an owner of unknown size arrives."""
    headroom_pct: float = 10.0
    """What everybody gets above its largest need so far."""
    memory_step_pct: float = 10.0
    """Of the device: what one trial moves from one guest to another."""
    trial_s: float = 10.0
    trial_gain_pct: float = 1.0
    forget_trial_s: float = 600.0

    # --- turns ---
    turn_s: float = 60.0
    least_turn_s: float = 2.0
    """A turn is never shorter, however late its job was before."""
    park_wait_s: float = 30.0
    """A job that has not parked by then keeps the GPU for another turn."""
    idle_pass_s: float = 5.0
    """A job that has not used the GPU for so long in its turn, or for two of its mini-batches if
    that is longer (but no longer than a turn), and reached no boundary, is held at its next device
    operation, and the next job has its turn."""
    late_turns: float = 2.0
    """A job that uses the GPU and reaches no boundary for so many turns is held at an operator."""
    unknown_room_pct: float = 50.0
    """A job whose need is not known fits beside held ones that leave so much of the GPU free."""
    return_s: float = 2.5
    """So long before its turn a parked job comes back to stand still, where there is room."""
    feedback_minibatches: int = 100
    """A new job's first mini-batches come first, within one turn."""
    feedback_in_a_row: int = 8
    """New jobs that may pass an old one before it has a turn again."""
