# SPDX-License-Identifier: Apache-2.0
"""Why a job has the share, the memory or the turn it has: a closed list, as for the cluster."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class NodeReason(StrEnum):
    """Log field, metric label and key of the sentence shown to users."""

    # It owns the GPU, or has the turn.
    PROTECTED = "protected"
    # It is alone, or among equals.
    NO_OWNER = "no_owner"
    MEMORY_SHARED = "memory_shared"
    PACKING_TRIED = "packing_tried"
    TAKEN_APART = "taken_apart"
    # It is beside an owner.
    OWNER_WITHOUT_HOOKS = "owner_without_hooks"
    OWNER_ARRIVED = "owner_arrived"
    OWNER_LOADING = "owner_loading"
    BASELINE_LEARNED = "baseline_learned"
    OWNER_STEADY = "owner_steady"
    OWNER_SLOWER = "owner_slower"
    OWNER_MUCH_SLOWER = "owner_much_slower"
    OWNER_UNSTABLE = "owner_unstable"
    OWNER_CHANGED = "owner_changed"
    OWNER_SURGED = "owner_surged"
    SETTLED = "settled"
    NO_ROOM = "no_room"
    # It takes turns.
    TURN = "turn"
    FIRST_MINIBATCHES = "first_minibatches"
    WAITS_FOR_TURN = "waits_for_turn"
    NEXT_TURN = "next_turn"
    HIGHER_PRIORITY = "higher_priority"
    PARK_LATE = "park_late"
    HELD_IDLE = "held_idle"
    HELD_BUSY = "held_busy"
    LATE_NO_ROOM = "late_no_room"
    WAITS_FOR_ROOM = "waits_for_room"
    GANG_CALLED = "gang_called"
    # An operator has spoken.
    OPERATOR = "operator"
    RELEASED = "released"


SENTENCE: Final[Mapping[NodeReason, str]] = {
    NodeReason.PROTECTED: "The GPU is its own: it is not slowed for anybody.",
    NodeReason.NO_OWNER: "Nobody owns the GPU at the moment: it has no limits.",
    NodeReason.MEMORY_SHARED: "Nobody owns the GPU and memory is short: who gains most has more.",
    NodeReason.PACKING_TRIED: "Its neighbour is looked at alone, for some seconds.",
    NodeReason.TAKEN_APART: "It and its neighbour do no more together than in turns.",
    NodeReason.OWNER_WITHOUT_HOOKS: "The GPU's owner carries no hooks and is left alone.",
    NodeReason.OWNER_ARRIVED: "An owner has come: its speed alone is being learned.",
    NodeReason.OWNER_LOADING: "The owner has not begun to train: a small share meanwhile.",
    NodeReason.BASELINE_LEARNED: "The owner's speed alone is known: a small share to begin with.",
    NodeReason.OWNER_STEADY: "The owner does not get slower: a little more.",
    NodeReason.OWNER_SLOWER: "The owner got slower: less.",
    NodeReason.OWNER_MUCH_SLOWER: "The owner got much slower: a tenth.",
    NodeReason.OWNER_UNSTABLE: "The owner's mini-batch time varies by itself: small steps only.",
    NodeReason.OWNER_CHANGED: "The owner may have changed by itself: its speed is learned again.",
    NodeReason.OWNER_SURGED: "The owner needs more memory: its guests have less.",
    NodeReason.SETTLED: "More was tried and the owner got slower: it stays here for a while.",
    NodeReason.NO_ROOM: "Even the smallest share slows the owner: tried again later.",
    NodeReason.TURN: "It has the GPU for its turn.",
    NodeReason.NEXT_TURN: "Its turn is next: it has come back to the GPU and waits there.",
    NodeReason.FIRST_MINIBATCHES: "It is new: its first mini-batches come first.",
    NodeReason.WAITS_FOR_TURN: "Another shared job has its turn on this GPU.",
    NodeReason.HIGHER_PRIORITY: "A shared job of higher priority has this GPU.",
    NodeReason.PARK_LATE: (
        "It reaches no boundary and cannot be stopped without one: it keeps the GPU, charged to it."
    ),
    NodeReason.HELD_IDLE: "It did not use the GPU in its turn: it stops at its next use of it.",
    NodeReason.HELD_BUSY: "It reached no boundary for two turns: it stands still at an operator.",
    NodeReason.LATE_NO_ROOM: (
        "It reaches no boundary and keeps the GPU: the next job does not fit beside its memory."
    ),
    NodeReason.WAITS_FOR_ROOM: (
        "Another shared job reaches no boundary, and this one does not fit beside its memory."
    ),
    NodeReason.GANG_CALLED: "The node that leads this job across nodes has called it.",
    NodeReason.OPERATOR: "An operator has parked it: 'slipstream release' lets it go on.",
    NodeReason.RELEASED: "An operator has released it.",
}
