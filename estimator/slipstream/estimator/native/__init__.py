# SPDX-License-Identifier: Apache-2.0
"""The estimator's native code: one small shared object, built where it is installed.

    python -m slipstream.estimator.native build

leaves the library here under a name made of its source: one of other sources is never loaded.
Without it everything works, several times slower.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
SOURCE: Final = FOLDER / "forest.c"
FLAGS: Final = ("-std=c11", "-O3", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")


class NativeError(RuntimeError):
    """There is no usable library; says why and what to do."""


def library_path() -> Path:
    """Where the library of exactly this source is, or would be."""
    digest = hashlib.sha256("\0".join(FLAGS).encode() + SOURCE.read_bytes())
    return FOLDER / f"forest-{digest.hexdigest()[:16]}.so"


@functools.cache
def load() -> ctypes.CDLL:
    """The library; raises NativeError."""
    try:
        library = ctypes.CDLL(str(library_path()))
        function = library.slip_forest
    except (OSError, AttributeError) as error:
        raise NativeError(
            f"{error}; `python -m slipstream.estimator.native build` makes it"
        ) from error
    pointer = ctypes.c_void_p
    function.argtypes = (pointer, pointer, pointer, ctypes.c_int32, pointer, pointer)
    function.restype = None
    return library
