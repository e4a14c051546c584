# SPDX-License-Identifier: Apache-2.0
"""Why a job is where it is: a closed list, one word for logs and metrics, one sentence for people.

`slipstream why` shows the sentence beside Slurm's own reason, never instead of it.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Reason(StrEnum):
    """Log field, metric label and key of the sentence shown to users."""

    # It waits, and we know what for.
    NOT_SEEN_YET = "not_seen_yet"
    NO_FREE_GPU = "no_free_gpu"
    NO_FREE_SLOT = "no_free_slot"
    NO_GUEST_SEAT = "no_guest_seat"
    NO_FREE_CPU_OR_MEMORY = "no_free_cpu_or_memory"
    NO_NODE_FITS = "no_node_fits"
    BEHIND_OTHERS = "behind_others"
    OVER_QUOTA = "over_quota"
    RESERVING = "reserving"
    WAITS_FOR_TURN = "waits_for_turn"
    ADVISED = "advised"
    WOULD_ADVISE = "would_advise"
    SWITCHED_OFF = "switched_off"
    SLURM_AWAY = "slurm_away"
    # It waits for something only Slurm, its user or its admins can change.
    HELD = "held"
    DEPENDENCY = "dependency"
    BEGINS_LATER = "begins_later"
    LIMIT = "limit"
    NODES_UNAVAILABLE = "nodes_unavailable"
    SLURM_ONLY = "slurm_only"
    # It runs, and does not move.
    MOVES_ONLY_RUNNING = "moves_only_running"
    MOVES_ONE_NODE_ONLY = "moves_one_node_only"
    MOVING = "moving"
    MOVED_LATELY = "moved_lately"
    NOT_RESTORABLE = "not_restorable"
    MOVES_NEVER = "moves_never"
    NOT_ELASTIC = "not_elastic"
    HAS_THAT_SIZE = "has_that_size"
    # It runs, and is not parked or released.
    PARKED = "parked"
    PARKS_ONLY_RUNNING = "parks_only_running"
    PARKS_ONLY_TRAINING = "parks_only_training"
    PARKS_NO_OWNER = "parks_no_owner"
    PARKS_ONE_NODE_ONLY = "parks_one_node_only"
    PARKS_NOT_THERE = "parks_not_there"
    TRAINING_OVER = "training_over"
    NOT_PARKED = "not_parked"
    # We leave it to Slurm.
    LEFT_TO_SLURM = "left_to_slurm"
    SHAPE_NOT_HANDLED = "shape_not_handled"
    # It does not wait.
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETING = "completing"
    ENDED = "ended"
    NEVER_ARRIVED = "never_arrived"


SENTENCE: Final[Mapping[Reason, str]] = {
    Reason.NOT_SEEN_YET: "It was announced at submission and is not in Slurm's queue yet.",
    Reason.NO_FREE_GPU: "Not enough nodes have as many free GPUs as it needs.",
    Reason.NO_FREE_SLOT: "Not enough nodes have as many free guest slots as it needs.",
    Reason.NO_GUEST_SEAT: "No GPU that is free or whose owner takes guests has a seat for it.",
    Reason.NO_FREE_CPU_OR_MEMORY: "GPUs or slots are free, but the CPUs or memory beside them not.",
    Reason.NO_NODE_FITS: "The nodes it may use could not hold it even if they were empty.",
    Reason.BEHIND_OTHERS: "Jobs of higher priority are planned first and there are many.",
    Reason.OVER_QUOTA: "Its account's guaranteed jobs own as many GPUs as its quota has.",
    Reason.RESERVING: "GPUs are kept for it; it starts when the last of them is free of owners.",
    Reason.WAITS_FOR_TURN: "It is parked: jobs that had less service have the GPUs now.",
    Reason.ADVISED: "Nodes are chosen for it: Slurm starts it there as soon as it can.",
    Reason.WOULD_ADVISE: "Nodes would be chosen for it, but the mode is observe: Slurm decides.",
    Reason.SWITCHED_OFF: "Slipstream is switched off: Slurm decides alone.",
    Reason.SLURM_AWAY: "Slurm's controller does not answer: nothing can start now.",
    Reason.HELD: "It is held: its user or an admin must release it.",
    Reason.DEPENDENCY: "It waits for other jobs, as its user asked.",
    Reason.BEGINS_LATER: "It may not start before a time that was set for it.",
    Reason.LIMIT: "A limit of its user, account, QOS or partition is reached.",
    Reason.NODES_UNAVAILABLE: "Nodes or a partition it needs are down, drained or reserved.",
    Reason.SLURM_ONLY: "It waits for something only Slurm knows about: see Slurm's reason.",
    Reason.MOVES_ONLY_RUNNING: "Only a job that runs can be moved.",
    Reason.MOVES_ONE_NODE_ONLY: "It runs on several nodes; only jobs on one node are moved so far.",
    Reason.MOVING: "It is being moved to other nodes.",
    Reason.MOVED_LATELY: "It was moved a short while ago.",
    Reason.MOVES_NEVER: "Its user said --no-slip-move.",
    Reason.NOT_ELASTIC: "Its user did not say --slip-elastic with so many GPUs.",
    Reason.HAS_THAT_SIZE: "It has as many GPUs already.",
    Reason.NOT_RESTORABLE: "Its node does not say that it can be saved and go on elsewhere.",
    Reason.PARKED: "An operator has parked it: 'slipstream release' lets it go on.",
    Reason.PARKS_ONLY_RUNNING: "Only a job that runs can be parked.",
    Reason.PARKS_ONLY_TRAINING: "Its node does not say that it trains: it stops at mini-batches.",
    Reason.PARKS_NO_OWNER: "It owns its GPUs and is not of class shared: nobody parks it.",
    Reason.PARKS_ONE_NODE_ONLY: "It runs on several nodes; of those only shared jobs are parked.",
    Reason.PARKS_NOT_THERE: "Its node is not in mode enforce: 'slipstream mode' says why.",
    Reason.TRAINING_OVER: "Its training has ended: there is nothing left to park.",
    Reason.NOT_PARKED: "No operator has parked it.",
    Reason.LEFT_TO_SLURM: "It carries no Slipstream flag: Slurm alone decides about it.",
    Reason.SHAPE_NOT_HANDLED: "It asks for GPUs in a way that is left to Slurm untouched.",
    Reason.RUNNING: "It runs.",
    Reason.SUSPENDED: "It is suspended by Slurm.",
    Reason.COMPLETING: "It is on its way out; its nodes are not free yet.",
    Reason.ENDED: "It has ended.",
    Reason.NEVER_ARRIVED: "It was announced at submission but never came into Slurm's queue.",
}

_BY_SLURM: Final[Mapping[str, Reason]] = {
    "JobHeldUser": Reason.HELD,
    "JobHeldAdmin": Reason.HELD,
    "job_requeued_in_held_state": Reason.HELD,
    "launch_failed_requeued_held": Reason.HELD,
    "Dependency": Reason.DEPENDENCY,
    "DependencyNeverSatisfied": Reason.DEPENDENCY,
    "BeginTime": Reason.BEGINS_LATER,
    "ReqNodeNotAvail": Reason.NODES_UNAVAILABLE,
    "Reserved": Reason.NODES_UNAVAILABLE,
    "Reservation": Reason.NODES_UNAVAILABLE,
    "NodeDown": Reason.NODES_UNAVAILABLE,
    "PartitionDown": Reason.NODES_UNAVAILABLE,
    "PartitionInactive": Reason.NODES_UNAVAILABLE,
    "PartitionNodeLimit": Reason.LIMIT,
    "PartitionTimeLimit": Reason.LIMIT,
    "JobArrayTaskLimit": Reason.LIMIT,
    "AccountNotAllowed": Reason.LIMIT,
    "QOSNotAllowed": Reason.LIMIT,
}
_OURS: Final = frozenset(
    {"", "Resources", "Priority", "Prolog", "Cleaning", "WaitingForScheduling"}
)
_LIMITS: Final = ("QOS", "Assoc", "Max")


def from_slurm(word: str) -> Reason | None:
    """What Slurm's own reason forbids; None if it is only waiting its turn or for resources."""
    if word in _OURS:
        return None
    if found := _BY_SLURM.get(word):
        return found
    return Reason.LIMIT if word.startswith(_LIMITS) else Reason.SLURM_ONLY
