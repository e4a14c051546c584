# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a process sees: CUDA_VISIBLE_DEVICES, read the way CUDA reads it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ENVIRONMENT_VARIABLE = "CUDA_VISIBLE_DEVICES"

_LEADING_NUMBER = re.compile(r"\s*[+]?([0-9]+)")


def parse(text: str | None, uuids: Sequence[str]) -> tuple[int, ...]:
    """Physical indices in the order in which the process numbers them.

    Unset means all, empty none. The first name that means no GPU ends the list, and a GPU named
    twice empties it: CUDA's own rules, by which a mistake hides GPUs rather than choosing others.
    """
    if text is None:
        return tuple(range(len(uuids)))
    chosen: list[int] = []
    for name in text.split(","):
        index = _find_uuid(name.strip(), uuids) if text.startswith("GPU-") else _read_index(name)
        if index is None or index >= len(uuids):
            break
        if index in chosen:
            return ()
        chosen.append(index)
    return tuple(chosen)


def _read_index(name: str) -> int | None:
    # As strtoul does: what follows the digits is ignored.
    match = _LEADING_NUMBER.match(name)
    return int(match.group(1)) if match else None


def _find_uuid(name: str, uuids: Sequence[str]) -> int | None:
    # A beginning is enough if it means one GPU only.
    if not name.startswith("GPU-"):
        return None
    found = [index for index, uuid in enumerate(uuids) if uuid.startswith(name)]
    return found[0] if len(found) == 1 else None
