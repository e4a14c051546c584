# SPDX-License-Identifier: Apache-2.0
"""Who is on which GPU, and which GPUs take guests: free ones, or whose owner shares. Pure.

Slurm says who holds which GPU, a marker who is ours and shares, a coordinator what it knows of the
hooks and where guests sit. Whom Slurm counts and nobody has seen has a place, too.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slipstream.core.classes import Role
from slipstream.core.records import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slipstream.core.records import JobRecord
    from slipstream.core.sights import GpuUse, NodeSight, Request
    from slipstream.core.upgrading import Upgraded

_HERE: Final = (Phase.RUNNING, Phase.SUSPENDED, Phase.COMPLETING)


@dataclass(frozen=True, slots=True)
class Crowd:
    """All jobs that hold something of one node."""

    owners: dict[int, JobRecord] = field(default_factory=dict)
    """By the index of the GPU."""
    guests: list[JobRecord] = field(default_factory=list)
    upgraded: list[JobRecord] = field(default_factory=list)
    """Owners that hold guest slots: their GPUs are held for them."""


def holders(
    jobs: Iterable[JobRecord], upgrades: Mapping[str, Upgraded] | None = None
) -> dict[tuple[str, int], JobRecord]:
    """Who holds which GPU, as Slurm has it; guests that became owners hold theirs."""
    known = {record.key: record for record in jobs}
    held = {
        place: record
        for record in known.values()
        if record.sight and record.phase in _HERE
        for place in record.sight.gpu_places
    }
    for one in (upgrades or {}).values():
        if one.counts and one.key in known:
            held |= {(one.node, index): known[one.key] for index in one.gpus}
    return held


def crowds(
    jobs: Iterable[JobRecord],
    requests: Mapping[str, Request],
    upgrades: Mapping[str, Upgraded] | None = None,
) -> dict[str, Crowd]:
    """Who is on which node."""
    found: dict[str, Crowd] = {}
    known = {one.key: one for one in (upgrades or {}).values() if one.counts}
    owners = {one.number for one in known.values()}
    for record in jobs:
        sight = record.sight
        if sight is None or record.phase not in _HERE:
            continue
        if sight.holds_for in owners and sight.holds_for:
            continue  # who it holds them for has them
        for name, index in sight.gpu_places:
            found.setdefault(name, Crowd()).owners[index] = record
        if record.key in known:
            one = known[record.key]
            crowd = found.setdefault(one.node, Crowd())
            crowd.owners.update(dict.fromkeys(one.gpus, record))
            crowd.upgraded.append(record)
            continue
        request = requests.get(record.token)
        if request is not None and request.role is Role.GUEST:
            for name in sight.nodes:
                found.setdefault(name, Crowd()).guests.append(record)
    return found


def owners_of(
    node: NodeSight, known: Mapping[int, JobRecord], uses: Sequence[GpuUse]
) -> dict[int, JobRecord | None]:
    """Who holds each GPU of a node; None: somebody whom Slurm counts and nobody has seen."""
    held: dict[int, JobRecord | None] = {at: one for at, one in known.items() if at < node.gpus}
    told = {gpu.index for gpu in uses if gpu.owner_job is not None}
    rest = sorted((at for at in range(node.gpus) if at not in held), key=lambda at: at not in told)
    held.update(dict.fromkeys(rest[: max(0, node.gpus_used - len(held))]))
    return held


def shut_gpus(
    held: Mapping[int, JobRecord | None],
    requests: Mapping[str, Request],
    uses: Sequence[GpuUse] | None,
) -> dict[int, str]:
    """The GPUs of a node that take no guests, each with the reason; `uses` if it reports."""
    why: dict[int, str] = {}
    for index, owner in held.items():
        if owner is not None and (told := _against(owner, requests)):
            why[index] = told
        elif owner is None and uses is None:
            # Without a report it is like one of a job without our marker.
            why[index] = "an owner is not known"
    for gpu in uses or ():
        if not gpu.takes_guests:
            owner = held.get(gpu.index)
            who = owner.key if owner else gpu.owner_job or ""
            told = f"owner {who} takes none now" if who else f"GPU {gpu.index} takes none now"
            why.setdefault(gpu.index, told)
    return why


def guests_of(
    node: NodeSight,
    guests: Sequence[JobRecord],
    uses: Sequence[GpuUse],
    shut: Iterable[int],
    upgraded: Iterable[JobRecord] = (),
) -> list[tuple[JobRecord | None, tuple[int, ...]]]:
    """Which GPUs each guest sits on: as its node tells, else where it is thought to.

    None is one whom Slurm counts and nobody has seen. Who was `upgraded` is none, with its slots.
    """
    seated: Counter[int] = Counter()
    found: list[tuple[JobRecord | None, tuple[int, ...]]] = []
    places = {
        number: tuple(gpu.index for gpu in uses if number in gpu.guest_jobs)
        for gpu in uses
        for number in gpu.guest_jobs
    }
    closed = set(shut)
    # Where nobody tells, on open GPUs: seats there are what is scarce.
    order = sorted(range(node.gpus), key=lambda at: (at in closed, at))
    each = max(1, node.slots // max(1, node.gpus))

    def quietest(count: int) -> tuple[int, ...]:
        ranked = sorted(order, key=lambda at: (seated[at] >= each, at in closed, seated[at], at))
        return tuple(sorted(ranked[:count]))

    slots = 0
    for owner in upgraded:
        if owner.sight:
            places.pop(str(owner.sight.number), None)
            slots += owner.sight.slots
    untold: list[tuple[JobRecord | None, int]] = []
    for record in guests:
        assert record.sight is not None  # noqa: S101 (crowds has looked)
        count = max(1, record.sight.slots // max(1, len(record.sight.nodes)))
        slots += count
        at = places.pop(str(record.sight.number), ())
        if at:
            found.append((record, at))
            seated.update(at)
        else:
            untold.append((record, count))
    for at in places.values():  # told of by the node, and not seen in Slurm yet
        found.append((None, at))
        seated.update(at)
        slots += len(at)
    untold += [(None, 1)] * max(0, node.slots_used - slots)
    for record_or_none, count in untold:
        at = quietest(min(count, node.gpus))
        if at:
            found.append((record_or_none, at))
            seated.update(at)
    return found


def _against(owner: JobRecord, requests: Mapping[str, Request]) -> str:
    """Why this owner takes no guests, as far as Slurm can tell; empty if it may."""
    request = requests.get(owner.token)
    if request is None:
        return f"owner {owner.key} has no hooks"
    return "" if request.shares else f"owner {owner.key} does not share"
