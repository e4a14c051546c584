# SPDX-License-Identifier: Apache-2.0
"""Reading checkpoints: nothing of one is believed, and nothing changed, before all is verified."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from slipstream.torch_hooks.checkpoint import checksums, generations, ramdisk
from slipstream.torch_hooks.copying import copy
from slipstream.torch_hooks.checkpoint.encoding import Decoder, placed, storages_of
from slipstream.torch_hooks.checkpoint.errors import DamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from slipstream.torch_hooks.checkpoint.generations import Generation, Shard

_WORTH_HUGE_PAGES = 4 << 20
_MOST_THREADS = 4


class Reader:
    """One shard of one generation, verified."""

    def __init__(self, root: Path, generation: Generation, shard: Shard) -> None:
        self.generation = generation
        self.index = generations.read_index(root, generation, shard)
        self.state: dict[str, Any] = self.index["state"]
        self._path = root / str(generation) / shard.data
        self._bytes = torch.frombuffer(_mapped(self._path, self.index["bytes"]), dtype=torch.uint8)
        with _threads() as threads:
            # Copied while it is verified: it is thrown away if it is found to be damaged.
            self._fresh = self._copies(storages_of(self.state) - _in_place(self.state), threads)
            self._verify(threads)

    def fill(self, pairs: Iterable[tuple[torch.Tensor, dict[str, Any]]]) -> None:
        """Give tensors the numbers of saved ones of the same shape."""
        with _threads() as threads:
            for _ in threads.map(lambda pair: self._fill(*pair), pairs):
                pass

    def decode(self, coded: Any) -> Any:  # noqa: ANN401 (JSON is anything)
        """A value with tensors of its own: optimizers keep and change what they are given."""
        missing = storages_of(coded) - self._fresh.keys()
        if missing:
            with _threads() as threads:
                self._fresh.update(self._copies(missing, threads))
        return Decoder(lambda one: placed(one, self._fresh[one["storage"]])).decode(coded)

    def close(self) -> None:
        """Give the mapped file back; what was made of it stays."""
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def _fill(self, tensor: torch.Tensor, described: dict[str, Any]) -> None:
        offset = self.index["storages"][described["storage"]][0]
        element = getattr(torch, described["dtype"]).itemsize
        inside = {**described, "offset": described["offset"] + offset // element}
        saved = placed(inside, self._bytes.untyped_storage())
        if tensor.device.type == "cpu" and tensor.is_contiguous() and saved.is_contiguous():
            copy(tensor.data_ptr(), saved.data_ptr(), tensor.numel() * element)
        else:
            tensor.copy_(saved)

    def _copies(
        self, numbers: Iterable[int], threads: ThreadPoolExecutor
    ) -> dict[int, torch.UntypedStorage]:
        """Storages of their own with the bytes of saved ones, filled while we go on."""
        storages = {}
        for number in sorted(numbers):
            offset, count = self.index["storages"][number]
            storages[number] = torch.empty(count, dtype=torch.uint8).untyped_storage()
            threads.submit(fill_new, storages[number], self._bytes.data_ptr() + offset)
        return storages

    def _verify(self, threads: ThreadPoolExecutor) -> None:
        expected = self.index["checksum"]
        checksum = checksums.named(expected["kind"])

        def checked(piece: tuple[int, int]) -> int:
            ramdisk.advise(*piece, ramdisk.POPULATE_READ)
            return checksum(*piece)

        pieces = checksums.pieces(
            self._bytes.data_ptr(), self.index["bytes"], expected["piece_bytes"]
        )
        found = list(threads.map(checked, pieces))
        if found != expected["pieces"]:
            wrong = [at for at, one in enumerate(found) if [one] != expected["pieces"][at : at + 1]]
            raise DamagedError(
                f"{self._path} is damaged: {len(wrong)} of {len(found)} pieces differ from what "
                f"was written, the first at byte {wrong[0] * expected['piece_bytes']}"
            )


def fill_new(storage: torch.UntypedStorage, source: int) -> None:
    """Fill a storage nobody has touched yet; on huge pages, which come several times quicker."""
    count = storage.nbytes()
    if count >= _WORTH_HUGE_PAGES:
        begin = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (storage.data_ptr() + count) // mmap.PAGESIZE * mmap.PAGESIZE
        ramdisk.advise(begin, end - begin, ramdisk.HUGE_PAGES)
        ramdisk.advise(begin, end - begin, ramdisk.POPULATE_WRITE)
    copy(storage.data_ptr(), source, count)


def _in_place(state: dict[str, Any]) -> set[int]:
    """What goes into modules that are there already."""
    parts = state.get("parts", {}).values()
    return set().union(*(storages_of(part.get("module")) for part in parts))


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_MOST_THREADS, os.cpu_count() or 1))


def _mapped(path: Path, size: int) -> mmap.mmap:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror}") from error
    try:
        there = os.fstat(descriptor).st_size
        if there < size:  # touching what a short file lacks would kill this process
            raise DamagedError(f"{path} was cut off: it has {there} bytes of {size}")
        # Private: torch wants memory it could write, and nobody's file is to be changed.
        return mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    finally:
        os.close(descriptor)
