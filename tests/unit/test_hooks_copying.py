# SPDX-License-Identifier: Apache-2.0
"""Many copies at once are exact, whatever their sizes, threads and pages."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.torch_hooks import copying, native
from slipstream.torch_hooks.checkpoint import checksums
from slipstream.torch_hooks.copying import HUGE_PAGE_BYTES, Piece
from slipstream.torch_hooks.native import __main__ as building

if TYPE_CHECKING:
    import ctypes

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module", autouse=True)
def library() -> ctypes.CDLL:
    """Built if it was not yet."""
    building.build()
    return native.load()


def random_bytes(count: int, seed: int) -> torch.Tensor:
    """So many."""
    numbers = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=numbers)


SIZES = [1, 63, 4096, 70_001, HUGE_PAGE_BYTES, 3 * HUGE_PAGE_BYTES + 17, 9 << 20]


@pytest.mark.parametrize("fresh", [False, True])
def test_all_of_them_are_copied_and_nothing_else_is_touched(fresh: bool) -> None:  # noqa: FBT001 (a parameter)
    """Into memory in use and into new; bytes between the targets stay."""
    sources = [random_bytes(size, size) for size in SIZES]
    room = torch.zeros(sum(SIZES) + 64 * len(SIZES), dtype=torch.uint8)
    pieces, at = [], 13
    for source in sources:
        pieces.append(Piece(room.data_ptr() + at, source.data_ptr(), source.numel()))
        at += source.numel() + 31
    copying.copy_all(pieces, fresh=fresh)
    at = 13
    assert not room[:at].any()
    for source in sources:
        assert torch.equal(room[at : at + source.numel()], source)
        at += source.numel()
        assert not room[at : at + 31].any()
        at += 31
    assert not room[at:].any()


def test_storages_side_by_side_keep_what_lies_between_them() -> None:
    """Heads of malloc's are in the same pages: freeing them all afterwards must go well."""
    source = random_bytes(3 << 20, 1)
    for _ in range(3):
        targets = [torch.empty(3 << 20, dtype=torch.uint8) for _ in range(12)]
        pieces = [Piece(one.data_ptr(), source.data_ptr(), one.numel()) for one in targets]
        copying.copy_all(pieces, fresh=True)
        assert all(torch.equal(one, source) for one in targets)


def test_without_native_code_the_copies_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other."""

    def missing() -> None:
        raise native.NativeError("not built")

    monkeypatch.setattr(native, "load", missing)
    source = random_bytes(5 << 20, 2)
    target = torch.empty_like(source)
    copying._function.cache_clear()  # noqa: SLF001 (what it remembers is of the other library)
    try:
        copying.copy_all([Piece(target.data_ptr(), source.data_ptr(), source.numel())], fresh=True)
    finally:
        copying._function.cache_clear()  # noqa: SLF001 (as above)
    assert torch.equal(target, source)


AREA_BYTES = 1 << 20


@pytest.mark.parametrize("kind", [checksums.CRC32C, checksums.CRC32])
def test_checksums_are_those_of_the_source_while_it_is_copied(kind: str) -> None:
    """Of areas that are copied from altogether, in part, across their ends, or not at all."""
    source = random_bytes(5 * AREA_BYTES + 12_345, 3)
    begin = source.data_ptr()
    cuts = [(0, 100), (100, AREA_BYTES), (AREA_BYTES + 7000, 2 * AREA_BYTES), (5 * AREA_BYTES, 345)]
    targets = [torch.empty(count, dtype=torch.uint8) for _, count in cuts]
    copies = [
        Piece(target.data_ptr(), begin + at, count)
        for target, (at, count) in zip(targets, cuts, strict=True)
    ]
    copies.reverse()
    areas = checksums.pieces(begin, source.numel(), AREA_BYTES)
    expected = [checksums.named(kind)(*area) for area in areas]
    assert checksums.of_copied(kind, areas, copies) == expected
    for target, (at, count) in zip(targets, cuts, strict=True):
        assert torch.equal(target, source[at : at + count])


def test_a_flipped_bit_is_seen_wherever_it_is() -> None:
    """In what is copied and in what is not."""
    source = random_bytes(2 * AREA_BYTES, 5)
    target = torch.empty(AREA_BYTES, dtype=torch.uint8)
    areas = checksums.pieces(source.data_ptr(), source.numel(), AREA_BYTES)
    copies = [Piece(target.data_ptr(), source.data_ptr() + 1000, AREA_BYTES)]
    right = copying.checked_copies(areas, copies)
    for at in (0, 999, 1000, 500_000, AREA_BYTES + 999, AREA_BYTES + 1000, 2 * AREA_BYTES - 1):
        source[at] ^= 1
        found = copying.checked_copies(areas, copies)
        assert [one != other for one, other in zip(found, right, strict=True)] == [
            at < AREA_BYTES,
            at >= AREA_BYTES,
        ]
        source[at] ^= 1


@given(st.lists(st.tuples(st.integers(1, 1 << 24), st.integers(1, 1 << 24)), max_size=8))
def test_huge_pages_that_are_asked_for_hold_nothing_but_targets(
    gaps_and_counts: list[tuple[int, int]],
) -> None:
    """Whoever else has something in a page keeps it as it is."""
    pieces, at = [], 1 << 30
    for gap, count in gaps_and_counts:
        pieces.append(Piece(at + gap, 0, count))
        at += gap + count
    ranges = list(copying._ranges(pieces))  # noqa: SLF001 (what is asked for)
    for begin, end in ranges:
        assert begin % 4096 == end % 4096 == 0
        inside = [one for one in pieces if begin <= one.target < end]
        gaps = [
            later.target - (sooner.target + sooner.nbytes)
            for sooner, later in itertools.pairwise(inside)
        ]
        assert all(gap < 2 * 4096 for gap in gaps), "no whole page of anybody else's"
    assert all(
        any(begin <= one.target and one.target + one.nbytes <= end for begin, end in ranges)
        for one in pieces
    )
