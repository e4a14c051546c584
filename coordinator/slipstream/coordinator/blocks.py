# SPDX-License-Identifier: Apache-2.0
"""The control blocks of a node's processes, as their coordinator holds them.

A page belongs to the job's user, who may cut it short at any time. A mapping of it would then kill
this daemon, so pages are read and written through their descriptors. A process that stands still
sleeps on its page; waking it maps the page for that one call, in which the kernel alone touches it.
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.wire import control_block, futex
from slipstream.wire.control_block import (
    DOWN_OFFSET,
    PAGE_BYTES,
    WORD_BYTES,
    Capability,
    ControlBlockError,
    Directive,
    Down,
    Identity,
    Phase,
    Progress,
    Up,
    as_word,
    word,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

_LEASE_AT = word(Down, "lease_until_ns") * WORD_BYTES
_LOCK = struct.Struct("hhqqi")  # struct flock
_WORD = re.compile(r"[A-Za-z0-9_.-]*")  # as a task asks for them: files are named by them


@dataclass(slots=True)
class Block:
    """One page, open for as long as its process is here."""

    path: Path
    identity: Identity
    descriptor: int
    progress: Progress
    """What was last read whole."""
    directive: Directive = Directive()  # noqa: RUF009 (frozen)
    """What was last asked for."""
    sequence: int = 0
    faults: int = 0
    """How often it could not be read whole."""
    lease_until_ns: int = 0
    """What was last promised."""

    def refresh(self) -> None:
        """Read what the process says; a page that is cut off or torn changes nothing."""
        words = control_block.read_half(Up, self._read)
        if words:
            self.progress = control_block.read_progress(words)
        else:
            self.faults += 1

    def renew_lease(self, until_ns: int) -> None:
        """Promise to be there until then; whoever sleeps until a later moment is woken."""
        os.pwrite(self.descriptor, as_word(until_ns), _LEASE_AT)
        before_ns, self.lease_until_ns = self.lease_until_ns, until_ns
        if until_ns < before_ns:
            futex.wake_in_file(self.descriptor, DOWN_OFFSET)

    def recall(self) -> None:
        """Read what an earlier coordinator asked for; one killed in between asked for nothing."""
        if words := control_block.read_half(Down, self._read):
            self.directive = control_block.read_directive(words)

    def direct(self, directive: Directive) -> None:
        """Ask for something, as a whole, and wake the process if it sleeps."""
        self.sequence |= 1
        os.pwrite(self.descriptor, as_word(self.sequence), DOWN_OFFSET)
        for offset, fields in control_block.directive_parts(directive):
            os.pwrite(self.descriptor, fields, offset)
        self.sequence += 1
        os.pwrite(self.descriptor, as_word(self.sequence), DOWN_OFFSET)
        futex.wake_in_file(self.descriptor, DOWN_OFFSET)
        self.directive = directive

    @property
    def is_hooked(self) -> bool:
        """Whether a living process has attached its hooks to this page and not taken them away."""
        told = self.progress
        attached = Capability.BOUNDARIES in told.capabilities and told.phase != Phase.ENDED
        return attached and self.is_claimed

    @property
    def is_claimed(self) -> bool:
        """Whether a living process is its writer.

        That process holds a lock on it, which the kernel takes back when the process ends.
        """
        question = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(self.descriptor, fcntl.F_GETLK, question)
        return int(_LOCK.unpack(answer)[0]) != fcntl.F_UNLCK

    def remove(self) -> None:
        """The process is gone."""
        self.forget()
        self.path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Another page has taken its place."""
        os.close(self.descriptor)

    def _read(self, first: int, count: int) -> Sequence[int]:
        raw = os.pread(self.descriptor, count * WORD_BYTES, first * WORD_BYTES)
        return struct.unpack(f"<{len(raw) // WORD_BYTES}Q", raw[: len(raw) // WORD_BYTES * 8])


def create(
    folder: Path,
    identity: Identity,
    *,
    lease_until_ns: int,
    directive: Directive = Directive(),  # noqa: B008 (frozen)
) -> Block:
    """Make a process's page below `folder`; the user owns the page, never the way to it."""
    job = folder / str(identity.job_id)
    job.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = job / f"{identity.step}.{identity.task}.{identity.asked_pid}"
    page = control_block.fresh_page(identity, directive, lease_until_ns=lease_until_ns)
    draft = job / f".{path.name}"
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, page, 0)  # all of it: a hole could not be filled on a full disk
        if os.geteuid() == 0:
            os.fchown(descriptor, identity.uid, -1)
        draft.rename(path)
    except BaseException:
        os.close(descriptor)
        draft.unlink(missing_ok=True)
        raise
    return Block(path, identity, descriptor, Progress(), directive, lease_until_ns=lease_until_ns)


def clear_drafts(folder: Path) -> None:
    """Remove what an earlier coordinator was killed over; only for the one that is here now."""
    for draft in folder.glob("[0-9]*/.*"):
        draft.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            draft.parent.rmdir()  # nothing else was in it


def found(folder: Path) -> Iterator[Block]:
    """The pages that an earlier coordinator left; what is no page is passed over.

    Who owns a file is the kernel's word; all else in it is the user's.
    """
    # Not Path.glob, which fails if a job's folder goes while it looks.
    for name in sorted(glob.glob("[0-9]*/[!.]*", root_dir=folder)):  # noqa: PTH207
        path = folder / name
        with contextlib.suppress(OSError, ControlBlockError):
            block = _opened(path)
            block.refresh()
            block.recall()
            yield block


def _opened(path: Path) -> Block:
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        identity = control_block.read_identity(os.pread(descriptor, PAGE_BYTES + 1, 0))
        _check(identity, path, owner=os.fstat(descriptor).st_uid)
        sequence = int.from_bytes(os.pread(descriptor, WORD_BYTES, DOWN_OFFSET), "little")
    except BaseException:
        os.close(descriptor)
        raise
    return Block(path, identity, descriptor, Progress(), sequence=sequence)


def _check(identity: Identity, path: Path, *, owner: int) -> None:
    if identity.uid != owner or str(identity.job_id) != path.parent.name:
        raise ControlBlockError(f"{path} of uid {owner} says it is another's: {identity}")
    if not all(map(_WORD.fullmatch, (identity.step, identity.class_name, identity.token))):
        raise ControlBlockError(f"{path} of uid {owner} has words that are none: {identity}")
