# SPDX-License-Identifier: Apache-2.0
"""Copying memory as quickly as it can be done, with the GIL released.

Memory that nobody has used yet has to be cleared by the kernel first, page by page. A huge page is
cleared several times quicker than as many small ones. The C library puts a head before each piece
that it hands out, so that of pieces that lie side by side many huge pages have one small page in
use already: those are asked for by name (see copy_all.c).
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from typing import TYPE_CHECKING, NamedTuple

from slipstream.torch_hooks import native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

HUGE_PAGE_BYTES = 2 << 20
_MOST_THREADS = 4
_WORTH_THREADS_BYTES = 8 << 20


class Piece(NamedTuple):
    """So many bytes from one address to another; the two do not overlap."""

    target: int
    source: int
    nbytes: int


class _Piece(ctypes.Structure):
    """The same for native code."""

    _fields_ = (
        ("target", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("fresh_page", ctypes.c_void_p),
    )


class _Checked(ctypes.Structure):
    """Memory with a checksum of its own."""

    checksum: int
    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("pieces", ctypes.c_void_p),
        ("piece_count", ctypes.c_size_t),
        ("checksum", ctypes.c_uint64),
    )


def copy(target: int, source: int, count: int) -> None:
    """Copy bytes from one address to another; the two do not overlap."""
    _function()(target, source, count)


def copy_all(pieces: Sequence[Piece], *, fresh: bool = False) -> None:
    """Copy all of them, on several processors; `fresh` if nobody has used the targets yet."""
    huge = _ask_for_huge_pages(pieces) if fresh else frozenset[int]()
    try:
        library = native.load()
    except native.NativeError:
        for piece in pieces:
            copy(*piece)
        return
    blocks = _table(pieces, huge)
    total = sum(piece.nbytes for piece in pieces)
    library.slip_copy_all(blocks, len(blocks), threads() if total >= _WORTH_THREADS_BYTES else 1)


def checked_copies(areas: Sequence[tuple[int, int]], pieces: Sequence[Piece]) -> list[int]:
    """Copy to memory that nobody has used yet, and say the CRC-32C of areas that are copied from.

    Args:
        areas: addresses and sizes, in order and side by side.
        pieces: copies of what lies in them, no byte twice.

    Raises:
        NativeError: that takes native code.
    """
    library = native.load()
    huge = _ask_for_huge_pages(pieces)
    parts = _split(areas, sorted(pieces, key=lambda piece: piece.source))
    tables = [_table(part, huge) for part in parts]
    table = (_Checked * len(areas))(
        *(
            _Checked(begin, count, ctypes.addressof(blocks), len(blocks), 0)
            for (begin, count), blocks in zip(areas, tables)  # noqa: B905 (Python 3.9)
        )
    )
    library.slip_check_all(table, len(table), threads())
    return [one.checksum for one in table]


def threads() -> int:
    """How many threads copy."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


def _split(areas: Iterable[tuple[int, int]], pieces: Iterable[Piece]) -> list[list[Piece]]:
    """What is copied from each area, cut where one ends."""
    parts = []
    rest = list(reversed(list(pieces)))
    for begin, count in areas:
        part = []
        while rest and rest[-1].source < begin + count:
            piece = rest.pop()
            here = min(piece.nbytes, begin + count - piece.source)
            part.append(piece._replace(nbytes=here))
            if here < piece.nbytes:
                rest.append(Piece(piece.target + here, piece.source + here, piece.nbytes - here))
        parts.append(part)
    return parts


def _table(pieces: Iterable[Piece], huge: frozenset[int]) -> ctypes.Array[_Piece]:
    """For native code, cut where huge pages begin."""
    blocks = [
        _Piece(*block, page if page in huge else None)
        for piece in pieces
        for page, block in _blocks(piece)
    ]
    return (_Piece * len(blocks))(*blocks)


def _blocks(piece: Piece) -> Iterator[tuple[int, Piece]]:
    """Each with the place where its huge page begins."""
    at = 0
    while at < piece.nbytes:
        target = piece.target + at
        page = target // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        count = min(piece.nbytes - at, page + HUGE_PAGE_BYTES - target)
        yield page, Piece(target, piece.source + at, count)
        at += count


def _ask_for_huge_pages(pieces: Sequence[Piece]) -> frozenset[int]:
    """Ask for them; returns where those begin in which there is nothing but the targets."""
    libc = ctypes.CDLL(None)
    pages: set[int] = set()
    for begin, end in _ranges(pieces):
        first = -(-begin // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        if first + HUGE_PAGE_BYTES > end:
            continue
        # What an old kernel does not understand is only slower.
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_HUGEPAGE)
        pages.update(range(first, end - HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES))
    return frozenset(pages)


def _ranges(pieces: Sequence[Piece]) -> Iterator[tuple[int, int]]:
    """Pages with something of the targets, those side by side as one."""
    begin = end = 0
    for piece in sorted(pieces):
        first = piece.target // mmap.PAGESIZE * mmap.PAGESIZE
        last = -(-(piece.target + piece.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        if first > end:
            if end:
                yield begin, end
            begin = first
        end = max(end, last)
    if end:
        yield begin, end


@functools.cache
def _function() -> Callable[[int, int, int], object]:
    try:
        return native.load().slip_copy
    except native.NativeError:
        return ctypes.memmove
