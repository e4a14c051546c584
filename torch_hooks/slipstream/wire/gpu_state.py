# SPDX-License-Identifier: Apache-2.0
"""The memory of one node's simulated GPUs: one file, mapped by every process of the node.

`gpu_state.h` says the same in C; a test compares the two field by field. Each part has its writer:

* who and how large a GPU is, is written once, when the file is made;
* `health`, `xid_count` and `xids` belong to whoever injects faults;
* all else belongs to the process that holds the GPU's lock (`gpu_locks`), and is written so that
  the process may be killed between any two stores: the next holder finds `sequence` odd and
  repairs. Each store is one aligned word, in program order as x86-64 keeps it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

ENVIRONMENT_VARIABLE = "SLIPSTREAM_GPU_STATE"

MAGIC = b"SLIPGPUS"
VERSION = 1
HEADER_BYTES = 4096  # the header has a page of its own
MAX_GPUS = 64
MAX_PROCESSES = 64
MAX_UNFINISHED = 1024  # launches of one engine that have not ended; the next launch waits
RING = 8192  # unfinished entries and, behind them, the history from which use is computed
XIDS = 16

COMPUTE = 0
COPY = 1
ENGINES = (COMPUTE, COPY)

DROPPED = 1  # flag: its process died before it could start; it takes no time
TO_HOST = 2  # flag: a copy from the GPU to the host; without it, the other way


class GpuStateError(RuntimeError):
    """The file is not the memory of a node's GPUs; says what was found instead."""


class Header(ctypes.Structure):
    """The beginning of the file: enough to refuse a file of another layout."""

    magic: bytes
    version: int
    gpu_count: int
    gpu_bytes: int
    file_bytes: int
    cluster: bytes
    node: bytes
    _fields_ = (
        ("magic", ctypes.c_char * 8),
        ("version", ctypes.c_uint32),
        ("gpu_count", ctypes.c_uint32),
        ("gpu_bytes", ctypes.c_uint64),
        ("file_bytes", ctypes.c_uint64),
        ("cluster", ctypes.c_char * 64),
        ("node", ctypes.c_char * 64),
    )


class Entry(ctypes.Structure):
    """One kernel or copy. Its end is not stored: moving it is one store, so it is never torn."""

    sequence: int
    slot: int
    flags: int
    generation: int
    start_ns: int
    duration_ns: int
    launched_total_ns: int
    """What `Process.launched_ns` is once this entry counts: lets a repair finish a launch."""
    _fields_ = (
        ("sequence", ctypes.c_uint64),
        ("slot", ctypes.c_uint16),
        ("flags", ctypes.c_uint16),
        ("generation", ctypes.c_uint32),
        ("start_ns", ctypes.c_uint64),
        ("duration_ns", ctypes.c_uint64),
        ("launched_total_ns", ctypes.c_uint64),
    )


class Process(ctypes.Structure):
    """One place in a GPU's table of processes; free when `pid` is 0.

    `launched_ns` belongs to the place and is never reset, so that the GPU's total is the sum over
    all places and nothing has to be moved when a process goes. Of the process that sits here it is
    what exceeds `base_ns`.
    """

    pid: int
    generation: int
    opened_at_ns: int
    memory_bytes: int
    peak_memory_bytes: int
    launched_ns: ctypes.Array[ctypes.c_uint64]
    base_ns: ctypes.Array[ctypes.c_uint64]
    _fields_ = (
        ("pid", ctypes.c_uint32),
        ("generation", ctypes.c_uint32),
        ("opened_at_ns", ctypes.c_uint64),
        ("memory_bytes", ctypes.c_uint64),
        ("peak_memory_bytes", ctypes.c_uint64),
        ("launched_ns", ctypes.c_uint64 * len(ENGINES)),
        ("base_ns", ctypes.c_uint64 * len(ENGINES)),
    )


class Engine(ctypes.Structure):
    """A first-in-first-out queue; entry number n is at n % RING, the newest is number `tail`."""

    tail: int
    moves: int
    """Odd while starts are being rewritten because a process died."""
    entries: ctypes.Array[Entry]
    _fields_ = (
        ("tail", ctypes.c_uint64),
        ("moves", ctypes.c_uint64),
        ("entries", Entry * RING),
    )


class Gpu(ctypes.Structure):
    """One GPU."""

    sequence: int
    """Odd while the holder of the lock writes; found odd by the next holder, that one died."""
    uuid: bytes
    name: bytes
    memory_bytes: int
    copy_bytes_per_s: int
    health: int
    """Odd: lost. Each loss and each reset adds one; who sees another number than at its start lost
    the device."""
    xid_count: int
    xids: ctypes.Array[ctypes.c_uint32]
    """Xid number n (from 1) is at n % XIDS."""
    checked_at_ns: int
    """When somebody last looked for dead processes."""
    processes: ctypes.Array[Process]
    engines: ctypes.Array[Engine]
    _fields_ = (
        ("sequence", ctypes.c_uint64),
        ("uuid", ctypes.c_char * 48),
        ("name", ctypes.c_char * 64),
        ("memory_bytes", ctypes.c_uint64),
        ("copy_bytes_per_s", ctypes.c_uint64),
        ("health", ctypes.c_uint64),
        ("xid_count", ctypes.c_uint64),
        ("xids", ctypes.c_uint32 * XIDS),
        ("checked_at_ns", ctypes.c_uint64),
        ("processes", Process * MAX_PROCESSES),
        ("engines", Engine * len(ENGINES)),
    )


@dataclass(frozen=True)
class Node:
    """A node's GPUs, mapped; valid for as long as it is referenced."""

    path: str
    header: Header
    gpus: Sequence[Gpu]


def file_bytes(gpu_count: int) -> int:
    """How large the file of so many GPUs is."""
    return HEADER_BYTES + gpu_count * ctypes.sizeof(Gpu)


def map_node(path: str | os.PathLike[str]) -> Node:
    """Map a node's file for reading and writing, after checking that it is one."""
    name = os.fspath(path)
    try:
        descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise GpuStateError(
            f"the GPUs' memory {name!r} cannot be opened: {error.strerror}"
        ) from error
    try:
        size = os.fstat(descriptor).st_size
        if size < HEADER_BYTES:
            raise GpuStateError(
                f"{name!r} has {size} bytes: a file of GPUs' memory has at least {HEADER_BYTES}"
            )
        buffer = mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
    return over_buffer(buffer, name)


def over_buffer(buffer: mmap.mmap, name: str) -> Node:
    """Lay the structures over mapped bytes; `name` is for the error's sentence."""
    header = Header.from_buffer(buffer)
    wrong = _what_is_wrong(header, len(buffer))
    if wrong:
        raise GpuStateError(f"{name!r} {wrong}")
    gpus = (Gpu * header.gpu_count).from_buffer(buffer, HEADER_BYTES)
    # A Gpu taken out of the array anew each time would be another Python object each time.
    return Node(name, header, tuple(gpus))


def _what_is_wrong(header: Header, size: int) -> str:
    if header.magic != MAGIC:
        return f"is not GPUs' memory: it begins with {header.magic!r}, not with {MAGIC!r}"
    if header.version != VERSION:
        return (
            f"has layout version {header.version}, this Slipstream reads {VERSION}: "
            "make the sandbox anew with the version that uses it"
        )
    if header.gpu_bytes != ctypes.sizeof(Gpu):
        return f"has {header.gpu_bytes} bytes a GPU, this build has {ctypes.sizeof(Gpu)}"
    if not 1 <= header.gpu_count <= MAX_GPUS:
        return f"says it has {header.gpu_count} GPUs; possible are 1 to {MAX_GPUS}"
    if not header.file_bytes == size == file_bytes(header.gpu_count):
        return (
            f"has {size} bytes; its {header.gpu_count} GPUs need {file_bytes(header.gpu_count)}: "
            "it was cut off or is still being written"
        )
    return ""
