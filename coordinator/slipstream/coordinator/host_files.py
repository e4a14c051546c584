# SPDX-License-Identifier: Apache-2.0
"""Which task of a job belongs on which node: planned by the scheduler, told to srun by a host file.

The scheduler tells it before the job starts. The job's script finds the file in SLURM_HOSTFILE, and
its srun follows it. If Slurm has started the job on other nodes than those that were planned there
is no file: srun would fail.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Final

from slipstream.slurm_plugin.errors import SlurmParseError
from slipstream.slurm_plugin.hosts import expand

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from slipstream.coordinator.requests import Request

_log = logging.getLogger(__name__)
VARIABLE: Final = "SLURM_HOSTFILE"
_MOST_PLANS: Final = 1_000
_LATE_S: Final = 10.0
"""A job that was told to start in time may be a little later here."""


class HostFiles:
    """Plans by token, and the files of jobs that have started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plans: dict[str, tuple[float, tuple[str, ...]]] = {}

    def planned(self, token: str, hosts: Sequence[str], until_s: float) -> None:
        """The scheduler says so; what was said of the same job before is forgotten."""
        now_s = time.time()
        self._plans = {
            known: plan for known, plan in self._plans.items() if plan[0] + _LATE_S > now_s
        }
        if len(self._plans) < _MOST_PLANS or token in self._plans:
            self._plans[token] = (until_s, tuple(hosts))

    def environment(self, request: Request) -> dict[str, str]:
        """What the script of a job finds; nothing if there is no plan for where it started."""
        until_s, hosts = self._plans.get(request.token, (0.0, ()))
        if request.step != "batch" or not hosts or until_s + _LATE_S <= time.time():
            return {}
        try:
            nodes = expand(request.nodes)
        except SlurmParseError:
            return {}
        if {*nodes} != {*hosts}:
            _log.info(
                "job %d started on other nodes than its tasks were planned on", request.job_id
            )
            return {}
        path = self._folder / str(request.job_id)
        try:
            self._folder.mkdir(mode=0o755, exist_ok=True)
            path.unlink(missing_ok=True)
            path.write_text("".join(f"{host}\n" for host in hosts))
            path.chmod(0o644)
        except OSError as error:
            _log.warning("no host file for job %d: %s", request.job_id, error)
            return {}
        return {VARIABLE: str(path)}

    def forget(self, here: Collection[int]) -> None:
        """Remove the files of jobs that are not here any more."""
        with contextlib.suppress(OSError):
            for path in list(self._folder.iterdir()):
                if path.name.isdigit() and int(path.name) not in here:
                    path.unlink()
