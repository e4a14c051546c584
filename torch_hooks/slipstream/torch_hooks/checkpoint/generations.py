# SPDX-License-Identifier: Apache-2.0
"""The generations of a checkpoint: a folder each, in it a file of storages and an index per rank.

    r0001-m000000000120/rank-0-of-2.data    raw storages
                        rank-0-of-2.json    the index, renamed into place when all is written

An index is one line of JSON and one with its checksum. A generation is complete when the index of
each rank is there. Whoever saves never touches the newest complete one, so that at any moment, and
without the ranks having to agree on anything, there is one to go on from.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.checkpoint.errors import (
    AnotherTrainingError,
    CheckpointError,
    DamagedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FORMAT = "slipstream checkpoint"
VERSION = 1
_WRITABLE_BY_OTHERS = 0o022
_FOLDER = re.compile(r"r(\d{4,})-m(\d{12,})")
_INDEX = re.compile(r"rank-(\d+)-of-(\d+)\.json")


@dataclass(frozen=True, order=True)
class Generation:
    """One state of the training; a later one is greater."""

    restart: int
    """How often the training was started anew; else one that went back would count as older."""
    minibatches: int

    def __str__(self) -> str:
        return f"r{self.restart:04d}-m{self.minibatches:012d}"


@dataclass(frozen=True)
class Shard:
    """Whose part of a generation."""

    rank: int = 0
    world_size: int = 1

    @property
    def data(self) -> str:
        return f"rank-{self.rank}-of-{self.world_size}.data"

    @property
    def index(self) -> str:
        return f"rank-{self.rank}-of-{self.world_size}.json"

    @property
    def spilled(self) -> str:
        """Empty, on the ramdisk: what belongs there was written to the shared filesystem."""
        return f"rank-{self.rank}-of-{self.world_size}.spilled"


def generations(root: Path) -> list[Generation]:
    """All that there are, oldest first, complete or not."""
    return sorted(_folders(root))


def world_size(root: Path, generation: Generation) -> int:
    """How many ranks a generation is complete for; 0 if it is not."""
    shards = {
        (int(match[1]), int(match[2]))
        for name in _names(root / str(generation))
        if (match := _INDEX.fullmatch(name))
    }
    sizes = {size for _, size in shards}
    whole = [size for size in sizes if all((rank, size) in shards for rank in range(size))]
    return max(whole, default=0)


def complete(root: Path) -> list[Generation]:
    """Those one can go on from, oldest first."""
    return [one for one in generations(root) if world_size(root, one)]


def write_index(folder: Path, shard: Shard, content: dict[str, Any]) -> None:
    """Put an index into place: before, the shard does not count; after, it does."""
    line = json.dumps({"format": FORMAT, "version": VERSION, **content}, separators=(",", ":"))
    text = f"{line}\n{zlib.crc32(line.encode()):08x}\n"
    draft = folder / f".{shard.index}"
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, folder / shard.index)  # noqa: PTH105 (Path.replace says the same; the verb matters here)


def read_index(root: Path, generation: Generation, shard: Shard) -> dict[str, Any]:
    """An index, if it is whole and where it belongs."""
    path = root / str(generation) / shard.index
    try:
        line, checksum, rest = path.read_text(encoding="utf-8").split("\n")
        content = json.loads(line)
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path} is no index: {error}") from error
    if rest or checksum != f"{zlib.crc32(line.encode()):08x}":
        raise DamagedError(f"{path} is damaged: its checksum is another")
    if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        raise CheckpointError(
            f"{path} is of {content.get('format')!r}, version {content.get('version')!r}; "
            f"these hooks read {FORMAT!r}, version {VERSION}"
        )
    found = [content.get(key) for key in ("restart", "minibatches", "rank", "world_size")]
    if found != [generation.restart, generation.minibatches, shard.rank, shard.world_size]:
        raise DamagedError(
            f"{path} was swapped: it says it is of restart, mini-batch, rank {found}"
        )
    return content  # type: ignore[no-any-return]  # JSON is anything


def check_ours(folder: Path) -> None:
    """A folder below one that anybody may write to: it and its parent must be of this user alone.

    Else somebody could have put it there for us to read, or to write to.
    """
    for place in (folder.parent, folder):
        there = place.lstat()
        if there.st_uid != os.geteuid() or there.st_mode & _WRITABLE_BY_OTHERS:
            raise CheckpointError(f"{place} is not ours alone: mode {there.st_mode:o}")


def check_program(index: dict[str, Any], program: str) -> None:
    """One job may run several programs, each of which must go on from its own."""
    if program and index.get("program", program) != program:
        raise AnotherTrainingError("it was written by another program, or by one asked otherwise")


def _folders(root: Path) -> Iterator[Generation]:
    for name in _names(root):
        match = _FOLDER.fullmatch(name)
        if match:
            yield Generation(int(match[1]), int(match[2]))


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 (names are wanted, not paths)
    except OSError:
        return []  # gone, or never there
