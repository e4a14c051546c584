# SPDX-License-Identifier: Apache-2.0
"""Finding and ending the processes of a sandbox, from /proc, without ever hitting a stranger.

A process is known by pid *and* start time: a pid alone may have been given to somebody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, order=True)
class Process:
    """One process, for as long as it lives."""

    pid: int
    started_ticks: int

    @property
    def alive(self) -> bool:
        """Running or sleeping; a zombie has ended."""
        stat = _stat(self.pid)
        return stat is not None and stat.started_ticks == self.started_ticks and stat.state != "Z"

    def send(self, number: signal.Signals) -> None:
        """Signal it if it still is who it was."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def process(pid: int) -> Process | None:
    """The process that has this pid now."""
    stat = _stat(pid)
    return Process(pid, stat.started_ticks) if stat else None


def parent_pid(pid: int) -> int:
    """Who started it, or who took it over; 0 when there is nobody."""
    stat = _stat(pid)
    return stat.parent_pid if stat else 0


def descendants(root_pid: int) -> set[Process]:
    """All living processes below `root_pid`, itself not included."""
    parents: dict[int, list[_Stat]] = {}
    for stat in _all_stats():
        parents.setdefault(stat.parent_pid, []).append(stat)
    found: set[Process] = set()
    waiting = [root_pid]
    while waiting:
        for stat in parents.get(waiting.pop(), ()):
            waiting.append(stat.pid)
            if stat.state != "Z":
                found.add(Process(stat.pid, stat.started_ticks))
    return found


def marked(variable: str, folder: Path) -> set[Process]:
    """All living processes with `variable=folder` in their environment, and all below them.

    slurmstepd writes its title over its environment, so it is known by its log in that folder.
    """
    mark = f"{variable}={folder}".encode()
    found: set[Process] = set()
    for stat in _all_stats():
        entry = Path(f"/proc/{stat.pid}")
        with contextlib.suppress(OSError):
            if mark in (entry / "environ").read_bytes().split(b"\0") or (
                stat.name == "slurmstepd"
                and any(link.readlink().is_relative_to(folder) for link in (entry / "fd").iterdir())
            ):
                found.add(Process(stat.pid, stat.started_ticks))
                found |= descendants(stat.pid)
    return {process for process in found if process.alive}


def end_all(find: Callable[[], Iterable[Process]], *, within_s: float = 10.0) -> set[Process]:
    """Kill what `find` returns, again and again until it returns nothing; the rest is returned."""
    deadline = time.monotonic() + within_s
    left = set(find())
    while left and time.monotonic() < deadline:
        for victim in left:
            victim.send(signal.SIGKILL)
        reap()
        time.sleep(0.01)
        left = set(find())
    reap()  # a container's init may never do it for us
    return left


def reap() -> dict[int, int]:
    """Collect ended children: pid to exit code, negative for a signal."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """For a child, before exec: the kernel kills it when its parent dies."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Stat:
    pid: int
    name: str
    state: str
    parent_pid: int
    started_ticks: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name in parentheses may hold spaces and parentheses: the fields begin after the last one.
    before, _, after = text.rpartition(")")
    fields = after.split()
    return _Stat(pid, before.partition("(")[2], fields[0], int(fields[1]), int(fields[19]))


def _all_stats() -> list[_Stat]:
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [stat for pid in pids if (stat := _stat(pid))]
