# SPDX-License-Identifier: Apache-2.0
"""Sleeping on a word of a shared page, and waking whoever does: the kernel's futex, by ctypes.

The word is known by its file and its place in it, so that it needs no common memory but the page.
Where there is no such call, nobody sleeps and nobody is woken: each user has a way without.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_CALLS = {"x86_64": 202, "aarch64": 98}
_WAKE = 1
_WAIT_BITSET = 9  # the wait whose time limit is a moment of CLOCK_MONOTONIC
_ANY = 0xFFFFFFFF
_SECOND_NS = 1_000_000_000
_WORD_BYTES = 4
EVERYBODY = 0x7FFFFFFF
_ENOUGH = 64  # a page has one reader: a user who crowds it holds nobody up
_ENDED = (errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT)


class _Moment(ctypes.Structure):
    _fields_ = (("s", ctypes.c_long), ("ns", ctypes.c_long))


def wait(address: int, value: int, until_ns: int) -> bool:
    """Sleep while the word has this value: until woken, until then, or until a signal came.

    Other threads of Python run meanwhile. False: not slept, this kernel or this page cannot do it.
    """
    call = _call()
    if call is None:
        return False
    until = _Moment(*divmod(max(until_ns, 0), _SECOND_NS))
    ended = call(address, _WAIT_BITSET, value, ctypes.byref(until), None, _ANY)
    return ended == 0 or ctypes.get_errno() in _ENDED


def wake(address: int, most: int = EVERYBODY) -> None:
    """Wake so many of those who sleep on a word that is mapped here."""
    call = _call()
    if call is not None:
        call(address, _WAKE, most, None, None, 0)


def wake_in_file(descriptor: int, offset: int) -> None:
    """Wake those who sleep on a word of a file that may be anybody's.

    It is mapped for this one call, and touched by the kernel alone: a file that was cut short is an
    error there and nothing more, whereas a look at it would end this process.
    """
    if _call() is None:
        return
    libc, nbytes = _libc(), offset + _WORD_BYTES
    page = libc.mmap(None, nbytes, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if page != ctypes.c_void_p(-1).value:
        wake(page + offset, _ENOUGH)
        libc.munmap(page, nbytes)


@functools.cache
def _call() -> Callable[..., int] | None:
    """The system call, as futex(2) has it; None on a machine whose number for it is not known."""
    number = _CALLS.get(os.uname().machine)
    return None if number is None else functools.partial(_libc().syscall, number)


@functools.cache
def _libc() -> Any:  # noqa: ANN401 (functions of C)
    libc = ctypes.CDLL(None, use_errno=True)
    word, pointer = ctypes.c_long, ctypes.c_void_p
    libc.syscall.argtypes = (word, pointer, word, word, pointer, pointer, word)
    libc.syscall.restype = word
    libc.mmap.argtypes = (pointer, ctypes.c_size_t, *(3 * (ctypes.c_int,)), ctypes.c_long)
    libc.mmap.restype = pointer
    libc.munmap.argtypes = (pointer, ctypes.c_size_t)
    return libc
