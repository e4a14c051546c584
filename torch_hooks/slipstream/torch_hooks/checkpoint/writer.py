# SPDX-License-Identifier: Apache-2.0
"""Writing checkpoints: only the copy is made while training waits, the rest in a thread beside it.

A rank has two mapped files of its own that take turns. Checksums, the index and the renaming follow
the copy in the background; until the index is in place the generation does not exist.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import copying
from slipstream.torch_hooks.checkpoint import checksums, generations
from slipstream.torch_hooks.checkpoint.errors import CheckpointError
from slipstream.torch_hooks.checkpoint.ramdisk import MappedFile
from slipstream.torch_hooks.copying import Piece

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import torch

    from slipstream.torch_hooks.checkpoint.generations import Generation, Shard
    from slipstream.torch_hooks.checkpoint.spill import Spill

_ALIGNMENT = 64
_SPARE = ".spare"
_LATER_S = 3.0
"""After a checkpoint: when memory for the next one is had."""


@dataclass(frozen=True)
class Snapshot:
    """What is to be saved: an index without checksums, and the storages it speaks of."""

    layout: str
    state: dict[str, Any]
    storages: Sequence[torch.UntypedStorage]
    boundaries: int = 0
    """How many there were in this process."""
    program: str = ""
    """Which one it is of."""

    def offsets(self) -> tuple[list[tuple[int, int]], int]:
        """Where each storage goes and its size, and the size of all."""
        places, at = [], 0
        for storage in self.storages:
            places.append((at, storage.nbytes()))
            at += -(-storage.nbytes() // _ALIGNMENT) * _ALIGNMENT
        return places, max(at, _ALIGNMENT)

    def index(
        self, generation: Generation, shard: Shard, kind: str, sums: list[int]
    ) -> dict[str, Any]:
        """What is written beside the storages, with the checksums of their pieces."""
        places, size = self.offsets()
        return {
            "restart": generation.restart,
            "minibatches": generation.minibatches,
            "rank": shard.rank,
            "world_size": shard.world_size,
            "layout": self.layout,
            "boundaries": self.boundaries,
            "program": self.program,
            "bytes": size,
            "checksum": {"kind": kind, "piece_bytes": checksums.PIECE_BYTES, "pieces": sums},
            "storages": places,
            "state": self.state,
        }


class Writer:
    """One rank's part in saving; used by the thread that trains.

    Args:
        root: where the generations are.
        shard: which rank of how many.
        on_problem: told what could not be done in the background.
        restart: of the generations to be written; what is older may be damaged.
        restored: what the training went on from, if that is in the same place.
        spill: where what finds no room is saved instead; None: it is not.
        on_spill: told why it was.
    """

    def __init__(
        self,
        root: Path,
        shard: Shard,
        on_problem: Callable[[str], None],
        *,
        restart: int = 0,
        restored: Generation | None = None,
        spill: Spill | None = None,
        on_spill: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._root = root
        self._shard = shard
        self._on_problem = on_problem
        self._restart = restart
        self._restored = restored
        self._spill = spill
        self._on_spill = on_spill
        self._spilled: Generation | None = None
        """The last of this process that is on the shared filesystem."""
        self._files: list[tuple[Generation | None, MappedFile]] = []
        self._thread: threading.Thread | None = None
        self._in_a_hurry = threading.Event()
        self.ready = False
        """Whether there is room for a checkpoint."""

    def prepare(self, size: int) -> None:
        """Have memory for a checkpoint of this size, in the background."""
        self._in_background(lambda: self._prepare(size))

    def save(self, generation: Generation, snapshot: Snapshot) -> None:
        """Copy now, and do the rest in the background; raises CheckpointError or OSError."""
        self.finish()
        if (self._root / str(generation) / self._shard.index).exists():
            return  # it is the same state
        places, size = snapshot.offsets()
        try:
            file = self._take(size)
        except (CheckpointError, OSError) as error:
            self._save_there(generation, snapshot, error)
            return
        _copy_all(snapshot.storages, places, file)
        self._in_background(lambda: self._complete(generation, snapshot, file))

    def finish(self) -> None:
        """Wait until what is in the background is done."""
        if self._thread is not None:
            self._in_a_hurry.set()
            self._thread.join()
            self._thread = None

    def _in_background(self, work: Callable[[], None]) -> None:
        def harmless() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 (the promise of this room)
                self._on_problem(str(error) or repr(error))

        self.finish()
        self._in_a_hurry.clear()
        # Not a daemon: a program that ends at once still leaves a whole checkpoint behind.
        self._thread = threading.Thread(target=harmless, name="slipstream checkpoint")
        self._thread.start()

    def _prepare(self, size: int) -> None:
        self.ready = False
        self._root.mkdir(mode=0o700, exist_ok=True)
        self._adopt()
        self._have(size)
        self.ready = True

    def _have(self, size: int) -> None:
        """A file to copy into, so that nobody waits for memory; or room to do without."""
        if self._reusable(size) is not None:
            return
        try:
            self._add(size)
        except (CheckpointError, OSError) as error:
            if self._spill is None:
                raise
            self._spill.check(size)
            self._on_spill(f"{error}: the next checkpoint goes to {self._spill.root}")

    def _save_there(self, generation: Generation, snapshot: Snapshot, why: Exception) -> None:
        """There is no room in memory: on the shared filesystem, while training waits."""
        if self._spill is None:
            raise why
        try:
            self._spill.write(generation, self._shard, snapshot)
        except CheckpointError as error:
            raise CheckpointError(f"{why}; {error}") from error
        self._spilled = generation
        self._on_spill(f"{why}: generation {generation} was written to {self._spill.root}")

    def _take(self, size: int) -> MappedFile:
        """A file that holds nothing anybody needs; from here on it holds nothing at all."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        at = self._reusable(size)
        if at is None:
            self._forget_smaller_than(size, self._trusted())
            at = self._add(size)
        before, file = self._files.pop(at)
        if before is not None:
            (self._root / str(before) / self._shard.index).unlink(missing_ok=True)
        self._files.append((None, file))
        return file

    def _complete(self, generation: Generation, snapshot: Snapshot, file: MappedFile) -> None:
        _, size = snapshot.offsets()
        kind, checksum, shortcoming = checksums.best()
        if shortcoming:
            self._on_problem(f"checksums take longer than they need to: {shortcoming}")
        with ThreadPoolExecutor(copying.threads()) as threads:
            pieces = checksums.pieces(file.address, size)
            sums = list(threads.map(lambda piece: checksum(*piece), pieces))
        folder = self._root / str(generation)
        folder.mkdir(mode=0o700, exist_ok=True)
        old_folder = file.path.parent
        file.path = file.path.replace(folder / self._shard.data)
        content = snapshot.index(generation, self._shard, kind, sums)
        generations.write_index(folder, self._shard, content)
        self._files[-1] = (generation, file)
        _remove_if_empty(old_folder)
        if self._shard.rank == 0:
            self._clear()
        self._adopt()
        self._forget_smaller_than(size, max(generations.complete(self._root)[-2:-1], default=None))
        # The next one must not wait for memory either. But this one may be on its way elsewhere,
        # and its training with it: so much memory takes a processor from those who carry it.
        self._in_a_hurry.wait(_LATER_S)
        self._have(size)

    def _trusted(self) -> Generation | None:
        """What one would go on from now: written by this process, or read by it."""
        ours = [one for one in generations.complete(self._root) if one.restart >= self._restart]
        if self._spilled and self._shard.world_size == 1:  # else others may not have done theirs
            ours.append(self._spilled)
        return max(ours, default=self._restored)

    def _reusable(self, size: int) -> int | None:
        """A mapped file that is large enough and older than what one would go on from."""
        newest = self._trusted()
        self._files = [entry for entry in self._files if entry[1].path.exists()]
        for at, (generation, file) in enumerate(self._files):
            free = generation is None or (newest is not None and generation < newest)
            if free and file.size >= size:
                return at
        return None

    def _add(self, size: int) -> int:
        """One more file; one that is too small to be of use makes room first."""
        number = 0
        while (path := self._root / f"{_SPARE}-{self._shard.data}.{number}").exists():
            number += 1
        try:
            self._files.append((None, MappedFile(path, size)))
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return len(self._files) - 1

    def _forget_smaller_than(self, size: int, before: Generation | None) -> None:
        for entry in list(self._files):
            generation, file = entry
            if file.size < size and (generation is None or (before and generation < before)):
                self._files.remove(entry)
                self._remove(generation, file.path)

    def _adopt(self) -> None:
        """Files of an earlier process of this rank: their memory is there already."""
        newest = self._trusted()
        known = {file.path for _, file in self._files}
        left: list[tuple[Generation | None, Path]] = [
            (None, path) for path in self._root.glob(f"{_SPARE}-{self._shard.data}.*")
        ]
        for generation in generations.generations(self._root):
            folder = self._root / str(generation)
            if not (folder / self._shard.index).exists():
                left.append((None, folder / self._shard.data))  # killed while it was written
            elif newest is not None and generation < newest:
                left.append((generation, folder / self._shard.data))
        for old, path in left:
            if path not in known and path.is_file() and path.stat().st_size:
                self._files.append((old, MappedFile(path, path.stat().st_size)))

    def _clear(self) -> None:
        """Shards of ranks that are no more, and of generations before the last two."""
        whole = generations.complete(self._root)
        for generation in generations.generations(self._root):
            if len(whole) > 1 and generation < whole[-2]:
                folder = self._root / str(generation)
                for path in folder.glob("rank-*"):
                    if not path.name.partition("-of-")[2].startswith(f"{self._shard.world_size}."):
                        path.unlink(missing_ok=True)
                _remove_if_empty(folder)

    def _remove(self, generation: Generation | None, path: Path) -> None:
        if generation is not None:
            (path.parent / self._shard.index).unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def _copy_all(
    storages: Sequence[torch.UntypedStorage], places: Sequence[tuple[int, int]], file: MappedFile
) -> None:
    pieces = []
    for storage, (offset, count) in zip(storages, places):  # noqa: B905 (Python 3.9)
        if count and storage.device.type == "cpu":
            pieces.append(Piece(file.address + offset, storage.data_ptr(), count))
        elif count:
            _copy_from_device(storage, file, offset, count)
    copying.copy_all(pieces)


def _copy_from_device(
    storage: torch.UntypedStorage, file: MappedFile, offset: int, count: int
) -> None:
    import torch  # noqa: PLC0415 (the program has it)

    there = torch.frombuffer(file.map, dtype=torch.uint8, count=count, offset=offset)
    here = torch.empty(0, dtype=torch.uint8, device=storage.device)
    there.copy_(here.set_(storage))


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
