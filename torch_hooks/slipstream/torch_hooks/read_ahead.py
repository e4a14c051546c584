# SPDX-License-Identifier: Apache-2.0
"""Reading ahead while a job imports and loads: its data (`--slip-data`), and what it goes on from.

In the job's own process, with its user's rights. A thread of the lowest priority asks the kernel to
have the files in memory, in the order of their names, until the first boundary or a limit.
"""

from __future__ import annotations

import ctypes
import os
import re
import stat
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

VARIABLES = ("SLIPSTREAM_DATA", "SLURM_SPANK_SLIPSTREAM_DATA")
"""Set by the user, or by Slurm for a job that was given the flag."""
DURABLE_VARIABLE = "SLIPSTREAM_DURABLE_DIR"
"""The folder on the shared filesystem that checkpoints are carried to."""
CHECKPOINT_VARIABLE = "SLIPSTREAM_CHECKPOINT_DIR"
"""The job's folder on the ramdisk."""
_GENERATION = re.compile(r"r\d{4,}-m\d{12,}")
MOST_BYTES = 16 << 30
_PART_OF_FREE_MEMORY = 4
_CHUNK_BYTES = 128 << 10
"""The kernel reads no more for one request than a device's own read-ahead, often just this."""
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_IDLE = 3 << 13


def _untold(_kind: str, _sentence: str) -> None:
    """Nobody wants to know."""


class ReadAhead:
    """One thread that reads ahead until it is done, told to stop, or the process ends."""

    def __init__(
        self, paths: list[str], most_bytes: int, problem: Callable[[str, str], None] = _untold
    ) -> None:
        self.asked_bytes = 0
        """In whole chunks: a small file is as much work as one."""
        self._paths = paths
        self._most_bytes = most_bytes
        self._problem = problem
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="slipstream-data", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The training has its data by now; it does not wait for us."""
        self._stopped = True

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; says whether it came."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        _yield_to_others()
        for path in self._paths:
            for file in _files(path):
                if self._is_enough():
                    return
                try:
                    self._read(file)
                except OSError as error:  # gone, or not ours: the training will say if it matters
                    self._problem("not read ahead", str(error))

    def _read(self, file: str) -> None:
        # A pipe or a device would wait for somebody: only what is a file, also after it was opened.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return
            for start in range(0, max(1, status.st_size), _CHUNK_BYTES):
                if self._is_enough():
                    return
                os.posix_fadvise(descriptor, start, _CHUNK_BYTES, os.POSIX_FADV_WILLNEED)
                self.asked_bytes += _CHUNK_BYTES
        finally:
            os.close(descriptor)

    def _is_enough(self) -> bool:
        return self._stopped or self.asked_bytes >= self._most_bytes


def ahead(
    paths: list[str], most_bytes: int, problem: Callable[[str, str], None] = _untold
) -> ReadAhead:
    """Read these, within what the node can spare; `problem` is told what could not be."""
    return ReadAhead(paths, min(most_bytes, _free_bytes() // _PART_OF_FREE_MEMORY), problem)


def from_environment(
    environment: Mapping[str, str], problem: Callable[[str, str], None] = _untold
) -> ReadAhead | None:
    """For the first process of a job on this node, if there is something it will read.

    A job that Slurm started anew goes on from its durable copy, which is needed before its data.
    """
    rank = environment.get("LOCAL_RANK") or environment.get("SLURM_LOCALID") or "0"
    told = next((environment[name] for name in VARIABLES if environment.get(name)), "")
    paths = _left_behind(environment)
    named = [path for path in told.split(",") if path]
    paths += [path for path in named if path.startswith("/")]
    if rank != "0":
        return None
    for path in named:
        if not path.startswith("/"):
            problem("not read ahead", f"{path!r} does not begin with a slash")
    return ahead(paths, MOST_BYTES, problem) if paths else None


def _left_behind(environment: Mapping[str, str]) -> list[str]:
    """The newest generation of the durable copy; names of one length sort as their numbers do."""
    folder = environment.get(DURABLE_VARIABLE, "")
    if not folder or environment.get("SLURM_RESTART_COUNT", "0") == "0":
        return []
    try:
        names = [name for name in os.listdir(folder) if _GENERATION.fullmatch(name)]  # noqa: PTH208 (the same)
    except OSError:
        return []
    newest = max(names, default="")
    # It may have been copied into memory before we came.
    here = os.path.isdir(f"{environment.get(CHECKPOINT_VARIABLE, '')}/{newest}")  # noqa: PTH112 (no pathlib)
    return [f"{folder}/{newest}"] if newest and not here else []


def _files(path: str) -> Iterator[str]:
    """The file itself, or all below the folder, by name; folders that are links are not entered."""
    if not os.path.isdir(path):  # noqa: PTH112 (no pathlib in a user's process)
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders.sort()
        for file in sorted(files):
            yield f"{folder}/{file}"


def _free_bytes() -> int:
    try:
        with open("/proc/meminfo", "rb") as meminfo:  # noqa: PTH123 (no pathlib in a user's process)
            for line in meminfo:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError):
        pass
    return 0


def _yield_to_others() -> None:
    """This thread alone: the lowest priority for the processor and for disks."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        number = _IOPRIO_SET.get(os.uname().machine)
        if number is not None:
            ctypes.CDLL(None, use_errno=True).syscall(number, 1, 0, _IOPRIO_IDLE)
    except OSError:
        pass  # then it reads as everybody else
