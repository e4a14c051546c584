# SPDX-License-Identifier: Apache-2.0
"""How fast copies may go, so that a neighbour's get through."""

from __future__ import annotations

import time

CHUNK_BYTES = 8 << 20
"""Copies are cut into such pieces: a neighbour waits for one of them at most."""


class Rate:
    """A bucket of bytes that fills with time; who takes more than there is sleeps until it is."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._left = float(CHUNK_BYTES)
        self._at_s = time.monotonic()

    def take(self, nbytes: int) -> None:
        """Wait until so many bytes may be copied."""
        now_s = time.monotonic()
        filled = self._left + (now_s - self._at_s) * self._bytes_per_s
        self._left = min(filled, float(CHUNK_BYTES)) - nbytes
        self._at_s = now_s
        if self._left < 0:
            time.sleep(-self._left / self._bytes_per_s)
