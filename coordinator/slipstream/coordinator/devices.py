# SPDX-License-Identifier: Apache-2.0
"""Granting a guest its GPUs where Slurm constrains devices (cgroup v1, ConstrainDevices=yes).

A job that holds only slots is denied every GPU. Root may allow one in the devices.allow of the job,
then of its steps, then of their tasks: the kernel refuses a child what its parent may not. Each new
step of a job denies again at the job, which strips its running steps: so all of them are granted
anew at every start.
"""

from __future__ import annotations

import glob
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Grant:
    """What came of it."""

    constrained: bool
    """Whether Slurm constrains the devices of this job at all."""
    refused: tuple[str, ...] = ()
    """One sentence for each that could not be granted."""


@dataclass(frozen=True, slots=True)
class DeviceCgroups:
    """The kernel's tree of device cgroups, as Slurm fills it on this node."""

    root: Path = Path("/sys/fs/cgroup/devices")
    node: str = ""

    def grant(self, *, uid: int, job_id: int, devices: Iterable[Path]) -> Grant:
        """Let all processes of a job use these devices."""
        job = self._job(uid, job_id)
        if job is None:
            return Grant(constrained=False)
        rules, refused = [], []
        for device in devices:
            try:
                rules.append(_rule(device))
            except OSError as error:
                refused.append(f"{device}: {error.strerror}")
        # A sorted path comes before what is below it: the job, its steps, their tasks.
        # Not Path.glob, which fails if a step's folder goes while it looks.
        below = (glob.glob(name, root_dir=job) for name in ("step_*", "step_*/task_*"))  # noqa: PTH207
        for folder in ("", *(name for names in below for name in sorted(names))):
            refused += _allow(job / folder, rules)
        return Grant(constrained=True, refused=tuple(refused))

    def _job(self, uid: int, job_id: int) -> Path | None:
        """Slurm names its tree after the node where several share a machine."""
        for slurm in (f"slurm_{self.node}", "slurm", "system.slice/slurmstepd.scope"):
            for job in (f"uid_{uid}/job_{job_id}", f"job_{job_id}"):
                if (self.root / slurm / job).is_dir():
                    return self.root / slurm / job
        return None


def _rule(device: Path) -> str:
    status = device.stat()
    if not stat.S_ISCHR(status.st_mode):
        raise OSError(0, "is not a character device")
    return f"c {os.major(status.st_rdev)}:{os.minor(status.st_rdev)} rw"


def _allow(folder: Path, rules: list[str]) -> list[str]:
    refused = []
    for rule in rules:
        try:
            # Unbuffered and one rule a write: that is how the kernel reads this file.
            descriptor = os.open(folder / "devices.allow", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, rule.encode())
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            continue  # the step has just ended
        except OSError as error:
            refused.append(f"{folder.name}: {rule}: {error.strerror}")
    return refused
