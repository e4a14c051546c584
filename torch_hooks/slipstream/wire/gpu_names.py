# SPDX-License-Identifier: Apache-2.0
"""GPUs by their UUIDs as they stand in a control block: so many places, one name each.

What is read was written by a user, who may write anything: names that are none are nobody's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_GPUS = 16
GPU_BYTES = 48
_NAME = re.compile(r"[A-Za-z0-9./-]{1,47}")


class GpuNamesError(ValueError):
    """These names have no room in a control block; says which."""


def packed(uuids: Sequence[str]) -> bytes:
    """One after the other, each in its place."""
    if len(uuids) > MAX_GPUS or not all(map(_NAME.fullmatch, uuids)):
        raise GpuNamesError(f"a control block has no room for these GPUs: {list(uuids)}")
    return b"".join(uuid.encode().ljust(GPU_BYTES, b"\0") for uuid in uuids)


def unpacked(raw: bytes, count: int) -> tuple[str, ...]:
    """So many names; none at all if one of them is no name."""
    places = range(0, min(count, MAX_GPUS) * GPU_BYTES, GPU_BYTES)
    names = [raw[at : at + GPU_BYTES].rstrip(b"\0").decode("ascii", "replace") for at in places]
    return tuple(names) if all(map(_NAME.fullmatch, names)) else ()
