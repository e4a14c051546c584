# SPDX-License-Identifier: Apache-2.0
"""MUNGE, by libmunge: who wrote something, on any host that has the cluster's key.

A call of the library takes 0.2 ms, the commands `munge` and `unmunge` twenty times as long. Calls
block for as long as munged takes: whoever has an event loop makes them in a thread.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from typing import Final, Self

MOST_CREDENTIAL_BYTES: Final = 4096
_LIBRARY: Final = "libmunge.so.2"
# From munge.h, which libmunge keeps as they are: its clients have them compiled in.
_OPTION_CIPHER: Final = 0
_OPTION_MAC: Final = 1
_OPTION_SOCKET: Final = 8
_OPTION_UID: Final = 9
_AES_128: Final = 4
_SHA256: Final = 5
_REPLAYED: Final = 17


class MungeError(Exception):
    """Munged would not write or read a credential, or cannot be asked; says why.

    Args:
        text: munged's sentence.
        replayed: whether it had read this very credential before.
    """

    def __init__(self, text: str, *, replayed: bool = False) -> None:
        super().__init__(text)
        self.replayed = replayed


@dataclass(frozen=True, slots=True)
class Opened:
    """What was in a credential, and the user who put it there."""

    uid: int
    payload: bytes


class Munge:
    """One munged.

    Args:
        socket_path: its socket; empty: where libmunge looks by itself.
    """

    def __init__(self, socket_path: str = "") -> None:
        self._socket_path = socket_path

    def seal(self, payload: bytes, for_uid: int) -> bytes:
        """A credential that only this user can open, on any host of the realm."""
        library = _library()
        with _Context(self._socket_path) as context:
            context.set(_OPTION_CIPHER, ctypes.c_int(_AES_128))
            context.set(_OPTION_MAC, ctypes.c_int(_SHA256))
            context.set(_OPTION_UID, ctypes.c_uint32(for_uid))
            text = ctypes.c_void_p()
            context.check(
                library.munge_encode(ctypes.byref(text), context.handle, payload, len(payload))
            )
            try:
                return ctypes.string_at(text)
            finally:
                _free(text)

    def open(self, credential: bytes) -> Opened:
        """Read one, once: munged refuses to read the same a second time, and what has expired."""
        if len(credential) > MOST_CREDENTIAL_BYTES or b"\0" in credential:
            raise MungeError(f"{len(credential)} bytes are no credential of ours")
        library = _library()
        with _Context(self._socket_path) as context:
            payload, size = ctypes.c_void_p(), ctypes.c_int()
            uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
            code = library.munge_decode(
                *(credential, context.handle, ctypes.byref(payload), ctypes.byref(size)),
                *(ctypes.byref(uid), ctypes.byref(gid)),
            )
            try:
                context.check(code)  # a payload comes with some errors, too: not to be looked at
                return Opened(
                    uid.value, ctypes.string_at(payload, size.value) if payload.value else b""
                )
            finally:
                _free(payload)


class _Context:
    """Options for one call; libmunge's contexts are not for several threads."""

    def __init__(self, socket_path: str) -> None:
        self.handle = ctypes.c_void_p(_library().munge_ctx_create())
        if not self.handle.value:
            raise MungeError("libmunge has no memory")
        if socket_path:
            self.set(_OPTION_SOCKET, ctypes.c_char_p(socket_path.encode()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _library().munge_ctx_destroy(self.handle)

    def set(self, option: int, value: ctypes.c_int | ctypes.c_uint32 | ctypes.c_char_p) -> None:
        self.check(_library().munge_ctx_set(self.handle, option, value))

    def check(self, code: int) -> None:
        if code == 0:
            return
        told = _library().munge_ctx_strerror(self.handle) or _library().munge_strerror(code)
        text = (told or b"").decode(errors="replace") or f"error {code}"
        raise MungeError(text, replayed=code == _REPLAYED)


@cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise MungeError(
            f"{_LIBRARY} is not installed (package libmunge2 or munge-libs)"
        ) from error
    pointer = ctypes.c_void_p
    library.munge_ctx_create.restype = pointer
    library.munge_ctx_destroy.argtypes = [pointer]
    library.munge_ctx_destroy.restype = None
    library.munge_ctx_strerror.argtypes = [pointer]
    library.munge_ctx_strerror.restype = ctypes.c_char_p
    library.munge_strerror.restype = ctypes.c_char_p
    library.munge_encode.argtypes = [pointer, pointer, ctypes.c_char_p, ctypes.c_int]
    library.munge_decode.argtypes = [ctypes.c_char_p, *([pointer] * 5)]
    return library


def _free(memory: ctypes.c_void_p) -> None:
    """What libmunge allocated is the C library's to free."""
    libc = ctypes.CDLL(None)
    libc.free.argtypes = [ctypes.c_void_p]
    libc.free(memory)
