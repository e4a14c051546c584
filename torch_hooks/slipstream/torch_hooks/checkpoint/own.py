# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that a program writes and reads by its own means: we say when, where and which."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from slipstream.torch_hooks.checkpoint import generations
from slipstream.torch_hooks.checkpoint.errors import CheckpointError
from slipstream.torch_hooks.checkpoint.generations import Generation, Shard

if TYPE_CHECKING:
    from pathlib import Path

LAYOUT = "own"
"""In the index of a generation that holds such a checkpoint."""
_FOLDER = "own"


def begin(root: Path, generation: Generation) -> Path:
    """The folder to write to; nothing in it counts before `commit`."""
    folder = root / str(generation) / _FOLDER
    root.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def commit(root: Path, generation: Generation, shard: Shard) -> None:
    """It is written: from now on it counts; the first rank removes all before the last two."""
    content = {
        "restart": generation.restart,
        "minibatches": generation.minibatches,
        "rank": shard.rank,
        "world_size": shard.world_size,
        "layout": LAYOUT,
    }
    generations.write_index(root / str(generation), shard, content)
    if shard.rank == 0:
        for old in generations.complete(root)[:-2]:
            if (root / str(old) / _FOLDER).is_dir():
                shutil.rmtree(root / str(old), ignore_errors=True)


def newest(root: Path) -> list[tuple[Generation, Path]]:
    """What the program can go on from, newest first."""
    found = []
    for generation in reversed(generations.complete(root)):
        shard = Shard(0, generations.world_size(root, generation))
        try:
            layout = generations.read_index(root, generation, shard)["layout"]
        except CheckpointError:
            continue
        folder = root / str(generation) / _FOLDER
        if layout == LAYOUT and folder.is_dir():
            found.append((generation, folder))
    return found
