# SPDX-License-Identifier: Apache-2.0
"""Which GPUs guests may use: whose owners let them join, and who has to stand still. Pure.

An owner without hooks is left alone: nobody could tell whether a guest slows it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from slipstream.coordinator.seats import Seat
from slipstream.wire.control_block import Directive, Request, Role

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from slipstream.coordinator.tenants import Tenant


@dataclass(frozen=True, slots=True)
class Owner:
    """The job that holds a GPU."""

    job_id: int
    takes_guests: bool


def owners(
    seats: Mapping[int, Seat],
    tenants: Mapping[int, Tenant],
    uuids: Mapping[int, str],
    *,
    hooked: Collection[int],
    join_hookless: bool,
) -> dict[str, Owner]:
    """Who owns which GPU.

    Args:
        seats: jobs that asked for themselves.
        tenants: jobs that were found.
        uuids: the GPUs by index.
        hooked: jobs whose hooks are attached.
        join_hookless: the site says that guests may join owners without hooks.
    """
    held = {
        uuid: job
        for job, seat in sorted(seats.items())
        if seat.role == Role.OWNER
        for uuid in seat.gpu_uuids
    }
    # What is found lives, while the seat of a job that has ended lingers.
    for job, tenant in sorted(tenants.items()):
        theirs = {uuids[index] for index in tenant.holds if index in uuids}
        if tenant.stands_for:  # on another GPU than its guest's it is nobody's owner
            guest = seats.get(tenant.stands_for)
            theirs &= {*guest.gpu_uuids} if guest else set()
        held |= dict.fromkeys(theirs, tenant.stands_for or job)

    def takes_guests(job: int) -> bool:
        if job in tenants and tenants[job].keeps_guests_away:
            return False
        return join_hookless or job in hooked

    return {uuid: Owner(job, takes_guests(job)) for uuid, job in held.items()}


def elsewhere(
    seats: Mapping[int, Seat], tenants: Mapping[int, Tenant], uuids: Mapping[int, str]
) -> dict[int, tuple[str, ...]]:
    """Guests that other GPUs are held for than they sit on, and those GPUs."""
    found = {}
    for tenant in tenants.values():
        guest = seats.get(tenant.stands_for)
        theirs = tuple(uuids[index] for index in sorted(tenant.holds) if index in uuids)
        if guest and len(theirs) == len(guest.gpu_uuids) and {*theirs} != {*guest.gpu_uuids}:
            found[guest.job_id] = theirs
    return found


def closed(owned: Mapping[str, Owner], seat: Seat) -> list[str]:
    """Those of a guest's GPUs that another job owns which takes no guests.

    An owner is stopped for nobody: where two seem to own a GPU, one of them has just ended.
    """
    if seat.role == Role.OWNER:
        return []
    return [
        uuid
        for uuid in seat.gpu_uuids
        if (owner := owned.get(uuid)) and owner.job_id != seat.job_id and not owner.takes_guests
    ]


def adopted(
    seats: Mapping[int, Seat], tenants: Mapping[int, Tenant], uuids: Mapping[int, str]
) -> dict[int, Seat]:
    """The seats, with guests that were bound by the static table while nobody answered."""
    found = dict(seats)
    for job, tenant in tenants.items():
        if not tenant.is_guest:
            continue
        seat = found.get(job) or Seat(
            job_id=job,
            uid=tenant.uid,
            role=Role.GUEST,
            class_name=tenant.carrier.get("class", "")[:15],  # as long as a page has room for
            token=tenant.carrier.get("token", ""),
            gpu_uuids=tuple(uuids[index] for index in tenant.sees if index in uuids),
        )
        known = {task.pid for task in seat.tasks}
        for task in tenant.tasks:
            if task.pid not in known and seat.uid == tenant.uid:
                seat = seat.with_task(task)
        if seat.tasks:
            found[job] = seat
    return found


def order(  # noqa: PLR0913 (one for each thing that can be asked)
    before: Directive,
    *,
    stands: bool = False,
    parks: bool = False,
    waits: bool = False,
    holds: bool = False,
    saves: bool = False,
    share_pct: int = 100,
    cap_bytes: int = 0,
) -> Directive:
    """What a job is asked for next; the same as before if nothing changes.

    One that was sent to other GPUs is asked to be there: once it is, that asks nothing.

    Args:
        before: what it is asked for.
        stands: it has to stand still where it is.
        parks: it waits for its turn, and has something on the GPU.
        waits: it waits for its turn.
        holds: it reaches no boundary: it begins no device operation until its turn.
        saves: it has to save itself, which comes before all else.
        share_pct: how much it may compute,
        cap_bytes: and hold. Both are of no use to one that waits: asked again, its ranks would go
            on to another mini-batch. They are told when it goes on.
    """
    rest = Request.REBIND if before.gpu_uuids else Request.NONE
    request = Request.PAUSE if stands or waits else rest
    if parks and not stands:
        request = Request.PARK
    if holds:
        request = Request.HOLD
    if saves:
        request = Request.CHECKPOINT
    after = replace(before, request=request)
    if {request, before.request} & {Request.NONE, Request.REBIND}:
        after = replace(after, share_pct=share_pct, cap_bytes=cap_bytes)
    if after == before:
        return before
    armed_for = before.armed_for_minibatch if request == before.request else 0
    return replace(after, epoch=before.epoch + 1, armed_for_minibatch=armed_for)
