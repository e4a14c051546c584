# SPDX-License-Identifier: Apache-2.0
"""What slurm.conf says of the whole cluster: its name, who runs it, and where munged is.

Read from the file, so that a daemon of ours starts while slurmctld is away.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLACES: Final = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Beside what SLURM_CONF names: the usual file, and what a configless slurmd has fetched."""
_LINE: Final = re.compile(r"\s*(\w+)\s*=\s*(\S+)")


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster; what is not known is empty."""

    cluster: str = ""
    slurm_user: str = ""
    munge_socket: str = ""
    private: bool = False
    """Whether users may not see each other's jobs."""


def read(environment: Mapping[str, str]) -> Site:
    """What the slurm.conf of this machine says, if it can be read."""
    named = environment.get("SLURM_CONF")
    for place in (named,) if named else _PLACES:
        try:
            return parse(Path(place).read_text(errors="replace"))
        except OSError:
            continue
    return Site()


def parse(text: str) -> Site:
    """The same, from its text; names are in any case, as Slurm has it."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if match := _LINE.match(line):
            found[match[1].lower()] = match[2]
    parts = dict(part.partition("=")[::2] for part in found.get("authinfo", "").split(","))
    return Site(
        cluster=found.get("clustername", ""),
        slurm_user=found.get("slurmuser", ""),
        munge_socket=parts.get("socket", ""),
        private="jobs" in found.get("privatedata", "").lower().split(","),
    )
