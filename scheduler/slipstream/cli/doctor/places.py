# SPDX-License-Identifier: Apache-2.0
"""Files, folders and packages of this host, as the doctor finds them."""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slipstream.cli.remote import default_of

if TYPE_CHECKING:
    from collections.abc import Mapping

DURABLE: Final = "SLIPSTREAM_DURABLE_ROOT"
_AS_OF: Final = re.compile(r"^Configuration data as of (\S+)", re.MULTILINE)
_USER: Final = re.compile(r"\((\d+)\)")
_OTHERS_WRITE: Final = 0o022


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """Where checkpoints are to outlive a node."""

    path: str
    error: str = ""
    mode: int = 0o1777
    kind: str = "nfs4"
    """Of filesystem."""
    options: str = ""
    """It is mounted with."""


def clock_off_s(shown: str, now_s: float) -> float | None:
    """How far this clock is ahead of slurmctld's, which stamps what `scontrol show config` says."""
    found = _AS_OF.search(shown)
    try:
        stamped = time.strptime(found[1], "%Y-%m-%dT%H:%M:%S") if found else None
    except ValueError:  # the site's own SLURM_TIME_FORMAT
        return None
    return now_s - time.mktime(stamped) if stamped else None


def durable(mounts: Path = Path("/proc/mounts")) -> Durable | None:
    """The folder of the settings; None if there is none."""
    named = os.environ.get(DURABLE) or default_of(DURABLE)
    if not named:
        return None
    try:
        mode = stat.S_IMODE(Path(named).stat().st_mode)
        kind, options = filesystem_of(os.path.realpath(named), mounts.read_text())
    except OSError as error:
        return Durable(path=named, error=error.strerror or str(error))
    if not Path(named).is_dir():
        return Durable(path=named, error="is no folder")
    return Durable(path=named, mode=mode, kind=kind, options=options)


def filesystem_of(path: str, mounts: str) -> tuple[str, str]:
    """Its kind and options: of the mount that is the nearest above."""
    found = ("", "", "")
    for line in mounts.splitlines():
        words = line.split()
        above = words[1].rstrip("/") + "/" if len(words) > 3 else ""  # noqa: PLR2004 (fstab's)
        if above and f"{path}/".startswith(above) and len(above) >= len(found[0]):
            found = (above, words[2], words[3])
    return found[1:]


def sockets(run_dir: Path, config: Mapping[str, str] | None) -> str:
    """What keeps slurmctld from the scheduler's socket, or lets others in its place."""
    try:
        folder, submit = run_dir.stat(), (run_dir / "submit.sock").stat()
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    if folder.st_mode & _OTHERS_WRITE and not folder.st_mode & stat.S_ISVTX:
        return f"others than its owner may write in {run_dir}"
    runs = _USER.search((config or {}).get("SlurmUser", ""))
    if runs and int(runs[1]) not in (0, submit.st_uid):
        return (
            f"{run_dir / 'submit.sock'} belongs to user {submit.st_uid}, and slurmctld runs as "
            f"{(config or {})['SlurmUser']}"
        )
    return ""


def own_version() -> str:
    """Of the package that this command is of."""
    try:
        return metadata.version("slurm-slipstream")
    except metadata.PackageNotFoundError:
        return ""


def wrapper_of(config: Mapping[str, str] | None) -> str:
    """For which build of Slurm the select wrapper in PluginDir was made; empty without one."""
    found = re.search(r"slipstream/select/([^:/]+)", (config or {}).get("PluginDir", ""))
    return found[1] if found else ""
