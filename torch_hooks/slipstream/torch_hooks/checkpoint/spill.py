# SPDX-License-Identifier: Apache-2.0
"""A checkpoint for which memory has no room, written at once to where it outlives the node.

    <ramdisk>/r0001-m000000000120/rank-0-of-1.spilled    an empty file: whoever carries looks there
    <durable>/r0001-m000000000120/rank-0-of-1.data, .json

Slower than a copy in memory, and the training waits for it; but it is saved. Written in pieces, so
that it takes next to no memory of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.checkpoint import checksums, durable, generations, shared
from slipstream.torch_hooks.checkpoint.errors import CheckpointError
from slipstream.torch_hooks.copying import copy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import torch

    from slipstream.torch_hooks.checkpoint.generations import Generation, Shard
    from slipstream.torch_hooks.checkpoint.writer import Snapshot

_ANSWERS_WITHIN_S = 5.0
_MARGIN_BYTES = 64 << 20


@dataclass(frozen=True)
class Spill:
    """Where a training saves what does not fit into memory.

    Args:
        job: the job's folder on the shared filesystem; made if it is not there.
        root: of this training, that folder or one below it.
        ramdisk: of this training; where it is noted that something was spilled.
    """

    job: Path
    root: Path
    ramdisk: Path

    def check(self, size: int = 0) -> None:
        """Raise a CheckpointError where there is no room, or nobody who answers."""
        top = self.job.parent.parent
        free: list[int] = []

        def ask() -> None:
            with contextlib.suppress(OSError):
                disk = os.statvfs(top)
                free.append(disk.f_bavail * disk.f_frsize if shared.is_there(self.job) else -1)

        # A server that does not answer would have the training wait for it, without an end.
        asking = threading.Thread(target=ask, name="slipstream spill", daemon=True)
        asking.start()
        asking.join(_ANSWERS_WITHIN_S)
        if not free or free[0] < 0:
            raise CheckpointError(f"nor is the shared filesystem of {top} there")
        if size + _MARGIN_BYTES > free[0]:
            raise CheckpointError(
                f"nor on the shared filesystem of {top}, which has {free[0] >> 20} MiB left"
            )

    def begin(self, size: int = 0) -> Path:
        """The folder to write to."""
        self.check(size)
        durable.make_folder(self.job)
        self.root.mkdir(mode=0o700, exist_ok=True)
        return self.root

    def write(self, generation: Generation, shard: Shard, snapshot: Snapshot) -> None:
        """All of it, on the disk when this returns."""
        places, size = snapshot.offsets()
        folder = self.begin(size) / str(generation)
        folder.mkdir(mode=0o700, exist_ok=True)
        kind, checksum, _ = checksums.best()
        sums = []
        buffer = mmap.mmap(-1, checksums.PIECE_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        with durable.draft(folder / shard.data, size) as file:
            for at in range(0, size, checksums.PIECE_BYTES):
                count = min(checksums.PIECE_BYTES, size - at)
                _gather(buffer, address, (at, count), snapshot.storages, places)
                sums.append(checksum(address, count))
                _write_all(file, memoryview(buffer)[:count])
                durable.begin_writing(file.fileno(), at, count)
        content = snapshot.index(generation, shard, kind, sums)
        generations.write_index(folder, shard, content)
        self.done(generation, shard)

    def done(self, generation: Generation, shard: Shard) -> None:
        """It is there: say so to who carries, and remove what is older than the last two."""
        written = self.root / str(generation)
        for place in (*sorted(written.rglob("*")), written, self.root):
            with contextlib.suppress(FileNotFoundError):  # of another rank, which is not done yet
                durable.sync(place)
        if shard.rank == 0:
            durable.forget_old(self.root)
        self._forget_notes(shard)
        folder = self.ramdisk / str(generation)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / shard.spilled).touch(mode=0o600)

    def _forget_notes(self, shard: Shard) -> None:
        for note in self.ramdisk.glob(f"*/{shard.spilled}"):
            note.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                note.parent.rmdir()


def _gather(
    buffer: mmap.mmap,
    address: int,
    piece: tuple[int, int],
    storages: Sequence[torch.UntypedStorage],
    places: Sequence[tuple[int, int]],
) -> None:
    """Fill a buffer with what lies in this piece of the file; zeros between storages."""
    begin, count = piece
    ctypes.memset(address, 0, count)
    for storage, (offset, size) in zip(storages, places):  # noqa: B905 (Python 3.9)
        first, last = max(begin, offset), min(begin + count, offset + size)
        if first < last:
            _take(buffer, address, (first - begin, last - first), storage, first - offset)


def _take(
    buffer: mmap.mmap,
    address: int,
    where: tuple[int, int],
    storage: Any,  # noqa: ANN401 (torch's)
    at: int,
) -> None:
    to, count = where
    if storage.device.type == "cpu":
        copy(address + to, storage.data_ptr() + at, count)
        return
    import torch  # noqa: PLC0415 (the program has it)

    there = torch.frombuffer(buffer, dtype=torch.uint8, count=count, offset=to)
    here = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    there.copy_(here[at : at + count])


def _write_all(file: Any, piece: memoryview) -> None:  # noqa: ANN401 (a raw file)
    while piece:
        piece = piece[file.write(piece) :]
