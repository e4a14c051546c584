# SPDX-License-Identifier: Apache-2.0
"""The hooks' native code: one shared object, built once for everybody and loaded when it is needed.

    python -m slipstream.torch_hooks.native build

compiles the C files beside this one and leaves the result here, under a name made of their text: a
library of other sources is never loaded. Without it everything works, slower.
"""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
WIRE = FOLDER.parents[1] / "wire"
FLAGS = (
    *("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"),
    *("-shared", "-fPIC", "-fvisibility=default", "-Wl,-Bsymbolic"),
)


class NativeError(RuntimeError):
    """There is no usable library; says why and what to do."""


def sources() -> list[Path]:
    """The C files, in the order in which they are compiled."""
    return sorted(FOLDER.glob("*.c"))


def library_path() -> Path:
    """Where the library of exactly these sources is, or would be."""
    digest = hashlib.sha256("\0".join(FLAGS).encode())
    for path in (*sources(), *sorted(FOLDER.glob("*.h")), *sorted(WIRE.glob("*.h"))):
        digest.update(path.read_bytes())
    return FOLDER / f"hooks-{digest.hexdigest()[:16]}.so"


def load() -> ctypes.CDLL:
    """The library; raises NativeError."""
    path = library_path()
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(
            f"{error}; `python -m slipstream.torch_hooks.native build` makes it"
        ) from error
