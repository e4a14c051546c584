# SPDX-License-Identifier: Apache-2.0
"""Where a sandbox keeps its files. One folder holds them all, but for the GPUs' shared memory."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slipstream.sandbox.errors import SandboxError

DEFAULT_HOME: Final = Path("/var/lib/slipstream/sandbox")
HOME_VARIABLE: Final = "SLIPSTREAM_SANDBOX_HOME"
MARKER_VARIABLE: Final = "SLIPSTREAM_SANDBOX"
"""In the environment of every process of a sandbox: the folder of that sandbox."""

_NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")
_SOCKET_PATH_LIMIT = 107  # sun_path of a Unix socket, less its closing zero


@dataclass(frozen=True, slots=True)
class Layout:
    """Every path of one sandbox."""

    home: Path
    name: str

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise SandboxError(
                f"{self.name!r} cannot be a sandbox's name: small letters, digits and '-', "
                "beginning with a letter, at most 31"
            )
        # Slurm's own are longer: each step has one, under the number of its job.
        longest = len(os.fsencode(self.spool / "n9" / "n9_99.4294967291"))
        if longest > _SOCKET_PATH_LIMIT:
            raise SandboxError(
                f"the folder {self.home} is too long a path for Unix sockets "
                f"({longest} bytes, at most {_SOCKET_PATH_LIMIT}): choose a shorter --home"
            )

    @property
    def root(self) -> Path:
        return self.home / self.name

    @property
    def record(self) -> Path:
        """What was asked for; written before anything is started."""
        return self.root / "sandbox.json"

    @property
    def daemons(self) -> Path:
        """Who runs: name to pid, written by the keeper."""
        return self.root / "daemons.json"

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def task_prolog(self) -> Path:
        return self.etc / "task_prolog.sh"

    @property
    def lua(self) -> Path:
        """A copy of our Lua modules: every user's client must be able to read them."""
        return self.etc / "lua"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def disable_file(self) -> Path:
        """Slipstream's kill switch in this sandbox."""
        return self.etc / "disable"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.socket"

    @property
    def munge_key(self) -> Path:
        return self.etc / "munge.key"

    @property
    def state(self) -> Path:
        """Slurmctld's StateSaveLocation."""
        return self.root / "state"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def durable(self) -> Path:
        """The shared filesystem of its nodes, where checkpoints outlive them."""
        return self.root / "shared"

    @property
    def database(self) -> Path:
        return self.root / "database"

    @property
    def native(self) -> Path:
        """Where the simulated NVML library is compiled to."""
        return self.root / "native"

    @property
    def shared_memory(self) -> Path:
        """The GPUs live in memory: on a disk's file system, write-back would stall their clock."""
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:10]
        return Path("/dev/shm") / f"slipstream-sandbox-{self.name}-{digest}"  # noqa: S108 (a RAM disk is meant; the folder is made with mode 0755 and must not exist)

    def gpu_state(self, node: str) -> Path:
        return self.shared_memory / f"{node}.gpus"

    def devices(self, node: str) -> Path:
        return self.root / "dev" / node


def default_home() -> Path:
    """The folder of all sandboxes, as the environment says or the default."""
    return Path(os.environ.get(HOME_VARIABLE) or DEFAULT_HOME)
