# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that a program writes and reads by its own means: we say when, where and which."""

from __future__ import annotations

import base64
import contextlib
import ctypes
import shutil
import zlib
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.checkpoint import generations
from slipstream.torch_hooks.checkpoint.checksums import PIECE_BYTES
from slipstream.torch_hooks.checkpoint.encoding import Decoder, Encoder, placed
from slipstream.torch_hooks.checkpoint.errors import (
    AnotherTrainingError,
    CheckpointError,
    DamagedError,
)
from slipstream.torch_hooks.checkpoint.generations import Generation, Shard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import torch
else:
    from slipstream.torch_hooks.lazy_torch import torch

LAYOUT = "own"
"""In the index of a generation that holds such a checkpoint."""
FOLDER = "own"


def begin(root: Path, generation: Generation) -> Path:
    """The folder to write to; nothing in it counts before `commit`."""
    folder = root / str(generation) / FOLDER
    root.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def undo(root: Path, generation: Generation) -> None:
    """What was begun could not be ended: give its room back."""
    shutil.rmtree(root / str(generation) / FOLDER, ignore_errors=True)
    with contextlib.suppress(OSError):
        (root / str(generation)).rmdir()


def coded(position: dict[str, Any], random_states: dict[str, Any]) -> dict[str, Any]:
    """Where the training is and its random states, small enough to be part of the index."""
    encoder = Encoder()
    state = encoder.encode({"position": position, "random": random_states}, "place")
    storages = [
        base64.b85encode(ctypes.string_at(one.data_ptr(), one.nbytes())).decode()
        for one in encoder.storages
    ]
    return {"state": state, "storages": storages}


def place(
    root: Path, generation: Generation, shard: Shard
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The position and this rank's random states, if they were saved with it."""
    size = generations.world_size(root, generation)
    index = generations.read_index(root, generation, Shard(min(shard.rank, size - 1), size))
    saved = index.get("place")
    if saved is None:
        return None
    raw = [bytearray(base64.b85decode(one)) for one in saved["storages"]]
    storages = [torch.tensor(list(one), dtype=torch.uint8).untyped_storage() for one in raw]
    decoder = Decoder(lambda one: placed(one, storages[one["storage"]]))
    found = decoder.decode(saved["state"])
    return found["position"], found["random"]


def commit(root: Path, generation: Generation, shard: Shard, about: dict[str, Any]) -> None:
    """It is written: from now on it counts; the first rank removes all before the last two."""
    content = {
        "restart": generation.restart,
        "minibatches": generation.minibatches,
        "rank": shard.rank,
        "world_size": shard.world_size,
        "layout": LAYOUT,
        **about,
        "files": _checksums(root / str(generation) / FOLDER),
    }
    generations.write_index(root / str(generation), shard, content)
    if shard.rank == 0:
        for old in generations.complete(root)[:-2]:
            if (root / str(old) / FOLDER).is_dir():
                shutil.rmtree(root / str(old), ignore_errors=True)


def newest(
    root: Path, on_problem: Callable[[str], None], program: str = ""
) -> Iterator[tuple[Generation, Path]]:
    """What the program can go on from, newest first, and as it was written."""
    for generation in reversed(generations.complete(root)):
        size = generations.world_size(root, generation)
        folder = root / str(generation) / FOLDER
        try:
            indexes = [
                generations.read_index(root, generation, Shard(rank, size)) for rank in range(size)
            ]
            if any(index["layout"] != LAYOUT for index in indexes):
                raise AnotherTrainingError("it was not written by the program's own means")
            generations.check_program(indexes[0], program)
            found = _checksums(folder)
            for name, checksum in indexes[0]["files"].items():
                if found.get(name) != checksum:
                    raise DamagedError(f"{folder / name} is not what was written")
        except (CheckpointError, OSError) as error:
            on_problem(f"generation {generation} is passed over: {error}")
        else:
            yield generation, folder


def _checksums(folder: Path) -> dict[str, int]:
    return {
        str(path.relative_to(folder)): _checksum(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            checksum = zlib.crc32(piece, checksum)
    return checksum
