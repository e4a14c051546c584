# SPDX-License-Identifier: Apache-2.0
"""Copying memory as quickly as it can be done, with the GIL released."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

from slipstream.torch_hooks import native

if TYPE_CHECKING:
    from collections.abc import Callable


def copy(target: int, source: int, count: int) -> None:
    """Copy bytes from one address to another; the two do not overlap."""
    _function()(target, source, count)


@functools.cache
def _function() -> Callable[[int, int, int], object]:
    try:
        return native.load().slip_copy
    except native.NativeError:
        return ctypes.memmove
