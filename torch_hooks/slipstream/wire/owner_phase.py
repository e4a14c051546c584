# SPDX-License-Identifier: Apache-2.0
"""The owner's phase word: one small file per GPU in which its owner says when it leaves it idle.

`owner_phase.h` says the same in C; a test compares the two field by field. The owner's process is
the only writer: it holds a record lock on the file, which the kernel gives back when it ends. The
fields are written first and the word last, so who has read a word reads fields that are at least as
new. Guests may read and not write. All times are of CLOCK_MONOTONIC.
"""

from __future__ import annotations

import ctypes

from slipstream.wire import batons

MAGIC = b"SLIPPHAS"
VERSION = 1
FILE_BYTES = 4096
SUFFIX = ".phase"


class OwnerPhase(ctypes.Structure):
    """What the file begins with."""

    magic: bytes
    version: int
    word: int
    """Counts changes, and is what guests wait on; odd: the owner waits and its GPU is free."""
    job_id: int
    """Whose GPU it is, as the coordinator knows."""
    pid: int
    """The owner's process; 0: nobody says anything."""
    idle_from_ns: int
    """When the GPU has done all that the owner has given it."""
    ends_ns: int
    """Before when the wait is not expected to end; 0: unknown."""
    closed_ns: int
    """When the last wait ended."""
    waits: int
    _fields_ = (
        ("magic", ctypes.c_char * 8),
        ("version", ctypes.c_uint32),
        ("word", ctypes.c_uint32),
        ("job_id", ctypes.c_uint64),
        ("pid", ctypes.c_uint64),
        ("idle_from_ns", ctypes.c_uint64),
        ("ends_ns", ctypes.c_uint64),
        ("closed_ns", ctypes.c_uint64),
        ("waits", ctypes.c_uint64),
    )


def path(run_dir: str, gpu_uuid: str) -> str:
    """Where the file of a GPU is: beside its batons."""
    return f"{batons.folder(run_dir)}/{gpu_uuid}{SUFFIX}"


def fresh(job_id: int) -> bytes:
    """The file as the coordinator makes it for a GPU's new owner."""
    phase = OwnerPhase(magic=MAGIC, version=VERSION, job_id=job_id)
    return bytes(phase).ljust(FILE_BYTES, b"\0")


def is_whole(content: bytes) -> bool:
    """Whether these bytes are such a file of this version."""
    if len(content) != FILE_BYTES:
        return False
    phase = OwnerPhase.from_buffer_copy(content)
    return bool(phase.magic == MAGIC and phase.version == VERSION)
