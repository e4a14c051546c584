# SPDX-License-Identifier: Apache-2.0
"""An owner says when it leaves its GPU idle: at waits for data, and where the user says so.

Guests sleep on the phase word of the GPU (see `wire.owner_phase`). When a wait begins, the word
says until when it is not expected to end: the tenth percentile of the last 32 waits at the same
place. The GPU is free when it has done what the owner gave it, not when the owner's CPU begins to
wait. Nothing is said before the coordinator has made the file, and nothing by a thread that does
not train.
"""

from __future__ import annotations

import ctypes
import fcntl
import glob
import mmap
import os
from collections import deque
from time import monotonic_ns
from typing import TYPE_CHECKING

from slipstream.torch_hooks import owner_drain
from slipstream.torch_hooks import which_device as device
from slipstream.wire import batons, futex, owner_phase
from slipstream.wire.owner_phase import FILE_BYTES, OwnerPhase

if TYPE_CHECKING:
    from slipstream.torch_hooks.notes import Notes

REMEMBERED = 32
_ENOUGH = 4  # waits before a place's first prediction
_LOOK_AGAIN_NS = 2_000_000_000


class OwnerWaits:
    """The waits of one owner's process, and its GPU's word once there is one."""

    def __init__(self, run_dir: str, job_id: int, notes: Notes) -> None:
        self._run_dir = run_dir
        self._job_id = job_id
        self._notes = notes
        self._word: _Word | None = None
        self._look_at_ns = 0
        self._places: dict[object, deque[int]] = {}
        self._began_ns = 0
        self._delay: _Delay | None = None
        self._delayed_ns = 0
        self._drains = False
        """The word of this wait is opened by the device, when it has done what it was given."""

    def begin(self, place: object) -> bool:
        """A wait begins; False if it is inside another or nobody can be told."""
        now_ns = monotonic_ns()
        if self._began_ns or (self._word is None and not self._find(now_ns)):
            return False
        assert self._word is not None  # noqa: S101 (for mypy)
        idle_from_ns = _idle_from_ns(now_ns)
        ends_ns = self._ends_ns(place, now_ns)
        if not idle_from_ns:
            self._drains = owner_drain.open_when_drained(self._word.address, ends_ns)
            self._began_ns = now_ns if self._drains else 0
            return self._drains
        self._began_ns = now_ns
        self._delayed_ns = self._delay.total_ns() if self._delay else 0
        self._word.open(idle_from_ns, ends_ns)
        return True

    def end(self, place: object) -> None:
        """The wait that was begun has ended."""
        now_ns = monotonic_ns()
        if self._delay:
            now_ns -= self._delay.total_ns() - self._delayed_ns
        is_open = self._was_opened()
        if self._word is not None and is_open:
            self._word.close(now_ns)
        self._places.setdefault(place, deque(maxlen=REMEMBERED)).append(now_ns - self._began_ns)
        self._began_ns = 0

    def leave(self) -> None:
        """Say no more."""
        self._was_opened()
        word, self._word = self._word, None
        self._look_at_ns = 1 << 63
        if word is not None:
            word.leave()
        if self._delay:
            self._delay.close()
            self._delay = None

    def _was_opened(self) -> bool:
        """Whether the word of a wait was, which on CUDA the device decides."""
        drains, self._drains = self._drains, False
        return not drains or owner_drain.is_over()

    def forget(self) -> None:
        """In a forked child: the word and its lock are the parent's."""
        self._drains = False
        self._word = None
        self._look_at_ns = 1 << 63

    def _ends_ns(self, place: object, now_ns: int) -> int:
        past = self._places.get(place)
        if past is None or len(past) < _ENOUGH:
            return 0
        return now_ns + sorted(past)[len(past) // 10]

    def _find(self, now_ns: int) -> bool:
        """The word of this process's GPU; of several ranks each has the GPU of its number."""
        if now_ns < self._look_at_ns:
            return False
        self._look_at_ns = now_ns + _LOOK_AGAIN_NS
        rank = os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or "0"
        paths = sorted(glob.glob(f"{batons.folder(self._run_dir)}/*{owner_phase.SUFFIX}"))  # noqa: PTH207 (no pathlib in a user's process)
        own = [path for path in paths if _job_of(path) == self._job_id]
        if not own:
            return False
        path = own[(int(rank) if rank.isdigit() else 0) % len(own)]
        try:
            self._word = _Word(path)
        except (OSError, ValueError) as error:
            self._notes.problem("phase word", f"{path}: {error}; guests do not see this owner wait")
            return False
        if not (device.occupancy() or device.cuda()):
            self._delay = _Delay()
        return True


class _Delay:
    """How long this thread could have run and another had its core.

    Where the core is the device a guest makes the owner's waits longer; the kernel knows how much.
    """

    def __init__(self) -> None:
        self._descriptor = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def total_ns(self) -> int:
        return int(os.pread(self._descriptor, 64, 0).split()[1])

    def close(self) -> None:
        os.close(self._descriptor)


class _Word:
    """The file as its one writer holds it; raises OSError if another process does."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not owner_phase.is_whole(os.pread(self._descriptor, FILE_BYTES + 1, 0)):
                raise ValueError(f"no phase word of version {owner_phase.VERSION}")  # noqa: TRY301 (closed below)
            page = mmap.mmap(self._descriptor, FILE_BYTES)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._phase = OwnerPhase.from_buffer(page)
        self.address = ctypes.addressof(self._phase)
        self._address = self.address + OwnerPhase.word.offset  # type: ignore[attr-defined]  # a field of ctypes
        self._phase.word += self._phase.word & 1  # a killed owner before us may have left it open
        self._phase.closed_ns = monotonic_ns()
        self._phase.pid = os.getpid()

    def open(self, idle_from_ns: int, ends_ns: int) -> None:
        phase = self._phase
        phase.idle_from_ns = idle_from_ns
        phase.ends_ns = ends_ns
        phase.waits += 1
        phase.word += 1
        futex.wake(self._address)

    def close(self, now_ns: int) -> None:
        self._phase.closed_ns = now_ns
        self._phase.word += 1  # nobody is woken: who runs looks before its next operator

    def leave(self) -> None:
        self._phase.pid = 0
        self._phase.word += 2 - (self._phase.word & 1)
        futex.wake(self._address)
        os.close(self._descriptor)


def _job_of(path: str) -> int:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (no pathlib in a user's process)
            content = file.read(FILE_BYTES + 1)
    except OSError:
        return 0
    return OwnerPhase.from_buffer_copy(content).job_id if owner_phase.is_whole(content) else 0


def _idle_from_ns(now_ns: int) -> int:
    """When the device has done what this process gave it; 0 if that cannot be told."""
    if device.occupancy():
        return max(now_ns, int(device.occupancy().drained_ns()))
    if device.cuda():
        # This has never run on a GPU. A queue that is not empty keeps the word closed for now.
        return now_ns if device.cuda().current_stream().query() else 0
    return now_ns
