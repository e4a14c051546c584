# SPDX-License-Identifier: Apache-2.0
"""The quiet boundary in native code, as Python sees it (see step.c).

A shortcut and no more: it does all of a boundary or nothing, and what it leaves alone is done by
`Boundaries` and `Session`, which share their numbers with it.
"""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING, NamedTuple

from slipstream.torch_hooks import native

if TYPE_CHECKING:
    from collections.abc import Callable


class Steps(ctypes.Structure):
    """How deep a thread is in steps, and whose steps it follows."""

    depth: int
    passed: int
    leader: int
    """The number (`id`) of an optimizer."""
    _fields_ = (
        ("depth", ctypes.c_uint64),
        ("passed", ctypes.c_uint64),
        ("leader", ctypes.c_uint64),
    )


class Course(ctypes.Structure):
    """How far a training is."""

    minibatches: int
    began_ns: int
    quiet: int
    """Nothing is asked for, or ever was that is not done."""
    told: int
    """The sequence of the directive that was last read."""
    _fields_ = (
        ("minibatches", ctypes.c_uint64),
        ("began_ns", ctypes.c_uint64),
        ("quiet", ctypes.c_uint64),
        ("told", ctypes.c_uint64),
    )


class PaceNumbers(ctypes.Structure):
    """What a running mini-batch time consists of."""

    seen: int
    duration_ns: int
    _fields_ = (("seen", ctypes.c_uint64), ("duration_ns", ctypes.c_uint64))


class Shortcuts(NamedTuple):
    """What is asked first; False: nothing was done."""

    step_begins: Callable[[], bool]
    step_ends: Callable[[object], bool]


def never(*_: object) -> bool:
    """Where there is no shortcut."""
    return False


@functools.cache
def shortcuts() -> Shortcuts:
    """The two functions of this process; raises NativeError."""
    library = native.load()
    library.slip_step_follow.argtypes = (ctypes.c_uint64, *(ctypes.c_void_p,) * 5)
    library.slip_step_prepare.argtypes = (ctypes.py_object, ctypes.py_object)
    library.slip_step_prepare.restype = ctypes.c_bool
    if not library.slip_step_prepare(True, False):
        raise native.NativeError("this Python has no Py_IncRef")
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.argtypes = (ctypes.c_void_p,) * 3
    make.restype = ctypes.py_object
    table = (ctypes.c_char * (2 * _METHOD_BYTES)).in_dll(library, "slip_step_methods")
    first = ctypes.addressof(table)
    return Shortcuts(*(make(first + number * _METHOD_BYTES, None, None) for number in range(2)))


def follow(
    thread: int, steps: Steps, course: Course, pace: PaceNumbers, up: int, down: int
) -> None:
    """From now on this thread's quiet boundaries are counted natively; all must live until then."""
    shortcuts()
    structures = (steps, course, pace)
    native.load().slip_step_follow(thread, *map(ctypes.addressof, structures), up, down)


def forget() -> None:
    """What was given is not touched any more."""
    if shortcuts.cache_info().currsize:
        native.load().slip_step_forget()


_METHOD_BYTES = 4 * ctypes.sizeof(ctypes.c_void_p)  # a PyMethodDef
