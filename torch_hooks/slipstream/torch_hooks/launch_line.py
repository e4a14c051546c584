# SPDX-License-Identifier: Apache-2.0
"""The launch line: guests of a node import torch in the order they came, one for each core.

An import is seconds of a core. Of sixteen at once on two cores all end last; in line the first
trains while the others import, and the last ends no later. Owners do not queue. Whose GPU has
another that imports leaves the last free core to those behind it, once: theirs may have nobody.

Locks as the baton's (flock; the kernel gives a lock back when its holder dies): who comes waits for
`next`, in the kernel, which keeps the order; then for one of the numbers, and holds that while it
imports, and its GPUs' locks if nobody has them. Nobody waits for ever: those before it may be
stopped, or hang in a dead file system.
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
_LET_PASS_S = 0.3
"""For so long whoever comes is before it; its GPU is busy for longer than that."""


def wait(block: Block) -> int:
    """For a guest that is about to import torch: until it is its turn. Returns how long (ns)."""
    if block.identity.role != Role.GUEST:
        return 0
    return _place.take(block.run_dir, gpu_uuids=block.identity.gpu_uuids)


def leave() -> None:
    """Torch is there, or will not come: the next one may launch."""
    _place.leave()


class Place:
    """A process's place among those that launch, from `take` to `leave`; there is one only once."""

    def __init__(self) -> None:
        self.held: int | None = None
        self._gpus: list[int] = []
        self._taken = threading.Event()
        self._lock = threading.Lock()
        self._left = threading.Event()

    def take(
        self, run_dir: str, patience_s: float = PATIENCE_S, gpu_uuids: Sequence[str] = ()
    ) -> int:
        """Wait for it; returns how long that took (ns). Where there is no line nobody waits."""
        began_ns = time.monotonic_ns()
        folder = launches.folder(run_dir)
        if os.path.exists(f"{folder}/{launches.NEXT}"):  # noqa: PTH110 (no pathlib in a user's process)
            # In a thread: a wait in the kernel, by which the order is kept, has no end of its own.
            gpus = [launches.gpu_path(run_dir, one) for one in gpu_uuids]
            arguments = (folder, gpus, patience_s)
            threading.Thread(target=self._queue, args=arguments, daemon=True).start()
            self._taken.wait(patience_s)
        return time.monotonic_ns() - began_ns

    def leave(self) -> None:
        """Give it back, or want it no more."""
        with self._lock:
            self._left.set()
            self.close()

    def close(self) -> None:
        """Close this process's copies of what it holds."""
        held, self.held = self.held, None
        gpus, self._gpus = self._gpus, []
        for descriptor in [*gpus, *(() if held is None else (held,))]:
            os.close(descriptor)

    def _queue(self, folder: str, gpus: Sequence[str], patience_s: float) -> None:
        try:
            numbers = [one for one in os.listdir(folder) if one.isdigit()]  # noqa: PTH208 (the same)
            paths = [f"{folder}/{one}" for one in numbers]
            if not self._come_first(folder, paths, gpus, patience_s, lets_pass=True):
                time.sleep(_LET_PASS_S)
                self._come_first(folder, paths, gpus, patience_s, lets_pass=False)
        except OSError:
            pass  # there is no line any more
        self._taken.set()

    def _come_first(
        self,
        folder: str,
        paths: Sequence[str],
        gpus: Sequence[str],
        patience_s: float,
        *,
        lets_pass: bool,
    ) -> bool:
        """Queue until it is next, then take a number; False if others should have it first."""
        first = os.open(f"{folder}/{launches.NEXT}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(first, fcntl.LOCK_EX)
            if not self._has_gpus(gpus) and lets_pass and _are_scarce(paths):
                return False
            self._take_one(paths, patience_s)
        finally:
            os.close(first)
        return True

    def _has_gpus(self, paths: Sequence[str]) -> bool:
        """Whether nobody else of its GPUs launches; they are taken, as far as they are free."""
        busy = False
        for path in paths if not self._gpus else ():
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # a coordinator of an older version
            with self._lock:
                if not self._left.is_set() and _is_free(descriptor):
                    self._gpus.append(descriptor)
                    continue
            os.close(descriptor)
            busy = True
        return not busy

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


def _are_scarce(paths: Sequence[str]) -> bool:
    """Whether no more than one number is free; for who is next, the only one to take any."""
    free = 0
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            free += _is_free(descriptor)
        finally:
            os.close(descriptor)
    return free <= 1


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
    before, _place = _place, Place()
    before.close()


os.register_at_fork(after_in_child=_forget_in_child)
