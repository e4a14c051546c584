# SPDX-License-Identifier: Apache-2.0
"""The launch line: guests of a node import torch in the order they came, one for each core.

An import is seconds of a core. Of sixteen at once on two cores all end last; in line the first
trains while the others import, and the last ends no later. Owners do not queue.

Locks as the baton's (flock; the kernel gives a lock back when its holder dies): who comes waits for
`next`, in the kernel, which keeps the order; then for one of the numbers, and holds that while it
imports. Nobody waits for ever: those before it may be stopped, or hang in a dead file system.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from typing import TYPE_CHECKING

from slipstream.wire import launches
from slipstream.wire.control_block import Role

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.torch_hooks.block import Block

PATIENCE_S = 60.0
_LOOK_EVERY_S = 0.01


def wait(block: Block) -> int:
    """For a guest that is about to import torch: until it is its turn. Returns how long (ns)."""
    return _place.take(block.run_dir) if block.identity.role == Role.GUEST else 0


def leave() -> None:
    """Torch is there, or will not come: the next one may launch."""
    _place.leave()


class Place:
    """A process's place among those that launch, from `take` to `leave`; there is one only once."""

    def __init__(self) -> None:
        self.held: int | None = None
        self._taken = threading.Event()
        self._lock = threading.Lock()
        self._left = threading.Event()

    def take(self, run_dir: str, patience_s: float = PATIENCE_S) -> int:
        """Wait for it; returns how long that took (ns). Where there is no line nobody waits."""
        began_ns = time.monotonic_ns()
        folder = launches.folder(run_dir)
        if os.path.exists(f"{folder}/{launches.NEXT}"):  # noqa: PTH110 (no pathlib in a user's process)
            # In a thread: a wait in the kernel, by which the order is kept, has no end of its own.
            arguments = (folder, patience_s)
            threading.Thread(target=self._queue, args=arguments, daemon=True).start()
            self._taken.wait(patience_s)
        return time.monotonic_ns() - began_ns

    def leave(self) -> None:
        """Give it back, or want it no more."""
        with self._lock:
            self._left.set()
            held, self.held = self.held, None
            if held is not None:
                os.close(held)

    def _queue(self, folder: str, patience_s: float) -> None:
        try:
            numbers = [one for one in os.listdir(folder) if one.isdigit()]  # noqa: PTH208 (the same)
            first = os.open(f"{folder}/{launches.NEXT}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(first, fcntl.LOCK_EX)
                self._take_one([f"{folder}/{one}" for one in numbers], patience_s)
            finally:
                os.close(first)
        except OSError:
            pass  # there is no line any more
        self._taken.set()

    def _take_one(self, paths: Sequence[str], patience_s: float) -> None:
        ends_s = time.monotonic() + patience_s
        while not self._left.is_set() and time.monotonic() < ends_s:
            for path in paths:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                with self._lock:
                    if not self._left.is_set() and _is_free(descriptor):
                        self.held = descriptor
                        return
                os.close(descriptor)
            time.sleep(_LOOK_EVERY_S)


def _is_free(descriptor: int) -> bool:
    """Takes it, if so."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_place = Place()


def _forget_in_child() -> None:
    """A fork has a copy of what is held, and nobody who waits."""
    global _place
    held, _place = _place.held, Place()
    if held is not None:
        os.close(held)


os.register_at_fork(after_in_child=_forget_in_child)
