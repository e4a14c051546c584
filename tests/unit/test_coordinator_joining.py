# SPDX-License-Identifier: Apache-2.0
"""Whose GPUs guests may join, who is seated without having asked, and who stands still."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slipstream.coordinator.joining import Owner, adopted, closed, elsewhere, order, owners
from slipstream.coordinator.seats import Seat, Task
from slipstream.coordinator.tenants import Tenant
from slipstream.wire.control_block import Directive, Request, Role

pytestmark = pytest.mark.unit

UUIDS = {0: "a", 1: "b"}
TASK = Task("batch", 0, 100, 555)


def seat(job_id: int, *uuids: str, role: Role = Role.GUEST) -> Seat:
    """A job that asked."""
    return Seat(job_id, 1000, role, "shared", "token", uuids, (TASK,))


def tenant(job_id: int, *holds: int, sees: tuple[int, ...] = (), **carrier: str) -> Tenant:
    """A job that was found."""
    return Tenant(job_id, 1000, (TASK,), frozenset(holds), sees, carrier)


def owned(
    *told: Seat | Tenant, hooked: tuple[int, ...] = (), join_hookless: bool = False
) -> dict[str, Owner]:
    """Who owns what of two GPUs."""
    return owners(
        {one.job_id: one for one in told if isinstance(one, Seat)},
        {one.job_id: one for one in told if isinstance(one, Tenant)},
        UUIDS,
        hooked=hooked,
        join_hookless=join_hookless,
    )


OURS = (seat(5, "a", role=Role.OWNER), tenant(5, 0))


@pytest.mark.parametrize(
    ("told", "hooked", "join_hookless", "takes_guests"),
    [
        pytest.param(OURS, (5,), False, True, id="hooks attached"),
        pytest.param(OURS, (), False, False, id="hooks not attached yet"),
        pytest.param((tenant(5, 0),), (), False, False, id="no flag at all"),
        pytest.param((tenant(5, 0),), (), True, True, id="no flag, and the site lets guests join"),
        pytest.param((OURS[0], tenant(5, 0, share="no")), (5,), True, False, id="--no-slip-share"),
        pytest.param(OURS[:1], (5,), False, True, id="asked and not found yet"),
        pytest.param(OURS, (6,), False, False, id="another's hooks"),
    ],
)
def test_an_owner_takes_guests(
    told: tuple[Seat | Tenant, ...],
    hooked: tuple[int, ...],
    join_hookless: bool,  # noqa: FBT001 (a column of the table)
    takes_guests: bool,  # noqa: FBT001
) -> None:
    """Or does not, as the name of each case says."""
    found = owned(*told, hooked=hooked, join_hookless=join_hookless)
    assert found == {"a": Owner(5, takes_guests)}


def test_who_is_found_counts_before_a_seat_that_lingers() -> None:
    """A job has ended and the next has its GPU already; an index that is no GPU's is nobody's."""
    found = owned(seat(5, "a", role=Role.OWNER), tenant(6, 0, 9), hooked=(5,))
    assert found == {"a": Owner(6, takes_guests=False)}


def test_a_guest_owns_what_a_placeholder_holds_for_it() -> None:
    """Where it sits; a placeholder elsewhere, or of a guest that is gone, owns nothing."""
    holder = replace(tenant(9, 0), stands_for=5)
    assert owned(seat(5, "a"), holder, hooked=(5,)) == {"a": Owner(5, takes_guests=True)}
    assert owned(seat(5, "a"), holder) == {"a": Owner(5, takes_guests=False)}
    assert owned(seat(5, "b"), holder) == {}
    assert owned(holder) == {}


def test_a_guest_is_sent_to_the_gpu_that_is_held_for_it() -> None:
    """If it sits on another one, and on as many."""
    holder = replace(tenant(9, 0), stands_for=5)
    assert elsewhere({5: seat(5, "b")}, {9: holder}, UUIDS) == {5: ("a",)}
    assert elsewhere({5: seat(5, "a")}, {9: holder}, UUIDS) == {}
    assert elsewhere({5: seat(5, "a", "b")}, {9: holder}, UUIDS) == {}
    assert elsewhere({5: seat(5, "b")}, {8: tenant(8, 0)}, UUIDS) == {}


def test_guests_own_nothing() -> None:
    """Neither one that asked nor one that was found."""
    assert owned(seat(5, "a"), tenant(6, sees=(0,), role="guest")) == {}


def test_a_guest_is_kept_from_what_others_closed() -> None:
    """Not from what is free, joinable, or its own since it was upgraded."""
    shut, joinable = Owner(1, takes_guests=False), Owner(2, takes_guests=True)
    assert closed({"a": shut, "b": joinable}, seat(7, "a", "b")) == ["a"]
    assert closed({"b": joinable}, seat(7, "a", "b")) == []
    assert closed({"a": Owner(7, takes_guests=False)}, seat(7, "a")) == []


def test_an_owner_is_stopped_for_nobody() -> None:
    """The one before it is dying still, or it is itself what lingers: neither is a guest."""
    before, after = owned(OURS[0], tenant(4, 0)), owned(*OURS, tenant(6, 0))
    assert [one["a"].job_id for one in (before, after)] == [4, 6]
    assert [closed(one, OURS[0]) for one in (before, after)] == [[], []]


def test_a_guest_that_nobody_seated_is_adopted_where_it_sits() -> None:
    """By what SPANK told it; a class too long for a page is cut."""
    carrier = {"role": "guest", "token": "ab", "class": "x" * 31}
    guest = Tenant(7, 1000, (TASK,), frozenset(), (1, 9), carrier)
    found = adopted({}, {7: guest}, UUIDS)
    assert found == {7: Seat(7, 1000, Role.GUEST, "x" * 15, "ab", ("b",), (TASK,))}


def test_a_seat_that_is_known_keeps_its_gpus_and_gains_tasks() -> None:
    """A step that started while nobody answered keeps the job's seat."""
    other = Task("0", 0, 101, 556)
    step = Tenant(7, 1000, (TASK, other), frozenset(), (0,), {"role": "guest"})
    assert adopted({7: seat(7, "b")}, {7: step}, UUIDS) == {7: seat(7, "b").with_task(other)}


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(tenant(7, sees=(0,)), id="no carrier"),
        pytest.param(tenant(7, 0, sees=(0,), role="guest"), id="it holds a GPU"),
        pytest.param(tenant(7, 0, sees=(0,), role="owner"), id="an owner"),
    ],
)
def test_only_guests_are_adopted(found: Tenant) -> None:
    """The others have their GPUs from Slurm."""
    assert adopted({}, {7: found}, UUIDS) == {}


def test_another_users_process_does_not_keep_a_seat() -> None:
    """The job of the same number was somebody else's."""
    theirs = Tenant(7, 2000, (Task("0", 0, 9, 9),), frozenset(), (0,), {"role": "guest"})
    assert adopted({7: seat(7, "b")}, {7: theirs}, UUIDS) == {7: seat(7, "b")}


def test_a_guest_is_stopped_and_goes_on_again() -> None:
    """Each time with a new epoch, and not told twice."""
    stop = order(Directive(epoch=3, armed_for_minibatch=9), stands=True)
    assert stop == Directive(epoch=4, request=Request.PAUSE)
    assert order(stop, stands=True) is stop
    assert order(stop, stands=False) == Directive(epoch=5)


def test_a_guest_that_was_sent_elsewhere_is_asked_to_be_there_when_it_goes_on() -> None:
    """Standing still comes first."""
    sent = Directive(epoch=3, request=Request.REBIND, gpu_uuids=("b",))
    assert order(sent, stands=False) is sent
    stopped = order(sent, stands=True)
    assert (stopped.epoch, stopped.request, stopped.gpu_uuids) == (4, Request.PAUSE, ("b",))
    again = order(stopped, stands=False)
    assert (again.epoch, again.request, again.gpu_uuids) == (5, Request.REBIND, ("b",))


def test_a_job_that_reaches_no_boundary_is_held_and_not_parked() -> None:
    """Also beside an owner that takes no guests; only to save itself does it go on."""
    held = order(Directive(), parks=True, waits=True, holds=True)
    assert held == Directive(epoch=1, request=Request.HOLD)
    assert order(held, parks=True, waits=True, holds=True, share_pct=20) == held
    assert order(held, stands=True, waits=True, holds=True) == held
    assert order(held, waits=True, holds=True, saves=True).request == Request.CHECKPOINT
    assert order(held) == Directive(epoch=2)
