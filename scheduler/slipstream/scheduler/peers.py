# SPDX-License-Identifier: Apache-2.0
"""Who is at the other end of a Unix socket, as the kernel says; and our own sockets."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import struct
from typing import TYPE_CHECKING, Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio
    from pathlib import Path

_CREDENTIALS: Final = struct.Struct("3i")
MOST_OF_A_USER: Final = 256
"""Connections of a user to the API, or of all at a port: who is silent may stay for ever."""
BY_UID: Final = "uid"
"""The `client` of a request that came over a Unix socket is this word and the peer's uid."""
BY_LINK: Final = "link"
"""The same of one that came over the link; the API lets it change nothing, whoever it is."""


def uid_of(peer: socket.socket) -> int:
    """The user that connected."""
    told = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, uid, _gid = _CREDENTIALS.unpack(told)
    return int(uid)


def trusted_uids(slurm_user: str) -> frozenset[int]:
    """Root, ourselves, and the user slurmctld runs as, if this machine has it."""
    uids = {0, os.geteuid(), uid_named(slurm_user)}
    return frozenset(uid for uid in uids if uid is not None)


def uid_named(user: str) -> int | None:
    """A user's number; None if this machine does not know the name."""
    with contextlib.suppress(KeyError):
        return pwd.getpwnam(user).pw_uid
    return None


def listen(path: Path, mode: int) -> socket.socket:
    """A listening socket at `path`, in place of one that a dead daemon left."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Narrow from the first moment: a chmod after the bind would leave a gap.
    before = os.umask(0o777 & ~mode)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(1024)
    listener.setblocking(False)
    return listener


class PeerProtocol(H11Protocol):
    """uvicorn's HTTP, which tells the application the uid behind a Unix socket as its client."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Ask the kernel once per connection; one too many is closed."""
        super().connection_made(transport)
        peer: Any = transport.get_extra_info("socket")
        there = len(self.connections)
        if peer is not None and peer.family == socket.AF_UNIX:
            self.client = (BY_UID, uid_of(peer))
            there = sum(getattr(one, "client", None) == self.client for one in self.connections)
        if there > MOST_OF_A_USER:
            transport.abort()
