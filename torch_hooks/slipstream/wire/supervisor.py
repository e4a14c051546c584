# SPDX-License-Identifier: Apache-2.0
"""What a daemon tells systemd: that it is ready, that it lives, that it ends (sd_notify).

One datagram to the socket that NOTIFY_SOCKET names. Without one, as in a sandbox or a container,
nothing happens; a supervisor that does not listen is no reason to stop.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Supervisor:
    """Whoever started this daemon and watches over it.

    Args:
        environment: NOTIFY_SOCKET, and WATCHDOG_USEC if it wants to hear from us that often.
        clock: seconds that never go back.
    """

    def __init__(
        self, environment: Mapping[str, str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        path = environment.get("NOTIFY_SOCKET", "")
        self._address = f"\0{path[1:]}" if path.startswith("@") else path
        self._every_s = _microseconds(environment, os.getpid()) / 1e6 / 4
        self._clock = clock
        self._due_s = clock()

    def ready(self) -> None:
        """All sockets are open."""
        self._tell("READY=1")

    def alive(self) -> None:
        """To be called often: a word goes out four times in what the supervisor waits."""
        if self._every_s and self._clock() >= self._due_s:
            self._due_s = self._clock() + self._every_s
            self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """What follows is the end, and meant."""
        self._tell("STOPPING=1")

    def _tell(self, word: str) -> None:
        if not self._address:
            return
        with (
            contextlib.suppress(OSError),
            socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
            ) as peer,
        ):
            peer.sendto(word.encode(), self._address)


def _microseconds(environment: Mapping[str, str], pid: int) -> int:
    """How long it waits for a word of this process; 0: it does not."""
    if environment.get("WATCHDOG_PID", str(pid)) != str(pid):
        return 0
    told = environment.get("WATCHDOG_USEC", "")
    return int(told) if told.isdigit() else 0
