# SPDX-License-Identifier: Apache-2.0
"""Reading checkpoints: nothing of one is believed, and nothing changed, before all is verified."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import copying
from slipstream.torch_hooks.checkpoint import checksums, generations
from slipstream.torch_hooks.checkpoint.encoding import Decoder, placed, storages_of
from slipstream.torch_hooks.checkpoint.errors import DamagedError
from slipstream.torch_hooks.copying import Piece

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    import torch

    from slipstream.torch_hooks.checkpoint.generations import Generation, Shard
else:
    from slipstream.torch_hooks.lazy_torch import torch


class Reader:
    """One shard of one generation, verified."""

    def __init__(self, root: Path, generation: Generation, shard: Shard) -> None:
        self.generation = generation
        self.index = generations.read_index(root, generation, shard)
        self.state: dict[str, Any] = self.index["state"]
        self._path = root / str(generation) / shard.data
        self._bytes = torch.frombuffer(_mapped(self._path, self.index["bytes"]), dtype=torch.uint8)
        # Copied while it is verified: it is thrown away if it is found to be damaged.
        self._fresh, copies = self._new(storages_of(self.state) - _in_place(self.state))
        self._verify(copies)

    def fill(self, pairs: Iterable[tuple[torch.Tensor, dict[str, Any]]]) -> None:
        """Give tensors the numbers of saved ones of the same shape."""
        pieces = []
        for tensor, described in pairs:
            saved = self._saved(described)
            if tensor.device.type == "cpu" and tensor.is_contiguous() and saved.is_contiguous():
                pieces.append(Piece(tensor.data_ptr(), saved.data_ptr(), saved.nbytes))
            else:
                tensor.copy_(saved)
        copying.copy_all(pieces)

    def decode(self, coded: Any) -> Any:  # noqa: ANN401 (JSON is anything)
        """A value with tensors of its own: optimizers keep and change what they are given."""
        missing = storages_of(coded) - self._fresh.keys()
        if missing:
            more, copies = self._new(missing)
            copying.copy_all(copies, fresh=True)
            self._fresh.update(more)
        return Decoder(lambda one: placed(one, self._fresh[one["storage"]])).decode(coded)

    def close(self) -> None:
        """Give the mapped file back; what was made of it stays."""
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def _saved(self, described: dict[str, Any]) -> torch.Tensor:
        """A tensor in the mapped file."""
        offset = self.index["storages"][described["storage"]][0]
        element = getattr(torch, described["dtype"]).itemsize
        inside = {**described, "offset": described["offset"] + offset // element}
        return placed(inside, self._bytes.untyped_storage())

    def _new(self, numbers: Iterable[int]) -> tuple[dict[int, torch.UntypedStorage], list[Piece]]:
        """Storages of their own for saved ones, and what fills them."""
        storages, copies = {}, []
        for number in sorted(numbers):
            offset, count = self.index["storages"][number]
            storages[number] = torch.empty(count, dtype=torch.uint8).untyped_storage()
            address = storages[number].data_ptr()
            copies.append(Piece(address, self._bytes.data_ptr() + offset, count))
        return storages, copies

    def _verify(self, copies: list[Piece]) -> None:
        expected = self.index["checksum"]
        pieces = checksums.pieces(
            self._bytes.data_ptr(), self.index["bytes"], expected["piece_bytes"]
        )
        found = checksums.of_copied(expected["kind"], pieces, copies)
        if found != expected["pieces"]:
            wrong = [at for at, one in enumerate(found) if [one] != expected["pieces"][at : at + 1]]
            raise DamagedError(
                f"{self._path} is damaged: {len(wrong)} of {len(found)} pieces differ from what "
                f"was written, the first at byte {wrong[0] * expected['piece_bytes']}"
            )


def _in_place(state: dict[str, Any]) -> set[int]:
    """What goes into modules that are there already."""
    parts = state.get("parts", {}).values()
    return set().union(*(storages_of(part.get("module")) for part in parts))


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
