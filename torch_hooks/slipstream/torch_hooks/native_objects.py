# SPDX-License-Identifier: Apache-2.0
"""Objects of certain classes among hundreds of thousands, natively (see objects.c)."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

from slipstream.torch_hooks import native

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

_POINTER_BYTES = ctypes.sizeof(ctypes.c_void_p)
_ROOM = 4096


def of_types(things: list[object], types: Collection[type]) -> list[int] | None:
    """Where in the list those are whose class is one of these; None if Python has to look."""
    find = _function()
    if find is None:
        return None
    table = (ctypes.c_void_p * len(types))(*map(id, types))
    room = _ROOM
    while True:
        found = (ctypes.c_size_t * room)()
        count = find(_items(things), len(things), table, len(types), found, room)
        if count <= room:
            return found[:count]
        room = count


@functools.cache
def _function() -> Callable[..., int] | None:
    """Ours, if this Python keeps lists and objects as the native code thinks."""
    try:
        native.load()
        function = ctypes.PyDLL(str(native.library_path())).slip_find_objects  # keeps the GIL
    except (native.NativeError, OSError):
        return None
    if not _is_laid_out_as_thought():
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t) * 3
    function.restype = ctypes.c_size_t
    return function


def _is_laid_out_as_thought() -> bool:
    """A count of references, the type; in a list then its length and where its items are."""
    things: list[object] = [object(), {}, functools, 7.5]
    for thing in (things, *things):
        if _word(thing, 1) != id(type(thing)):  # a Python without a GIL, or one for debugging
            return False
    return _word(things, 2) == len(things) and list(
        (ctypes.c_void_p * len(things)).from_address(_items(things))
    ) == [id(thing) for thing in things]


def _items(things: list[object]) -> int:
    return _word(things, 3)


def _word(thing: object, number: int) -> int:
    return ctypes.c_void_p.from_address(id(thing) + number * _POINTER_BYTES).value or 0
