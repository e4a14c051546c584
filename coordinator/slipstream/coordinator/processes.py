# SPDX-License-Identifier: Apache-2.0
"""Who lives on this node, from /proc. A process is known by pid *and* start time."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcFs:
    """The folder that the kernel fills; a test may give another."""

    root: Path = Path("/proc")

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

    def environment(self, pid: int) -> dict[str, str]:
        """What it was started with; empty if that cannot be read."""
        try:
            raw = (self.root / str(pid) / "environ").read_bytes()
        except OSError:
            return {}
        pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
        return {name: value for name, equals, value in pairs if equals}


_OWNED = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES")
"""Slurm's own numbers come first: CUDA's count from 0 where devices are constrained."""


def gpus_named(environment: dict[str, str]) -> tuple[int, ...] | None:
    """The indices of the GPUs that Slurm gave a job, or None if nothing says so (yet)."""
    for name in _OWNED:
        words = environment.get(name, "").split(",")
        if all(word.isascii() and word.isdigit() for word in words):
            return tuple(dict.fromkeys(int(word) for word in words))
    return None
