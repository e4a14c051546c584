# SPDX-License-Identifier: Apache-2.0
"""Free ports, held so that two sandboxes starting together never choose the same ones.

A reservation is an abstract Unix socket named after the port: like a port it belongs to the
network namespace, only one process can bind it, and the kernel frees it when that process dies.
The keeper holds its reservations for life, so a daemon can be restarted on its own port.
"""

from __future__ import annotations

import random
import socket
from typing import Final

from slipstream.sandbox.errors import SandboxError

# Below those Linux gives to outgoing connections, above those where the examples' ranks meet.
LOW: Final = 28_000
HIGH: Final = 32_000
_TRIES: Final = 64


class Reservation:
    """A row of ports on loopback that no other sandbox will be given."""

    def __init__(self, first: int, count: int) -> None:
        self.ports = tuple(range(first, first + count))
        self._held: list[socket.socket] = []
        try:
            for port in self.ports:
                self._held.append(_reserve(port))
                _refuse_if_listening(port)
        except SandboxError:
            self.release()
            raise

    def release(self) -> None:
        """Let the ports go."""
        for held in self._held:
            held.close()
        self._held.clear()


def reserve(count: int, base: int | None = None) -> Reservation:
    """Hold `count` ports in a row: from `base` if given, else anywhere that is free."""
    if base is not None:
        if not 1 <= base <= 65_536 - count:
            raise SandboxError(f"--port-base {base} leaves no room for {count} ports below 65536")
        return Reservation(base, count)
    choice = random.SystemRandom()
    for _ in range(_TRIES):
        try:
            return Reservation(choice.randrange(LOW, HIGH - count), count)
        except SandboxError:
            continue
    raise SandboxError(
        f"found no {count} free ports in a row between {LOW} and {HIGH}: "
        "name a free place with --port-base"
    )


def loopback_of_own_name() -> str:
    """The loopback address that this machine's host name resolves to, or nothing."""
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return ""
    return address if address.startswith("127.") else ""


def _reserve(port: int) -> socket.socket:
    held = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        held.bind(f"\0slipstream-sandbox-port-{port}")
    except OSError as error:
        held.close()
        raise SandboxError(f"port {port} is held by another sandbox") from error
    return held


def _refuse_if_listening(port: int) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # Connections of an earlier sandbox in TIME_WAIT are no obstacle to Slurm, nor to us.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise SandboxError(
                f"port {port} is taken ({error.strerror}): choose another with --port-base, "
                "or none to take any free ones"
            ) from error
