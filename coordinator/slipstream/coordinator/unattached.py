# SPDX-License-Identifier: Apache-2.0
"""Finds tasks that train or use the GPU without our hooks, and says so where their user looks.

A task with one of our flags has a page, which its training claims before torch is loaded. A task
whose page nobody has claimed is looked at from outside: if a process of it has mapped libtorch, or
holds memory of a GPU, the hooks were not loaded. The reason is read from /proc as far as it can be.

Everything in /proc/PID is its user's to write: it is read in bounded parts, searched as bytes, and
never opened as a path. All reading is done in a thread: a process may hold up whoever reads its
maps. The line in the job's own output is written by a process with the user's own rights.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slipstream.coordinator import as_user
from slipstream.core import attaching
from slipstream.core.attaching import NotAttached
from slipstream.wire.control_block import ENVIRONMENT_VARIABLE

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Collection, Iterable, Mapping

    from slipstream.coordinator.blocks import Block
    from slipstream.coordinator.processes import ProcFs
    from slipstream.coordinator.seats import Seat, Task

_log = logging.getLogger(__name__)

_FIRST_AFTER_S: Final = 1.0
_OFTEN_S: Final = 2.0
_YOUNG_S: Final = 60.0
_SELDOM_S: Final = 15.0
"""Between two looks at a task: a program may begin to train at any time."""
_MOST_PROCESSES: Final = 64
"""Of a task, in one look."""
_MOST_MAPS_BYTES: Final = 4 << 20
_MOST_LOOK_BYTES: Final = 32 << 20
"""Of all maps of a task, in one look."""
_MOST_WORDS_BYTES: Final = 256 << 10
"""Of a command line or an environment."""
_TELL_WITHIN_S: Final = 5
_OLDEST_PYTHON: Final = (3, 9)
_VERSION: Final = re.compile(
    rb"/(?:lib)?python([0-9])\.([0-9]{1,2})[a-z]?"
    rb"(?:\.so|\n|/lib-dynload/|/site-packages/|/dist-packages/)"
)
_WITH_A_WORD: Final = "WX"
"""Options of Python that take a word of their own."""
_LAST: Final = "cm"
"""Options after which all words are the program's."""

_TELL: Final = """
import os, signal, stat, sys
signal.alarm(5)
pid, ticks, line = sys.argv[1:]
with open(f"/proc/{pid}/stat", "rb") as file:
    if file.read().rpartition(b")")[2].split()[19] != ticks.encode():
        sys.exit("the task has ended")
flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
output = os.open(f"/proc/{pid}/fd/2", flags)
if stat.S_ISREG(os.fstat(output).st_mode):
    with open(f"/proc/{pid}/fdinfo/2") as file:
        told = dict(one.split(":", 1) for one in file.read().splitlines() if ":" in one)
    if not int(told["flags"], 8) & os.O_APPEND:
        sys.exit("the job would write over what is appended to its output")
os.write(output, line.encode())
"""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A task whose page nobody has claimed."""

    job_id: int
    uid: int
    task: Task
    trained: frozenset[int]
    """Processes that had claimed its pages: one that still lives has had hooks."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a task has no hooks."""

    suspect: Suspect
    reason: NotAttached


@dataclass(slots=True)
class _Watched:
    """A task and what is known of it."""

    due_s: float
    since_s: float
    looked_s: float = 0.0
    reason: NotAttached | None = None


@dataclass(slots=True)
class Unattached:
    """All tasks of this node. Only `look` may be called in a thread that is not the daemon's.

    Args:
        procfs: who lives here.
        inject_dir: the folder that has to be first on PYTHONPATH.
    """

    procfs: ProcFs
    inject_dir: str
    lines_written: int = 0
    lines_failed: int = 0
    _tasks: dict[tuple[int, Task], _Watched] = field(default_factory=dict)
    _told: set[tuple[int, Task]] = field(default_factory=set)
    """Those that have a line in their output: one is enough."""
    _tellers: list[tuple[subprocess.Popen[str], float]] = field(default_factory=list)

    def reasons(self) -> dict[int, str]:
        """Jobs with a task that has no hooks, and why: of several tasks the first."""
        found: dict[int, str] = {}
        for (job, _), watched in sorted(self._tasks.items(), key=lambda one: one[0]):
            if watched.reason is not None:
                found.setdefault(job, str(watched.reason))
        return found

    def suspects(
        self,
        seats: Mapping[int, Seat],
        blocks: Iterable[Block],
        on_gpu: Mapping[int, Collection[int]],
        now_s: float,
    ) -> list[Suspect]:
        """Whom to look at now. A task whose page is claimed is cleared at once."""
        pages: dict[tuple[int, str, int], list[Block]] = {}
        for block in blocks:
            told = block.identity
            pages.setdefault((told.job_id, told.step, told.task), []).append(block)
        there: dict[tuple[int, Task], Suspect] = {}
        for job, seat in seats.items():
            for task in seat.tasks:
                own = pages.get((job, task.step, task.task), [])
                if own and not any(one.is_claimed for one in own):
                    trained = frozenset(one.progress.pid for one in own if one.progress.pid)
                    there[job, task] = Suspect(job, seat.uid, task, trained)
        self._told &= {(job, task) for job, seat in seats.items() for task in seat.tasks}
        self._tasks = {
            key: self._tasks.get(key) or _Watched(now_s + _FIRST_AFTER_S, now_s) for key in there
        }
        due = []
        for key, suspect in there.items():
            watched = self._tasks[key]
            soon_s = watched.looked_s + _FIRST_AFTER_S if on_gpu.get(key[0]) else watched.due_s
            if watched.reason is None and now_s >= min(soon_s, watched.due_s):
                young = now_s - watched.since_s < _YOUNG_S
                watched.looked_s, watched.due_s = now_s, now_s + (_OFTEN_S if young else _SELDOM_S)
                due.append(suspect)
        return due

    def look(self, suspects: Iterable[Suspect], on_gpu: Collection[int]) -> list[Finding]:
        """Read /proc; in a thread."""
        found = []
        for suspect in suspects:
            reason = self._why(suspect, on_gpu)
            if reason is not None:
                found.append(Finding(suspect, reason))
        return found

    def found(self, findings: Iterable[Finding], now_s: float | None = None) -> None:
        """Take in what was seen, of tasks whose page is still unclaimed: call `suspects` before.

        A training claims its page before it loads torch, so that one that is unclaimed now was not
        about to be claimed when its maps were read.
        """
        now_s = time.monotonic() if now_s is None else now_s
        for one in findings:
            key = one.suspect.job_id, one.suspect.task
            watched = self._tasks.get(key)
            if watched is None:
                continue
            watched.reason = one.reason
            if key not in self._told:
                self._told.add(key)
                _log.warning("job %d is not attached: %s", one.suspect.job_id, one.reason)
                self._write(one, now_s)

    def tidy(self, now_s: float) -> None:
        """Let go of the processes that wrote to jobs' output; one that hangs is ended.

        Never waits for one: a user's file system may keep it from dying.
        """
        for teller, until_s in list(self._tellers):
            if teller.poll() is None:
                if now_s >= until_s:
                    teller.kill()
                continue
            self._tellers.remove((teller, until_s))
            _, complaint = as_user.last_words(teller)
            if teller.returncode == 0:
                self.lines_written += 1
            else:
                self.lines_failed += 1
                _log.info("a job's output took no line: %s", complaint.strip()[-200:] or "it hung")

    # --- from outside ---------------------------------------------------------------------------

    def _why(self, suspect: Suspect, on_gpu: Collection[int]) -> NotAttached | None:
        """The reason, if a process of the task trains or uses a GPU; else None."""
        family = self.procfs.family(suspect.task.pid)[:_MOST_PROCESSES]
        if suspect.trained & set(family):
            return None  # it had hooks, and has let go of them
        left = _MOST_LOOK_BYTES
        uses_gpu: NotAttached | None = None
        for pid in family:
            maps = self.procfs.head(pid, "maps", min(left, _MOST_MAPS_BYTES))
            left = max(0, left - len(maps))
            if b"/libtorch" in maps:
                return self._why_not_loaded(pid, maps)
            if pid in on_gpu:
                uses_gpu = NotAttached.NO_TORCH if _is_python(maps) else NotAttached.NO_PYTHON
        return uses_gpu

    def _why_not_loaded(  # noqa: PLR0911 (one for each reason)
        self, pid: int, maps: bytes
    ) -> NotAttached:
        environment = self._environment(pid)
        version = _python_of(maps)
        if environment.get("SLIPSTREAM_HOOKS") == "0":
            return NotAttached.HOOKS_OFF
        if version is None:
            return NotAttached.NO_PYTHON
        if version < _OLDEST_PYTHON:
            return NotAttached.OLD_PYTHON
        options = python_options(self._words(pid))
        if options & {"I", "E"}:
            return NotAttached.ISOLATED
        if "S" in options:
            return NotAttached.NO_SITE
        path = [one.rstrip("/") for one in environment.get("PYTHONPATH", "").split(":") if one]
        if self.inject_dir.rstrip("/") not in path:
            told = ENVIRONMENT_VARIABLE in environment
            return NotAttached.PYTHON_PATH if told else NotAttached.ENVIRONMENT_CLEARED
        is_first = path[0] == self.inject_dir.rstrip("/")
        return NotAttached.UNKNOWN if is_first else NotAttached.SITECUSTOMIZE

    def _words(self, pid: int) -> list[str]:
        raw = self.procfs.head(pid, "cmdline", _MOST_WORDS_BYTES)
        return raw.decode(errors="replace").split("\0")

    def _environment(self, pid: int) -> dict[str, str]:
        raw = self.procfs.head(pid, "environ", _MOST_WORDS_BYTES).decode(errors="replace")
        pairs = (entry.partition("=") for entry in raw.split("\0"))
        return {name: value for name, equals, value in pairs if equals}

    # --- to the user ----------------------------------------------------------------------------

    def _write(self, one: Finding, now_s: float) -> None:
        """One line at the end of what the task writes as its errors, by the job's user."""
        task = one.suspect.task
        line = (
            f"slipstream: job {one.suspect.job_id} is not attached: "
            f"{attaching.SENTENCE[one.reason]} (slipstream why {one.suspect.job_id})\n"
        )
        words = [as_user.python_for_all(), "-I", "-c", _TELL, str(task.pid)]
        words += [str(task.started_ticks), line]
        group = self.procfs.real_gid(task.pid)
        if self.procfs.real_uid(task.pid) != one.suspect.uid or group is None:
            return
        try:
            teller = as_user.started(one.suspect.uid, words, group=group)
        except OSError as error:
            self.lines_failed += 1
            _log.warning("nobody could be started to tell job %d: %s", one.suspect.job_id, error)
            return
        self._tellers.append((teller, now_s + _TELL_WITHIN_S))


def python_options(words: list[str]) -> set[str]:
    """The letters of the options that a Python was started with, before its program's name."""
    found: set[str] = set()
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-") or word in ("-", "--"):
            break
        if word.startswith("--"):
            if word == "--check-hash-based-pycs":
                next(rest, None)
            continue
        for at, letter in enumerate(word[1:], start=1):
            found.add(letter)
            if letter in _LAST:
                return found
            if letter in _WITH_A_WORD:
                if at == len(word) - 1:
                    next(rest, None)
                break
    return found


def _python_of(maps: bytes) -> tuple[int, int] | None:
    """The version of the Python that runs, by the names of what it has mapped; None: it is none."""
    found = _VERSION.search(maps)
    if found:
        return int(found[1]), int(found[2])
    return (99, 0) if _is_python(maps) else None


def _is_python(maps: bytes) -> bool:
    return b"/python" in maps or b"/libpython" in maps
