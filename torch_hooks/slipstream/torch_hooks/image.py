# SPDX-License-Identifier: Apache-2.0
"""The program of this process, begun anew in its place: exec, and what exec does not give back.

The process stays: its pid, its standard streams, its cgroup, its place in Slurm. The program begins
from its first line, as it was started: the same interpreter, arguments, environment and folder.
What exec hands on although the program made it so (a folder, a signal mask, the one core a thread
is bound to, a timer, descriptors of libraries) is put back as it was before torch was imported. An
exec that fails changes nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import io
import os
import signal
import stat
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FLUSH_S = 5.0


class ImageError(RuntimeError):
    """The program cannot be begun anew; says why."""


@dataclass(frozen=True)
class Start:
    """How this process was when torch was about to be imported."""

    pid: int
    folder: str
    processors: frozenset[int]
    masked: frozenset[int]
    descriptors: frozenset[int]
    program: tuple[int, ...]
    """The file that the program is in, as it was then."""


_start: Start | None = None


def remember() -> None:
    """Once, and as early as we are there."""
    global _start  # noqa: PLW0603 (a process starts once)
    if _start is None:
        with contextlib.suppress(OSError):  # its folder is gone, say: it cannot be begun anew
            _start = Start(
                os.getpid(),
                os.getcwd(),  # noqa: PTH109 (no pathlib in a user's process)
                frozenset(os.sched_getaffinity(0)),
                frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
                frozenset(_descriptors()),
                _identity_of_program(),
            )


def why_not() -> str:
    """Why this program cannot be begun anew; empty if it can."""
    if _start is None:
        return "torch was imported before the hooks were there"
    if _start.pid != os.getpid() or _is_child_of_python():
        return "it is a child of the program, not the program"
    return _why_not_python() or _why_not_program(_start)


def _why_not_python() -> str:
    if not hasattr(sys, "orig_argv"):
        return "this Python does not tell how it was started; 3.10 and later do"
    return "" if _is_this_program(sys.executable) else f"{sys.executable!r} is not what runs here"


def _why_not_program(start: Start) -> str:
    if not start.program and sys.argv[:1] != ["-c"]:
        return "its program is in no file: it came through standard input or out of an archive"
    if start.program != _identity_of_program():
        return f"{_program()} is not the file any more that it was started from"
    return ""


def environment() -> dict[str, str]:
    """What this process was started with, whatever the program has made of it since.

    Raises:
        ImageError: it cannot be read, or was overwritten, as some do to show a title.
    """
    try:
        with open("/proc/self/environ", "rb") as file:  # noqa: PTH123 (no pathlib in a user's process)
            entries = file.read().rstrip(b"\0").split(b"\0")
    except OSError as error:
        raise ImageError(f"its environment cannot be read: {error}") from error
    pairs = [os.fsdecode(entry).partition("=") for entry in entries]
    if not all(name and equals for name, equals, _ in pairs):
        raise ImageError("its environment was overwritten")
    return {name: value for name, _, value in pairs}


def begin_anew(variables: Mapping[str, str]) -> None:
    """Exec; returns only by an error, and then nothing has changed.

    Args:
        variables: of the environment, beside those that the process was started with.

    Raises:
        ImageError: it cannot be done.
        OSError: it was not done.
    """
    reason = why_not()
    if reason or _start is None:
        raise ImageError(reason)
    told = {**environment(), **variables}
    flush()
    with _as_at_start(_start):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], told)  # noqa: S606 (the program itself, anew)


def flush() -> None:
    """What the program has written and Python or C still hold: nobody else will."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the program may have put anything there
            stream.flush()
    for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
        for one in gc.get_objects():
            if issubclass(type(one), kind):
                with contextlib.suppress(OSError, ValueError):  # closed, or its reader is gone
                    one.flush()
    # A thread that reads by C's means holds its stream for as long as nothing comes.
    libc = threading.Thread(target=ctypes.CDLL(None).fflush, args=(None,), daemon=True)
    libc.start()
    libc.join(_FLUSH_S)


@contextlib.contextmanager
def _as_at_start(start: Start) -> Iterator[None]:
    """What exec hands on is as it was; on the way out, which is an error, as it is now."""
    with contextlib.ExitStack() as back:
        here = os.getcwd()  # noqa: PTH109 (no pathlib in a user's process)
        os.chdir(start.folder)
        back.callback(os.chdir, here)
        back.callback(os.sched_setaffinity, 0, os.sched_getaffinity(0))
        with contextlib.suppress(OSError):  # a cgroup may have taken processors away since
            os.sched_setaffinity(0, start.processors)
        for descriptor in set(_descriptors()) - start.descriptors:
            _close_on_exec(descriptor, back)
        back.callback(signal.setitimer, signal.ITIMER_REAL, *signal.setitimer(0, 0.0))
        masked = signal.pthread_sigmask(signal.SIG_SETMASK, start.masked)
        back.callback(signal.pthread_sigmask, signal.SIG_SETMASK, masked)
        yield


def _close_on_exec(descriptor: int, back: contextlib.ExitStack) -> None:
    """Descriptors of Python's are so anyway; those of C libraries may not be."""
    with contextlib.suppress(OSError):  # closed meanwhile
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFD)
        if not flags & fcntl.FD_CLOEXEC:
            fcntl.fcntl(descriptor, fcntl.F_SETFD, flags | fcntl.FD_CLOEXEC)
            back.callback(_set_flags, descriptor, flags)


def _set_flags(descriptor: int, flags: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.fcntl(descriptor, fcntl.F_SETFD, flags)


def _descriptors() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 (names are wanted)


def _is_child_of_python() -> bool:
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _is_this_program(path: str) -> bool:
    try:
        return os.path.samefile(path, "/proc/self/exe")  # noqa: PTH121 (no pathlib in a user's process)
    except (OSError, TypeError):
        return False


def _program() -> str:
    """The file of the program; a module's, too (`python -m`)."""
    return getattr(sys.modules.get("__main__"), "__file__", None) or ""


def _identity_of_program() -> tuple[int, ...]:
    """Of the file as it is now: a program that was edited since would go on as another."""
    try:
        found = os.stat(_program())  # noqa: PTH116 (no pathlib in a user's process)
    except OSError:
        return ()
    if not stat.S_ISREG(found.st_mode):  # a pipe, say, which was read to its end
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
