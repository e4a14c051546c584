# SPDX-License-Identifier: Apache-2.0
"""Reading checkpoints: nothing of one is believed, and nothing changed, before all is verified."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from slipstream.torch_hooks.checkpoint import checksums, generations, ramdisk
from slipstream.torch_hooks.checkpoint.copying import copy
from slipstream.torch_hooks.checkpoint.encoding import Decoder, placed, storages_of
from slipstream.torch_hooks.checkpoint.errors import DamagedError

if TYPE_CHECKING:
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
        path = root / str(generation) / shard.data
        self._map = _mapped(path, self.index["bytes"])
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        ramdisk.advise(self._bytes.data_ptr(), self.index["bytes"], ramdisk.POPULATE_READ)
        self._fresh: dict[int, torch.UntypedStorage] = {}
        self._verify(path)

    def copy_into(self, tensor: torch.Tensor, described: dict[str, Any]) -> None:
        """Give a tensor the numbers of a saved one of the same shape."""
        offset = self.index["storages"][described["storage"]][0]
        element = getattr(torch, described["dtype"]).itemsize
        inside = {**described, "offset": described["offset"] + offset // element}
        saved = placed(inside, self._bytes.untyped_storage())
        if tensor.device.type == "cpu" and tensor.is_contiguous() and saved.is_contiguous():
            copy(tensor.data_ptr(), saved.data_ptr(), tensor.numel() * element)
        else:
            tensor.copy_(saved)

    def decode(self, coded: Any) -> Any:  # noqa: ANN401 (JSON is anything)
        """A value with tensors of its own: optimizers keep and change what they are given."""
        missing = {
            number: self.index["storages"][number]
            for number in storages_of(coded)
            if number not in self._fresh
        }
        with _threads() as threads:
            copies = threads.map(self._copied, missing.values())
            self._fresh.update(zip(missing, copies))  # noqa: B905 (Python 3.9)
        return Decoder(lambda one: placed(one, self._fresh[one["storage"]])).decode(coded)

    def _copied(self, place: tuple[int, int]) -> torch.UntypedStorage:
        offset, count = place
        return fresh_copy(self._bytes.data_ptr() + offset, count)

    def _verify(self, path: Path) -> None:
        expected = self.index["checksum"]
        checksum = checksums.named(expected["kind"])
        address, size = self._bytes.data_ptr(), self.index["bytes"]
        with _threads() as threads:
            found = list(
                threads.map(lambda piece: checksum(*piece), checksums.pieces(address, size))
            )
        if found != expected["pieces"]:
            wrong = [at for at, one in enumerate(found) if [one] != expected["pieces"][at : at + 1]]
            raise DamagedError(
                f"{path} is damaged: {len(wrong)} of {len(found)} pieces differ from what was "
                f"written, the first at byte {wrong[0] * checksums.PIECE_BYTES}"
            )


def fresh_copy(address: int, count: int) -> torch.UntypedStorage:
    """A storage of its own with these bytes; on huge pages, which come several times quicker."""
    storage = torch.empty(count, dtype=torch.uint8).untyped_storage()
    if count:
        if count >= _WORTH_HUGE_PAGES:
            begin = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (storage.data_ptr() + count) // mmap.PAGESIZE * mmap.PAGESIZE
            ramdisk.advise(begin, end - begin, ramdisk.HUGE_PAGES)
        copy(storage.data_ptr(), address, count)
    return storage


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
