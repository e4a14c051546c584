# SPDX-License-Identifier: Apache-2.0
"""HTTP as the daemon serves it: on sockets that it opened, beside all else it does."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

import uvicorn

from slipstream.scheduler import peers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.applications import Starlette


def web_server(app: Starlette) -> uvicorn.Server:
    """HTTP for one listening socket, told to whom it speaks."""
    config = uvicorn.Config(
        app,
        http=peers.PeerProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    return _Server(config)


class _Server(uvicorn.Server):
    """Leaves signals to the daemon, which has several of these."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def loopback(port: int) -> socket.socket:
    """Where this machine's own browsers find it."""
    listener = socket.create_server(("127.0.0.1", port))
    listener.setblocking(False)
    return listener
