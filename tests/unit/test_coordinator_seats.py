# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a guest gets, and that the table of seats survives."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.coordinator import store
from slipstream.coordinator.joining import Owner
from slipstream.coordinator.seats import GpuUse, Seat, Task, choose, guests_of
from slipstream.wire.control_block import Role

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

TASK = Task("batch", 0, 100, 555)


def gpus(*use_pct: float) -> list[GpuUse]:
    """GPUs a, b, c… so much used."""
    return [GpuUse("abcdefgh"[place], place, use, 0) for place, use in enumerate(use_pct)]


def seat(job_id: int, *uuids: str, role: Role = Role.GUEST) -> Seat:
    """A job on these GPUs."""
    return Seat(job_id, 1000, role, "opportunistic", "token", uuids, (TASK,))


def seats(*told: Seat) -> dict[int, Seat]:
    """A table."""
    return {one.job_id: one for one in told}


@pytest.mark.parametrize(
    ("use", "table", "count", "expected"),
    [
        pytest.param((0, 0), (), 1, "a", id="equal GPUs are settled by index"),
        pytest.param((50, 10), (), 1, "b", id="the least used is taken"),
        pytest.param((0, 90), (seat(1, "a"),), 1, "b", id="a GPU without a job comes first"),
        pytest.param(
            (80, 20), (seat(1, "a"), seat(2, "b")), 1, "b", id="a third shares the least used"
        ),
        pytest.param(
            (0, 60), (seat(1, "a", role=Role.OWNER),), 1, "b", id="an owner counts as a job"
        ),
        pytest.param((30, 20, 10), (), 2, "cb", id="two GPUs are two different ones"),
        pytest.param((0, 0), (), 4, "ab", id="there are not more than there are"),
        pytest.param((0,), (), 0, "", id="none was asked for"),
        pytest.param((1.2, 0.9), (), 1, "a", id="noise of a percent does not count"),
    ],
)
def test_a_guest_gets(
    use: tuple[float, ...], table: tuple[Seat, ...], count: int, expected: str
) -> None:
    """The least used GPUs, as the name of each case says."""
    assert choose(gpus(*use), seats(*table), count) == tuple(expected)


def test_less_memory_settles_equal_use() -> None:
    """Two idle GPUs, one of them half full."""
    full, empty = GpuUse("a", 0, 0.0, 500), GpuUse("b", 1, 0.0, 0)
    assert choose([full, empty], {}, 1) == ("b",)


def test_a_guest_keeps_what_it_has() -> None:
    """A second task of the job gets the same GPUs; more only if it asks for more."""
    assert choose(gpus(99, 0), {}, 1, kept=["a"]) == ("a",)
    assert choose(gpus(99, 0), {}, 2, kept=["a"]) == ("a", "b")


@given(
    use=st.lists(st.floats(0, 100), min_size=1, max_size=8),
    placed=st.lists(st.integers(0, 7), max_size=10),
    count=st.integers(0, 10),
)
def test_choices_are_distinct_and_even(use: list[float], placed: list[int], count: int) -> None:
    """Whatever is where: no GPU twice, and none with more jobs than one that was left out."""
    there = gpus(*use)
    table = seats(*(seat(job, there[at % len(there)].uuid) for job, at in enumerate(placed, 1)))
    jobs = {one.uuid: sum(one.uuid in other.gpu_uuids for other in table.values()) for one in there}
    chosen = choose(there, table, count)
    assert len(set(chosen)) == len(chosen) == min(count, len(there))
    left = [jobs[one.uuid] for one in there if one.uuid not in chosen]
    assert not chosen or not left or max(jobs[uuid] for uuid in chosen) <= min(left)


JOINABLE, CLOSED = Owner(1, takes_guests=True), Owner(2, takes_guests=False)


@pytest.mark.parametrize(
    ("use", "owned", "count", "expected"),
    [
        pytest.param((0, 99), {"a": JOINABLE}, 1, "b", id="a free GPU comes before a joinable one"),
        pytest.param((0, 99), {"a": CLOSED, "b": JOINABLE}, 1, "b", id="never beside a closed one"),
        pytest.param((0, 50, 9), {"a": CLOSED}, 2, "cb", id="among the others use decides"),
        pytest.param((9, 5), {"a": CLOSED, "b": CLOSED}, 1, "b", id="if all are, the least used"),
        pytest.param((0, 9), {"a": CLOSED}, 2, "ba", id="if there are too few, closed ones last"),
    ],
)
def test_owners_decide_who_joins(
    use: tuple[float, ...], owned: dict[str, Owner], count: int, expected: str
) -> None:
    """However little a GPU is used, its owner comes first, as the name of each case says."""
    assert choose(gpus(*use), {}, count, owned=owned) == tuple(expected)


def test_a_guest_sits_with_guests_before_it_joins_an_owner() -> None:
    """Two guests on the free GPU, nobody but its owner on the other."""
    table = seats(seat(7, "a"), seat(8, "a"), seat(1, "b", role=Role.OWNER))
    assert choose(gpus(50, 0), table, 1, owned={"b": JOINABLE}) == ("a",)


def test_guests_of_a_gpu_are_told_from_its_owner() -> None:
    """Any number of them."""
    table = seats(seat(1, "a", role=Role.OWNER), seat(3, "a"), seat(2, "a", "b"))
    assert (guests_of(table, "a"), guests_of(table, "b")) == ([2, 3], [2])


def test_the_table_comes_back_as_it_was(tmp_path: Path) -> None:
    """Seats, tasks, GPUs; nobody else can read it."""
    path = tmp_path / "seats.json"
    table = seats(seat(1, "a", role=Role.OWNER), seat(2, "a", "b"))
    store.save(path, table)
    assert store.load(path) == table
    assert path.stat().st_mode & 0o777 == 0o600


def test_no_table_is_an_empty_one(tmp_path: Path) -> None:
    """A node that has just started."""
    assert store.load(tmp_path / "seats.json") == {}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"v": 2, "seats": []}', '{"v": 1, "seats": [{"job_id": 1}]}']
)
def test_a_table_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """With its beginning quoted, or its version."""
    path = tmp_path / "seats.json"
    path.write_text(text)
    with pytest.raises(store.StoreError, match=r"seats\.json"):
        store.load(path)


def test_a_table_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """What is in the way of a draft does not matter, and none is left behind."""
    path = tmp_path / "seats.json"
    (tmp_path / ".seats.json.new").write_text("half of a ta")
    store.save(path, seats(seat(1, "a")))
    store.save(path, {})
    assert json.loads(path.read_text()) == {"v": 1, "seats": []}
    assert [one.name for one in tmp_path.iterdir()] == ["seats.json"]
