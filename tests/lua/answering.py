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
    """Reads one line and sends `answer(line)`; for the length of a `with`."""

    def __init__(self, path: Path, answer: Callable[[bytes], bytes]) -> None:
        self._path = path
        self._answer = answer
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
        self._thread.join()
        self._listener.close()
        self._path.unlink()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            with peer, contextlib.suppress(OSError), peer.makefile("rb") as lines:
                line = lines.readline()
                self.asked.append(line)
                peer.sendall(self._answer(line))
