# SPDX-License-Identifier: Apache-2.0
"""Who lives on this node, from /proc. A process is known by pid *and* start time."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_UID = re.compile(rb"^Uid:\t(\d+)", re.MULTILINE)
_GID = re.compile(rb"^Gid:\t(\d+)", re.MULTILINE)
_NUMBER = re.compile(r"[0-9]{1,10}")
_INDICES = re.compile(r"[0-9]{1,4}(,[0-9]{1,4})*")
_MOST_KIN = 1024


@dataclass(frozen=True, slots=True)
class Kin:
    """What a process is called, who started it, and when."""

    name: str
    parent: int
    started_ticks: int


@dataclass(frozen=True, slots=True)
class Spent:
    """What a process has taken: processor time with that of its ended children, and memory."""

    cpu_ticks: int = 0
    resident_pages: int = 0


_MOST_ENVIRONMENT_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class ProcFs:
    """The folder that the kernel fills; a test may give another."""

    root: Path = Path("/proc")

    def pids(self) -> set[int]:
        """Every process there is now."""
        return {int(name) for name in os.listdir(self.root) if name.isdigit()}  # noqa: PTH208 (as quick as can be)

    def kin(self, pid: int) -> Kin | None:
        """Where it belongs; None if it is gone."""
        head, _, tail = self._read(pid, "stat").rpartition(b")")
        fields = tail.split()
        if not fields:
            return None
        name = head.partition(b"(")[2].decode(errors="replace")
        return Kin(name, int(fields[1]), int(fields[19]))

    def real_uid(self, pid: int) -> int | None:
        """Who runs it; None if it is gone. The folder of one that may not be traced is root's."""
        told = _UID.search(self._read(pid, "status"))
        return int(told[1]) if told else None

    def started_ticks(self, pid: int) -> int:
        """When it started, or 0 if there is none or only its zombie."""
        # The name in parentheses may hold spaces and parentheses: fields begin after the last one.
        fields = self._read(pid, "stat").rpartition(b")")[2].split()
        return 0 if not fields or fields[0] == b"Z" else int(fields[19])

    def lives(self, pid: int, started_ticks: int) -> bool:
        """Whether it is still the one that was meant."""
        return started_ticks != 0 and self.started_ticks(pid) == started_ticks

    def uid(self, pid: int) -> int | None:
        """Whose it is."""
        try:
            return (self.root / str(pid)).stat().st_uid
        except OSError:
            return None

    def family(self, pid: int) -> list[int]:
        """A process and those that live of what it, and they, have started from a main thread."""
        found = [pid]
        for one in found:  # it grows meanwhile
            found += map(int, self._read(one, f"task/{one}/children").split())
            if len(found) > _MOST_KIN:
                break
        return found

    def spent(self, pid: int) -> Spent:
        """What it has taken so far; nothing if it is gone."""
        fields = self._read(pid, "stat").rpartition(b")")[2].split()
        if not fields:
            return Spent()
        return Spent(sum(map(int, fields[11:15])), int(fields[21]))

    def sent_bytes(self, pid: int) -> int | None:
        """What left the machine (or its network namespace) so far, on any interface."""
        lines = self._read(pid, "net/dev").decode().splitlines()[2:]
        counts = [line.partition(":") for line in lines]
        sent = [int(text.split()[8]) for name, _, text in counts if name.strip() != "lo"]
        return sum(sent) if sent else None

    def title(self, pid: int) -> str:
        """Its command line as it shows itself; empty if that cannot be read."""
        return self._read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()

    def mapped(self, pid: int) -> list[str]:
        """The files it has mapped, each once; nothing for one that is gone."""
        lines = self._read(pid, "maps").decode(errors="surrogateescape").splitlines()
        names = (line.split(None, 5)[5] for line in lines if "/" in line)
        return list(dict.fromkeys(one for one in names if not one.endswith(" (deleted)")))

    def environment(self, pid: int) -> dict[str, str]:
        """What it was started with; empty if that cannot be read.

        Its user can make that as long as memory is: what comes after the first part is not read.
        """
        text = self.head(pid, "environ", _MOST_ENVIRONMENT_BYTES).decode(errors="replace")
        pairs = (entry.partition("=") for entry in text.split("\0"))
        return {name: value for name, equals, value in pairs if equals}

    def real_gid(self, pid: int) -> int | None:
        """Its group; None if it is gone."""
        told = _GID.search(self._read(pid, "status"))
        return int(told[1]) if told else None

    def head(self, pid: int, name: str, most_bytes: int) -> bytes:
        """The first bytes of a file of it, which its user may have made long."""
        found = bytearray()
        try:
            with open(f"{self.root}/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123 (as below)
                while len(found) < most_bytes and (part := file.read(most_bytes - len(found))):
                    found += part
        except OSError:
            pass
        return bytes(found)

    def _read(self, pid: int, name: str) -> bytes:
        try:
            # A node may have thousands of processes, and pathlib takes thrice as long.
            with open(f"{self.root}/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
                return file.read()
        except OSError:
            return b""


def gpus_held(step: str, environment: dict[str, str]) -> tuple[int, ...]:
    """The indices of the GPUs that Slurm gave to a task of this step; none if nothing says so.

    A step inherits its script's SLURM_JOB_GPUS, also on other nodes, where they mean nothing; a
    script submitted from inside a step may have that one's SLURM_STEP_GPUS. CUDA_VISIBLE_DEVICES
    is no word of Slurm's: a user may set it, and a guest has it too.
    """
    is_script = step in ("batch", "interactive")
    name = "SLURM_JOB_GPUS" if is_script else "SLURM_STEP_GPUS"
    return indices(environment.get(name, ""))


def indices(text: str) -> tuple[int, ...]:
    """GPUs as Slurm and CUDA list them, "0,2"; none if it is no such list."""
    words = text.split(",") if _INDICES.fullmatch(text) else ()
    return tuple(dict.fromkeys(map(int, words)))


def number(text: str) -> int | None:
    """A number as Slurm writes it; None for all else, since users write environments, too."""
    return int(text) if _NUMBER.fullmatch(text) else None
