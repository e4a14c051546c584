# SPDX-License-Identifier: Apache-2.0
"""Files that outlive the node: in their place when all of them is on the disk, and not before.

Of whoever carries a checkpoint there, and of a training that finds no room for one in memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.checkpoint import generations

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_KEPT = 2
_BEGIN_WRITING = 2  # SYNC_FILE_RANGE_WRITE


def make_folder(folder: Path) -> None:
    """The folder of a job, of this user alone.

    Never the one above its user's: where that is missing, what is shared is not there.
    """
    for place in (folder.parent, folder):
        place.mkdir(mode=0o700, exist_ok=True)
    generations.check_ours(folder)


@contextlib.contextmanager
def draft(path: Path, size: int) -> Iterator[Any]:
    """A file that is in its place when all of it is on the disk, and nowhere if it is not."""
    begun = path.with_name(f".{path.name}.carried")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        with os.fdopen(os.open(begun, flags, 0o600), "wb", buffering=0) as file:
            if size:
                with contextlib.suppress(OSError):  # not every filesystem can; writing will tell
                    os.posix_fallocate(file.fileno(), 0, size)
            yield file
            os.fsync(file.fileno())
        begun.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            begun.unlink()
        raise


def begin_writing(descriptor: int, at: int, count: int) -> None:
    """Have the disk begin while we go on: there is less left to wait for at the end."""
    function = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if function is not None:  # glibc's, on Linux; what it cannot do is only slower
        function(descriptor, ctypes.c_int64(at), ctypes.c_int64(count), _BEGIN_WRITING)


def sync(*places: Path) -> None:
    """Files and folders, in this order."""
    for path in places:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def forget_old(target: Path) -> None:
    """All but the newest complete generations; what is newer than those is still being carried."""
    kept = generations.complete(target)[-_KEPT:]
    for generation in generations.generations(target):
        if kept and generation < kept[0]:
            shutil.rmtree(target / str(generation), ignore_errors=True)
