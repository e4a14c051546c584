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
    from collections.abc import Callable, Iterator, Sequence

HUGE_PAGE_BYTES = 2 << 20
_MOST_THREADS = 4
_WORTH_THREADS_BYTES = 8 << 20


class Piece(NamedTuple):
    """So many bytes from one address to another; the two do not overlap."""

    target: int
    source: int
    count: int


class _Native(ctypes.Structure):
    """A piece as native code has it."""

    _fields_ = (
        ("target", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("fresh_page", ctypes.c_void_p),
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
    blocks = [
        _Native(*block, page if page in huge else None)
        for piece in pieces
        for page, block in _blocks(piece)
    ]
    table = (_Native * len(blocks))(*blocks)
    total = sum(piece.count for piece in pieces)
    library.slip_copy_all(table, len(blocks), threads() if total >= _WORTH_THREADS_BYTES else 1)


def threads() -> int:
    """How many threads copy."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


def _ask_for_huge_pages(pieces: Sequence[Piece]) -> frozenset[int]:
    """Ask for them; returns where those begin in which there is nothing but the targets."""
    libc = ctypes.CDLL(None)
    pages = set()
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
        last = -(-(piece.target + piece.count) // mmap.PAGESIZE) * mmap.PAGESIZE
        if first > end:
            if end:
                yield begin, end
            begin = first
        end = max(end, last)
    if end:
        yield begin, end


def _blocks(piece: Piece) -> Iterator[tuple[int, Piece]]:
    """The piece cut where huge pages begin, and where that is."""
    at = 0
    while at < piece.count:
        target = piece.target + at
        page = target // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
        count = min(piece.count - at, page + HUGE_PAGE_BYTES - target)
        yield page, Piece(target, piece.source + at, count)
        at += count


@functools.cache
def _function() -> Callable[[int, int, int], object]:
    try:
        return native.load().slip_copy
    except native.NativeError:
        return ctypes.memmove
