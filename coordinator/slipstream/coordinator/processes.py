# SPDX-License-Identifier: Apache-2.0
"""Who lives on this node, from /proc. A process is known by pid *and* start time."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Kin:
    """What a process is called, who started it, and whose it is."""

    name: str
    parent: int
    uid: int


@dataclass(frozen=True, slots=True)
class ProcFs:
    """The folder that the kernel fills; a test may give another."""

    root: Path = Path("/proc")

    def pids(self) -> set[int]:
        """Every process there is now."""
        return {int(name) for name in os.listdir(self.root) if name.isdigit()}  # noqa: PTH208 (Path is ten times slower)

    def kin(self, pid: int) -> Kin | None:
        """Where it belongs; None if it is gone."""
        try:
            text = (self.root / str(pid) / "status").read_text(errors="replace")
        except OSError:
            return None
        told = dict(line.partition(":")[::2] for line in text.splitlines())
        # By its real user: the folder of a process that may not be traced is root's.
        return Kin(told["Name"].strip(), int(told["PPid"]), int(told["Uid"].split()[0]))

    def started_ticks(self, pid: int) -> int:
        """When it started, or 0 if there is none or only its zombie."""
        try:
            text = (self.root / str(pid) / "stat").read_text()
        except OSError:
            return 0
        # The name in parentheses may hold spaces and parentheses: fields begin after the last one.
        fields = text.rpartition(")")[2].split()
        return 0 if fields[0] == "Z" else int(fields[19])

    def lives(self, pid: int, started_ticks: int) -> bool:
        """Whether it is still the one that was meant."""
        return started_ticks != 0 and self.started_ticks(pid) == started_ticks

    def uid(self, pid: int) -> int | None:
        """Whose it is."""
        try:
            return (self.root / str(pid)).stat().st_uid
        except OSError:
            return None

    def title(self, pid: int) -> str:
        """Its command line as it shows itself; empty if that cannot be read."""
        try:
            raw = (self.root / str(pid) / "cmdline").read_bytes()
        except OSError:
            return ""
        return raw.replace(b"\0", b" ").decode(errors="replace").strip()

    def environment(self, pid: int) -> dict[str, str]:
        """What it was started with; empty if that cannot be read."""
        try:
            raw = (self.root / str(pid) / "environ").read_bytes()
        except OSError:
            return {}
        pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
        return {name: value for name, equals, value in pairs if equals}


def gpus_held(step: str, environment: dict[str, str]) -> tuple[int, ...]:
    """The indices of the GPUs that Slurm gave to a task of this step; none if nothing says so.

    A step inherits its script's SLURM_JOB_GPUS, also on other nodes, where they mean nothing; a
    script submitted from inside a step may have that one's SLURM_STEP_GPUS. CUDA_VISIBLE_DEVICES
    is no word of Slurm's: a user may set it, and a guest has it too.
    """
    name = "SLURM_JOB_GPUS" if step == "batch" else "SLURM_STEP_GPUS"
    return indices(environment.get(name, ""))


def indices(text: str) -> tuple[int, ...]:
    """GPUs as Slurm and CUDA list them, "0,2"; none if it is no such list."""
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        return ()
    return tuple(dict.fromkeys(int(word) for word in words))
