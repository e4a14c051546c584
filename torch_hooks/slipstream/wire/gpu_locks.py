# SPDX-License-Identifier: Apache-2.0
"""Who may write a GPU's memory, and who still lives: record locks on a file beside that memory.

The kernel drops a process's record locks when it ends, however it ends, and when it execs; a fork
does not inherit them. So one byte per GPU is the lock for writing, and one byte per place in each
table of processes is held for as long as the process sitting there lives: asking for the holder of
that byte needs no /proc, cannot be fooled by a reused pid, and works across pid namespaces.

The price: closing *any* descriptor of the file drops *all* locks of the process. Hence the file is
not the memory itself, and is opened here and nowhere else in Python, once per process, for good.

A process that is stopped (SIGSTOP) in the few microseconds in which it holds a GPU's lock keeps
the others of that GPU waiting until it is continued.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from typing import TYPE_CHECKING, TypeVar

from slipstream.wire.gpu_state import MAX_GPUS, MAX_PROCESSES, GpuStateError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

SUFFIX = ".lock"
LIFE_OFFSET = 4096
"""Byte `gpu` is the lock of a GPU; the bytes from here on are the lives of its processes."""

_FLOCK = struct.Struct("@hhqqi4x")  # struct flock: l_type, l_whence, l_start, l_len, l_pid


def life_byte(gpu: int, slot: int) -> int:
    """The byte that the process in this place holds for as long as it lives."""
    return LIFE_OFFSET + gpu * MAX_PROCESSES + slot


class GpuLock:
    """Exclusive use of one GPU's memory, across threads and processes; not reentrant."""

    __slots__ = ("_descriptor", "_gpu", "_mutex", "_owner")

    def __init__(self, descriptor: int, gpu: int) -> None:
        self._descriptor = descriptor
        self._gpu = gpu
        self.forget()

    def forget(self) -> None:
        """In a forked child: the thread that held the mutex does not exist here."""
        self._mutex = threading.Lock()  # record locks do not keep threads apart
        self._owner = 0

    def run(self, body: Callable[..., T], *arguments: object) -> T:
        """Call `body` with the lock held.

        A signal handler may raise wherever Python calls something. So this is one function and not
        a pair of acquire and release: at no such place is the lock held without being given back.
        """
        caller = threading.get_ident()
        if self._owner == caller:
            raise RuntimeError(
                "a signal handler that interrupted a call to the GPU called the GPU itself: "
                "set a flag in the handler and act on it outside"
            )
        with self._mutex:
            try:
                self._owner = caller
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX, 1, self._gpu)
                return body(*arguments)
            finally:
                self._owner = 0
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._gpu)


class LockFile:
    """This process's one descriptor of a node's lock file."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._gpus = tuple(GpuLock(descriptor, gpu) for gpu in range(MAX_GPUS))

    def gpu(self, gpu: int) -> GpuLock:
        """The lock of one GPU, the same for all threads."""
        return self._gpus[gpu]

    def begin_life(self, gpu: int, slot: int) -> bool:
        """Hold the place's byte from now until this process ends; False if somebody else does."""
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, life_byte(gpu, slot))
        except (BlockingIOError, PermissionError):  # POSIX allows either
            return False
        return True

    def end_life(self, gpu: int, slot: int) -> None:
        """Give the place's byte back."""
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, life_byte(gpu, slot))

    def is_alive(self, gpu: int, slot: int) -> bool:
        """Whether any process, this one included, holds the place's byte."""
        # F_GETLK would not report this process's own locks; the open-file form reports them too.
        question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, life_byte(gpu, slot), 1, 0)
        answer = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, question)
        return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)

    def forget(self) -> None:
        """In a forked child: see GpuLock.forget."""
        for lock in self._gpus:
            lock.forget()


_opened: dict[tuple[int, int], LockFile] = {}
_opening = threading.Lock()


def open_locks(state_path: str | os.PathLike[str]) -> LockFile:
    """The locks of the node whose GPUs' memory is at `state_path`; the same object each time."""
    path = os.fspath(state_path) + SUFFIX
    with _opening:
        try:
            status = os.stat(path)  # noqa: PTH116 (no Path in a user's process for one call)
            key = (status.st_dev, status.st_ino)
            if key not in _opened:
                _opened[key] = LockFile(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:
            raise GpuStateError(
                f"the lock file {path!r} beside the GPUs' memory cannot be opened: {error.strerror}"
            ) from error
        return _opened[key]


def _forget_in_child() -> None:
    global _opening  # noqa: PLW0603 (a child cannot release the lock of a thread it does not have)
    _opening = threading.Lock()
    for locks in _opened.values():
        locks.forget()


os.register_at_fork(after_in_child=_forget_in_child)
