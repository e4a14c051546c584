# SPDX-License-Identifier: Apache-2.0
"""Checksums of pieces of memory, natively where possible, and never with the GIL held."""

from __future__ import annotations

import ctypes
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from slipstream.torch_hooks import copying, native
from slipstream.torch_hooks.checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slipstream.torch_hooks.copying import Piece

    Checksum = Callable[[int, int], int]
    """Given an address and how many bytes, their checksum."""

PIECE_BYTES = 8 << 20
CRC32C = "crc32c"
CRC32 = "crc32"


def best() -> tuple[str, Checksum, str]:
    """The quickest kind that there is, and why it is not the quickest that there could be."""
    try:
        return CRC32C, _crc32c(), ""
    except native.NativeError as error:
        return CRC32, _crc32, str(error)


def named(kind: str) -> Checksum:
    """The kind that a checkpoint was written with."""
    if kind == CRC32:
        return _crc32
    if kind != CRC32C:
        raise CheckpointError(f"its checksums are {kind!r}; known are {CRC32C!r} and {CRC32!r}")
    try:
        return _crc32c()
    except native.NativeError as error:
        raise CheckpointError(f"it cannot be verified here: {error}") from error


def pieces(address: int, size: int, piece_bytes: int = PIECE_BYTES) -> list[tuple[int, int]]:
    """Memory in pieces, as addresses and sizes."""
    return [(address + at, min(piece_bytes, size - at)) for at in range(0, size, piece_bytes)]


def of_copied(kind: str, areas: Sequence[tuple[int, int]], copies: Sequence[Piece]) -> list[int]:
    """Of each area, side by side as they are, while copies from them to new memory are made."""
    checksum = named(kind)
    if kind == CRC32C:
        return copying.checked_copies(areas, copies)
    copying.copy_all(copies, fresh=True)
    with ThreadPoolExecutor(copying.threads()) as threads:
        return list(threads.map(lambda area: checksum(*area), areas))


def _crc32c() -> Checksum:
    function = native.load().slip_crc32c
    return lambda address, size: int(function(0, address, size))


def _crc32(address: int, size: int) -> int:
    return zlib.crc32((ctypes.c_char * size).from_address(address))
