# SPDX-License-Identifier: Apache-2.0
"""A daemon that answers whatever a test wants, on a real Unix socket."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Answering:
    """Reads a line and sends `answer(line)`; for the length of a `with`.

    One line of each caller, or if it `stays` all that it has.
    """

    def __init__(
        self, path: Path, answer: Callable[[bytes], bytes], *, stays: bool = False
    ) -> None:
        self._path = path
        self._answer = answer
        self._stays = stays
        self._peer: socket.socket | None = None
        self.callers = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._thread = threading.Thread(target=self._serve)
        self.asked: list[bytes] = []

    def __enter__(self) -> Self:
        self._path.unlink(missing_ok=True)
        self._listener.bind(str(self._path))
        self._path.chmod(0o666)
        self._listener.listen(64)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accept
        if self._peer is not None:
            with contextlib.suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)  # wakes the reading
        self._thread.join()
        self._listener.close()
        self._path.unlink()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.callers += 1
            self._peer = peer
            with peer, contextlib.suppress(OSError), peer.makefile("rb") as lines:
                while line := lines.readline():
                    self.asked.append(line)
                    peer.sendall(self._answer(line))
                    if not self._stays:
                        break
