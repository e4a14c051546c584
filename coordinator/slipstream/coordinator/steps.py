# SPDX-License-Identifier: Apache-2.0
"""Which job a process is of: by the slurmstepd above it, which is Slurm's own and says so.

An environment is its user's to write, and a line at our socket is, too. A slurmstepd is of the user
that this daemon is of, root: anybody can take its name, and nobody else its user.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from slipstream.coordinator.node_socket import Peer
    from slipstream.coordinator.processes import ProcFs

STEPD: Final = "slurmstepd"
_TITLE = re.compile(r"slurmstepd: \[([0-9]+)(\+[0-9]+)?\.(\w+)\]")
_MOST_ANCESTORS: Final = 1024


@dataclass(frozen=True, slots=True)
class Step:
    """What a slurmstepd carries out."""

    job: str
    """Its job's number as it stands there; empty for a part of a heterogeneous one."""
    name: str


def carried_by(procfs: ProcFs, pid: int) -> Step | None:
    """The step of this slurmstepd; None for an impostor, and for one that has none yet."""
    if procfs.real_uid(pid) != os.geteuid():
        return None
    found = _TITLE.match(procfs.title(pid))
    return Step("" if found[2] else found[1], found[3]) if found else None


def speaks_for(procfs: ProcFs, peer: Peer, job_id: int) -> bool:
    """Whether Slurm has started this process for that job, or one above it; root speaks for all."""
    if peer.uid in (0, os.geteuid()):
        return True
    pid = peer.pid
    for _ in range(_MOST_ANCESTORS):
        kin = procfs.kin(pid)
        if kin is None or pid <= 1:
            return False
        # Between fork and exec a task has its parent's name and its user's number.
        step = carried_by(procfs, pid) if kin.name == STEPD else None
        if step:
            return step.job == str(job_id)
        pid = kin.parent
    return False
