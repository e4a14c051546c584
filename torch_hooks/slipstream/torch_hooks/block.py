# SPDX-License-Identifier: Apache-2.0
"""A control block as its training process holds it: mapped, claimed, and written at each boundary.

A page has one writer: whoever holds a record lock on its file. The kernel gives that lock back when
the process ends or execs, and a forked child does not inherit it. The file must be opened here and
nowhere else in this process: closing any descriptor of it would drop the lock.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import time
from typing import TYPE_CHECKING

from slipstream.wire import control_block, futex
from slipstream.wire.control_block import (
    PAGE_BYTES,
    Directive,
    Down,
    Identity,
    Up,
    word,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

_SEQUENCE = word(Up, "sequence")
_MINIBATCHES = word(Up, "minibatches")
_LAST_BOUNDARY = word(Up, "last_boundary_ns")
_MINIBATCH = word(Up, "minibatch_ns")
_DOWN_SEQUENCE = word(Down, "sequence")
_LEASE = word(Down, "lease_until_ns")
_SHARE = word(Down, "share_pct")
_LONGEST_WAIT_NS = 500_000_000  # a coordinator that wakes nobody, a Ctrl-C just before the sleep
_LOW = 0xFFFFFFFF  # of a word: what a futex compares
_NOTHING = 1  # odd: no directive that is whole has such a sequence
_REBINDS = word(Up, "rebinds")
_HELD = word(Up, "held")
_REQUEST = word(Down, "request")
_KEPT = ("sequence", "pid", "phase", "rebinds")
_COUNTS = tuple(name for name, *_ in Up._fields_ if name not in _KEPT)


class Block:
    """This process's page. Not safe for threads: only the thread that trains writes it."""

    __slots__ = ("_descriptor", "_words", "identity", "path", "told")

    def __init__(self, path: str, descriptor: int, page: mmap.mmap, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self._descriptor = descriptor
        self._words = memoryview(page).cast("Q")
        self.told = _NOTHING
        self._words[_SEQUENCE] &= ~1  # a killed writer before us may have left it odd
        self.write(pid=os.getpid(), held=0)

    @property
    def lease_until_ns(self) -> int:
        """Until when the coordinator promised to be there."""
        return self._words[_LEASE]

    @property
    def run_dir(self) -> str:
        """Of the node: where the batons are, too."""
        return os.path.dirname(os.path.dirname(os.path.dirname(self.path)))  # noqa: PTH120 (no pathlib in a user's process)

    @property
    def down_address(self) -> int:
        """Where `Down` is in this process's memory until the page is closed, for native code."""
        page = ctypes.c_char.from_buffer(self._words.obj)
        return ctypes.addressof(page) + control_block.DOWN_OFFSET

    @property
    def up_address(self) -> int:
        """The same of `Up`."""
        page = ctypes.c_char.from_buffer(self._words.obj)
        return ctypes.addressof(page) + _SEQUENCE * control_block.WORD_BYTES

    @property
    def held_address(self) -> int:
        """Where it is said that this process is held: the word that is not the trainer's."""
        return self.up_address + (_HELD - _SEQUENCE) * control_block.WORD_BYTES

    def keep_mapped(self) -> object:
        """Something that keeps the page in this process's memory while it lives."""
        return ctypes.c_char.from_buffer(self._words.obj)

    @property
    def down_sequence(self) -> int:
        """What changes whenever something is asked for."""
        return self._words[_DOWN_SEQUENCE]

    @property
    def minibatches(self) -> int:
        """As the page says."""
        return self._words[_MINIBATCHES]

    def asked_request(self) -> int:
        """What is asked for now, whole or not: one word is read alone."""
        return self._words[_REQUEST]

    def asked_share_pct(self) -> int:
        """The share as it is asked for now, whole or not: one word is read alone."""
        return self._words[_SHARE]

    def asked_gpus(self) -> tuple[str, ...]:
        """Where this process belongs, if not where the page was made for."""
        words = control_block.read_half(Down, self._read)
        return control_block.read_directive(words).gpu_uuids if words else ()

    def begin_anew(self) -> None:
        """The same process with a program that begins again: what it has counted is over."""
        self.write(**dict.fromkeys(_COUNTS, 0), rebinds=self._words[_REBINDS] + 1)

    def write(self, **fields: int) -> None:
        """Change fields of `Up`, together."""
        words = self._words
        busy = words[_SEQUENCE] | 1  # odd whatever another thread has left
        words[_SEQUENCE] = busy
        for name, value in fields.items():
            words[word(Up, name)] = value
        words[_SEQUENCE] = busy + 1

    def boundary(self, minibatches: int, at_ns: int, minibatch_ns: int) -> bool:
        """What changes at each boundary; the same as `write`, without its loop.

        Returns whether all is quiet: the lease holds, and nothing new is asked for.
        """
        words = self._words
        sequence = words[_SEQUENCE]
        words[_SEQUENCE] = sequence + 1
        words[_MINIBATCHES] = minibatches
        words[_LAST_BOUNDARY] = at_ns
        words[_MINIBATCH] = minibatch_ns
        words[_SEQUENCE] = sequence + 2
        return words[_LEASE] >= at_ns and words[_DOWN_SEQUENCE] == self.told

    def news(self) -> Directive | None:
        """The directive, if there is one that was not read yet and that is whole."""
        sequence = self._words[_DOWN_SEQUENCE]
        if sequence == self.told:
            return None
        words = control_block.read_half(Down, self._read)
        if not words:
            return None  # looked at again at the next boundary
        self.told = words[0]
        return control_block.read_directive(words)

    def wait_for_news(self, otherwise_s: float) -> None:
        """Return when something else is asked for or the lease ends; also, now and then, before.

        Where the kernel wakes nobody, after so many seconds.
        """
        seen = self._words[_DOWN_SEQUENCE]
        if seen != self.told and not seen & 1:
            return
        # An odd one is waited on as it is: whoever was killed over it may never make it even.
        until_ns = min(self.lease_until_ns + 1, time.monotonic_ns() + _LONGEST_WAIT_NS)
        if not futex.wait(self.down_address, seen & _LOW, until_ns):
            time.sleep(otherwise_s)

    def close(self) -> None:
        """Give the page back; it says what was last written."""
        self._words.release()
        os.close(self._descriptor)

    def _read(self, first: int, count: int) -> Sequence[int]:
        return self._words[first : first + count].tolist()


def claim(path: str) -> Block | None:
    """Become the writer of a page, or None if another living process is; raises what is wrong."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # POSIX allows either
            os.close(descriptor)
            return None
        # Read before it is mapped: touching what a short file lacks would kill this process.
        identity = control_block.read_identity(os.pread(descriptor, PAGE_BYTES + 1, 0))
        return Block(path, descriptor, mmap.mmap(descriptor, PAGE_BYTES), identity)
    except BaseException:
        os.close(descriptor)
        raise
