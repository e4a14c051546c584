# SPDX-License-Identifier: Apache-2.0
"""Which GPUs take guests: those that are free, or whose owner carries hooks and shares. Pure.

Slurm says who holds which GPU, a marker who is ours and shares, a coordinator what it knows of the
hooks. A slot counts only if its GPU takes guests: on any other one a guest would stand still.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from slipstream.core.records import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from slipstream.core.records import JobRecord
    from slipstream.core.sights import GpuUse, NodeSight, Request

_HERE: Final = (Phase.RUNNING, Phase.SUSPENDED, Phase.COMPLETING)


@dataclass(frozen=True, slots=True)
class Shut:
    """The GPUs of one node that take no guests."""

    gpus: int
    seats_used: int = 0
    """Guests that sit there nevertheless: they were there before the owner."""
    why: tuple[str, ...] = ()


def holders(jobs: Iterable[JobRecord]) -> dict[tuple[str, int], JobRecord]:
    """Who holds which GPU, as Slurm has it."""
    return {
        place: record
        for record in jobs
        if record.sight and record.phase in _HERE
        for place in record.sight.gpu_places
    }


def shut_gpus(
    nodes: Mapping[str, NodeSight],
    held: Mapping[tuple[str, int], JobRecord],
    requests: Mapping[str, Request],
    uses: Mapping[str, tuple[GpuUse, ...]],
) -> dict[str, Shut]:
    """The nodes that have such GPUs."""
    why: dict[str, dict[int, str]] = {}
    for (name, index), record in held.items():
        if told := _against(record, requests):
            why.setdefault(name, {})[index] = told
    for name, gpus in uses.items():
        for gpu in gpus:
            if not gpu.takes_guests:
                owner = held.get((name, gpu.index))
                who = owner.key if owner else gpu.owner_job or ""
                told = f"owner {who} takes none now" if who else f"GPU {gpu.index} takes none now"
                why.setdefault(name, {}).setdefault(gpu.index, told)
    known = Counter(name for name, _ in held)
    found = {}
    for name, node in nodes.items():
        # Without a report a GPU in use by nobody we know is like one of a job without our marker.
        unknown = 0 if name in uses else max(0, node.gpus_used - known[name])
        reasons = why.get(name, {})
        if unknown or reasons:
            seated = {gpu.index: len(gpu.guest_jobs) for gpu in uses.get(name, ())}
            found[name] = Shut(
                gpus=min(node.gpus, len(reasons) + unknown),
                seats_used=sum(seated.get(index, 0) for index in reasons),
                why=(
                    *dict.fromkeys(reasons[index] for index in sorted(reasons)),
                    *(["an owner is not known"] if unknown else []),
                ),
            )
    return found


def free_seats(node: NodeSight, shut: Shut | None, count: int) -> int:
    """Slots a guest with `count` of them can have here: no two on one GPU if that can be."""
    free = node.slots - node.slots_used
    if shut is None or not node.gpus:
        return free
    open_gpus = node.gpus - shut.gpus
    if open_gpus < min(count, node.gpus):
        return 0
    open_slots = open_gpus * (node.slots // node.gpus)
    return min(free, open_slots - max(0, node.slots_used - shut.seats_used))


def _against(owner: JobRecord, requests: Mapping[str, Request]) -> str:
    """Why this owner takes no guests, as far as Slurm can tell; empty if it may."""
    request = requests.get(owner.token)
    if request is None:
        return f"owner {owner.key} has no hooks"
    return "" if request.shares else f"owner {owner.key} does not share"
