# SPDX-License-Identifier: Apache-2.0
"""Answers only to names of this machine: no web page may read us by a name of its own.

A browser takes two addresses of one name for one site. Whoever owns a name could let it point to
127.0.0.1 and read every job's name (DNS rebinding). Such a name has a dot; ours have none.
"""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send


class OwnNames:
    """Refuses requests for a host that is not this one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        named = [value for name, value in scope.get("headers", ()) if name == b"host"]
        if scope["type"] == "http" and not all(is_own(one.decode("latin-1")) for one in named):
            sentence = "ask for localhost or 127.0.0.1: other names are not answered"
            await JSONResponse({"v": 1, "error": sentence}, 421)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def is_own(host: str) -> bool:
    """Whether a Host header can only mean this machine."""
    name = host[: host.index("]") + 1] if host.startswith("[") else host.partition(":")[0]
    if "." not in name and ":" not in name:
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
