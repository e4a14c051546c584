# SPDX-License-Identifier: Apache-2.0
"""The hooks' native code: one shared object, built once for everybody and loaded when it is needed.

    python -m slipstream.torch_hooks.native build

compiles the C files beside this one and leaves the result here, under a name made of their text: a
library of other sources is never loaded. Without it everything works, slower.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
WIRE = FOLDER.parents[1] / "wire"
FLAGS = (
    *("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror"),
    *("-shared", "-fPIC", "-fvisibility=default", "-Wl,-Bsymbolic"),
)
_KNOWN = b"123456789"
_KNOWN_CRC32C = 0xE3069283  # the check value of the CRC catalogues


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


@functools.cache
def load() -> ctypes.CDLL:
    """The library, after a look at what it computes; raises NativeError."""
    path = library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(
            f"{error}; `python -m slipstream.torch_hooks.native build` makes it"
        ) from error
    for name in ("slip_crc32c", "slip_crc32c_slowly"):
        function = getattr(library, name)
        function.argtypes = (ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t)
        function.restype = ctypes.c_uint32
    library.slip_copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    library.slip_copy.restype = None
    for function in (library.slip_copy_all, library.slip_check_all):
        function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        function.restype = None
    _test(library, path)
    return library


def _test(library: ctypes.CDLL, path: Path) -> None:
    text = bytes(range(256)) * 200  # long enough for several lanes and a rest
    for start in (0, 3):
        rest = ctypes.create_string_buffer(text[start:])
        quick = library.slip_crc32c(1, rest, len(text) - start)
        if quick != library.slip_crc32c_slowly(1, rest, len(text) - start):
            raise NativeError(f"{path} computes wrong checksums on this processor")
        target = ctypes.create_string_buffer(len(text))
        library.slip_copy(ctypes.addressof(target) + start, text, len(text) - start)
        if target.raw[start:] != text[: len(text) - start]:
            raise NativeError(f"{path} does not copy what it is told on this processor")
    if library.slip_crc32c(0, _KNOWN, len(_KNOWN)) != _KNOWN_CRC32C:
        raise NativeError(f"{path} computes another checksum than CRC-32C")
