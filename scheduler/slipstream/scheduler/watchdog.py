# SPDX-License-Identifier: Apache-2.0
"""The watchdog: lets go of jobs that a dead scheduler has bound. `python -m` runs it, beside it.

All else that Slipstream holds ends by itself (docs/operations.md has the list). A job that waits in
the queue for nodes which a scheduler chose does not: Slurm knows no binding that expires. It is
let go when no scheduler has answered for two leases, or at once while the kill switch is thrown.
Nothing else is done to any job, and the watchdog keeps no state: killed, it is started again.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import time
from typing import TYPE_CHECKING, Final

from slipstream.scheduler.settings import SettingsError, flag_of, load, names
from slipstream.slurm_plugin import CliSlurm, SlurmError
from slipstream.slurm_plugin.advice import boot_s
from slipstream.slurm_plugin.soft_hold import Moment, SoftHold
from slipstream.wire.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

    from slipstream.scheduler.settings import Settings
    from slipstream.slurm_plugin import Slurm
    from slipstream.slurm_plugin.identity import JobRef

_LOG = logging.getLogger(__name__)
LEASES: Final = 2
_LOOKS_PER_LEASE: Final = 4
_ANSWERS_WITHIN_S: Final = 5.0
_QUESTION: Final = b"GET /v1/health HTTP/1.0\r\nHost: scheduler\r\n\r\n"


class Watchdog:
    """Looks whether there is a scheduler, and does the one thing that must be done if not.

    Args:
        slurm: who changes jobs.
        lives: whether a scheduler answers.
        off: whether the kill switch is thrown.
        patience_s: how long a scheduler may be away.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        slurm: Slurm,
        lives: Callable[[], bool],
        off: Callable[[], bool],
        patience_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slurm = slurm
        self._lives = lives
        self._off = off
        self._patience_s = patience_s
        self._clock = clock
        self._answered_at_s = clock()

    def look(self) -> Collection[JobRef]:
        """Do what is due; says which jobs were let go. Raises what Slurm refuses."""
        if self._lives():
            self._answered_at_s = self._clock()
            return ()
        if self._clock() - self._answered_at_s < self._patience_s and not self._off():
            return ()
        moment = Moment(time.time(), boot_s())
        done = SoftHold(self._slurm).tick((), self._slurm.jobs(), (), moment)
        for job in done:
            _LOG.warning("no scheduler answers: job %s may start anywhere", job)
        return done.keys()


def answers(path: Path) -> bool:
    """Whether a scheduler is behind its socket, and not only the socket."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ANSWERS_WITHIN_S)
            connection.connect(str(path))
            connection.sendall(_QUESTION)
            return bool(connection.recv(1))
    except OSError:
        return False


def watch(settings: Settings) -> None:
    """Until this process is ended."""
    watchdog = Watchdog(
        CliSlurm(),
        lambda: answers(settings.run_dir / "api.sock"),
        settings.disable_file.exists,
        LEASES * settings.lease_s,
    )
    supervisor = Supervisor(os.environ)
    supervisor.ready()
    while True:
        supervisor.alive()
        try:
            watchdog.look()
        except (SlurmError, OSError) as error:
            _LOG.warning("%s", error)
        time.sleep(settings.lease_s / _LOOKS_PER_LEASE)


def main() -> int:
    """Read the scheduler's settings, which say where it is, and watch."""
    parser = argparse.ArgumentParser(prog="slipstream.scheduler.watchdog", description=__doc__)
    for name in names():
        parser.add_argument(flag_of(name), dest=name, metavar="VALUE")
    given = {key: text for key, text in vars(parser.parse_args()).items() if text is not None}
    try:
        settings = load(given, os.environ)
    except SettingsError as error:
        sys.stderr.write(f"slipstream watchdog: {error}\n")
        return 2
    logging.basicConfig(stream=sys.stderr, level=settings.log_level.upper())
    watch(settings)
    return 0


if __name__ == "__main__":
    sys.exit(main())
