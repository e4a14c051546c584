# SPDX-License-Identifier: Apache-2.0
"""The baton: how guests share a GPU when nobody coordinates them.

Each GPU has two files that guests lock (flock; the kernel gives a lock back when its holder dies):
`<uuid>.baton` is held by the one guest that trains, `<uuid>.next` by the one guest that is next.
Only who is next may take the baton, so a guest that gives it away and wants it again has to queue.
A guest keeps it for a slice, to the first boundary after that. Waiting is looking every 20 ms.

A holder that was stopped or hangs must not stop the others for ever: after a while of waiting a
guest goes on without the baton for one slice, and says so.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.wire import batons

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SLICE_VARIABLE = "SLIPSTREAM_BATON_SLICE_MS"
DEFAULT_SLICE_MS = 2000
PATIENCE_S = 120.0
_LOOK_EVERY_S = 0.02


@dataclass(frozen=True)
class Wait:
    """How a wait for the baton ended."""

    waited_ns: int
    held: bool
    """False: the wait was called off, or the guest goes on without the baton."""
    impatient: bool = False


class Baton:
    """One guest's part in passing the batons of its GPUs, in the order of their names."""

    def __init__(
        self,
        run_dir: str,
        gpu_uuids: Sequence[str],
        *,
        slice_ms: int = DEFAULT_SLICE_MS,
        patience_s: float = PATIENCE_S,
    ) -> None:
        # Everybody takes several batons in the same order: nobody waits in a circle.
        self._gpus = [batons.paths(run_dir, uuid) for uuid in sorted(gpu_uuids)]
        self._slice_ns = slice_ms * 1_000_000
        self._patience_ns = int(patience_s * 1e9)
        self._held: list[int] = []
        self._slice_ends_ns = 0

    @property
    def slice_goes_on(self) -> bool:
        """Whether this guest may train on without asking."""
        return time.monotonic_ns() < self._slice_ends_ns

    def pass_on(self) -> None:
        """Give all batons back."""
        self._slice_ends_ns = 0
        while self._held:
            os.close(self._held.pop())

    def take(self, called_off: Callable[[], bool]) -> Wait:
        """Wait for all batons and hold them; `called_off` is asked while waiting."""
        began_ns = time.monotonic_ns()
        ends_ns = began_ns + self._patience_ns
        for baton_path, queue_path in self._gpus:
            if not self._take_one(baton_path, queue_path, ends_ns, called_off):
                self.pass_on()
                waited_ns = time.monotonic_ns() - began_ns
                impatient = not called_off()
                if impatient:
                    self._slice_ends_ns = time.monotonic_ns() + self._slice_ns
                return Wait(waited_ns, held=False, impatient=impatient)
        now_ns = time.monotonic_ns()
        self._slice_ends_ns = now_ns + self._slice_ns
        return Wait(now_ns - began_ns, held=True)

    def _take_one(
        self, baton_path: str, queue_path: str, ends_ns: int, called_off: Callable[[], bool]
    ) -> bool:
        queue = _lock(queue_path, ends_ns, called_off)
        if queue is None:
            return False
        try:
            baton = _lock(baton_path, ends_ns, called_off)
        finally:
            os.close(queue)
        if baton is None:
            return False
        self._held.append(baton)
        return True


def _lock(path: str, ends_ns: int, called_off: Callable[[], bool]) -> int | None:
    """A descriptor that holds the lock, or None after a wait in vain."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if called_off() or time.monotonic_ns() >= ends_ns:
                    os.close(descriptor)
                    return None
                time.sleep(_LOOK_EVERY_S)
            else:
                return descriptor
    except BaseException:
        os.close(descriptor)
        raise
