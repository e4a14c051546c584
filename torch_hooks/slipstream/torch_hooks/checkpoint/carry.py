# SPDX-License-Identifier: Apache-2.0
"""Carry the newest generation of a checkpoint to another folder, verified on the way.

    python -m slipstream.torch_hooks.checkpoint.carry SOURCE TARGET [--patience-s 60 --since-s T]

What the ramdisk holds is lost with its node; a copy on the shared filesystem is what counts. Run as
the user whose training it is, and without torch. A training may overwrite what is being read: that
is seen by the checksums, and there is a newer generation to carry by then. Whatever kills this
program, the target's newest complete generation stays as it is.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import mmap
import os
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from slipstream.torch_hooks import copying
from slipstream.torch_hooks.checkpoint import checksums, durable, generations, own
from slipstream.torch_hooks.checkpoint.errors import CheckpointError, DamagedError
from slipstream.torch_hooks.checkpoint.generations import Generation, Shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TASKS = "task-*"
_WHOLE = (".json", ".spilled")
"""A shard has been saved when it has one of these: here, or where it is to be carried to."""
_LOOK_EVERY_S = 0.01
_COARSE_S = 0.02
"""A file's time may be so much older than the clock."""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry, and say in one line of JSON what was carried; 1 with a sentence if that failed."""
    parser = argparse.ArgumentParser(prog="carry", description=__doc__.partition("\n")[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument(
        "--patience-s",
        type=float,
        help="wait that long for a generation that the target has not; else none is no error",
    )
    parser.add_argument(
        "--since-s",
        type=float,
        default=0.0,
        help="of the clock: what was saved before then is left where it is, it may be hours old",
    )
    parser.add_argument(
        "--ranks",
        type=int,
        default=0,
        help="processes that save: nothing is carried before all have, then all of it",
    )
    told = parser.parse_args(argv)
    began_s = time.monotonic()
    try:
        carried = _patiently(told.source, told.target, told.patience_s, told.since_s, told.ranks)
    except (CheckpointError, OSError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    seconds = round(time.monotonic() - began_s, 3)
    answer = {"bytes": carried, "seconds": seconds, "spilled": _spilled(told.source, told.since_s)}
    print(json.dumps(answer))  # noqa: T201 (its answer)
    return 0


def _patiently(
    source: Path, target: Path, patience_s: float | None, since_s: float, ranks: int
) -> int:
    """Carry; where one has to wait, a generation that is overwritten meanwhile is waited out."""
    until_s = time.monotonic() + (patience_s or 0)
    while True:
        try:
            carried = carry_all(source, target, since_s, ranks)
        except DamagedError:
            if time.monotonic() > until_s:
                raise
            carried = 0
        if carried or patience_s is None:
            return carried
        if time.monotonic() > until_s:
            by_all = f" by all of {ranks} processes" if ranks > 1 else ""
            raise CheckpointError(
                f"nothing new was saved in {source}{by_all} within {patience_s:g} s"
            )
        time.sleep(_LOOK_EVERY_S)


def carry_all(source: Path, target: Path, since_s: float = 0.0, ranks: int = 0) -> int:
    """The checkpoint of a job, and those of its tasks that train apart; returns the bytes.

    Not before so many ranks have saved: the job may be ended as soon as anything was carried, and a
    generation that lacks one of them is of no use.
    """
    durable.make_folder(target)
    folders = ["", *sorted(one.name for one in source.glob(_TASKS) if one.is_dir())]
    there = {name: _newest(source / name, since_s) for name in folders}
    if sum(len(found[1]) for found in there.values() if found) < ranks:
        return 0
    carried = sum(carry(source / name, target / name, since_s) for name in folders)
    for name, found in there.items() if carried and ranks else ():
        if found and found[0] not in generations.complete(target / name):
            raise CheckpointError(f"{target / name}/{found[0]} lacks ranks that this node has not")
    return carried


def carry(source: Path, target: Path, since_s: float = 0.0) -> int:
    """What the newest generation of the source has and the target lacks; returns the bytes.

    What was spilled is there: it counts as if it had been carried.

    Other nodes may hold the other shards of it: each carries its own, and the last makes it whole.
    """
    found = _newest(source, since_s)
    if found is None:
        return 0
    generation, shards = found
    target.mkdir(mode=0o700, exist_ok=True)
    carried = sum(_carry_shard(source, target, generation, shard) for shard in shards)
    durable.forget_old(target)
    return carried


def _newest(source: Path, since_s: float) -> tuple[Generation, list[Shard]] | None:
    for generation in reversed(generations.generations(source)):
        shards = list(_shards(source / str(generation), since_s))
        if shards:
            return generation, shards
    return None


def _shards(folder: Path, since_s: float) -> Iterator[Shard]:
    for path in sorted(folder.glob("rank-*-of-*.*")):
        _, rank, _, size = path.stem.split("-")
        if path.suffix in _WHOLE and rank.isdigit() and size.isdigit() and _is_new(path, since_s):
            yield Shard(int(rank), int(size))


def _spilled(source: Path, since_s: float) -> bool:
    notes = (*source.glob("r*/*.spilled"), *source.glob(f"{_TASKS}/r*/*.spilled"))
    return any(_is_new(note, since_s) for note in notes)


def _is_new(path: Path, since_s: float) -> bool:
    return path.stat().st_mtime >= since_s - _COARSE_S


def _carry_shard(source: Path, target: Path, generation: Generation, shard: Shard) -> int:
    folder = target / str(generation)
    if (source / str(generation) / shard.spilled).exists():
        return _size(generations.read_index(target, generation, shard), folder)
    if (folder / shard.index).exists():
        return 0
    index = generations.read_index(source, generation, shard)
    folder.mkdir(mode=0o700, exist_ok=True)
    if index["layout"] == own.LAYOUT:
        size = _carry_own(source / str(generation), folder, index)
    else:
        size = _carry_storages(source / str(generation), folder, shard, index)
    generations.write_index(folder, shard, _content(index))
    durable.sync(folder / shard.index, folder, target)
    return size


def _carry_storages(source: Path, target: Path, shard: Shard, index: dict[str, Any]) -> int:
    size = index["bytes"]
    with (source / shard.data).open("rb") as file:
        if os.fstat(file.fileno()).st_size < size:
            raise DamagedError(f"{file.name} was cut off")
        with durable.draft(target / shard.data, size) as draft:
            _copy_pieces(file, draft.fileno(), index)
    return int(size)


def _copy_pieces(file: BinaryIO, target: int, index: dict[str, Any]) -> None:
    """All of them, verified, by as many threads as there are processors."""
    size, expected = index["bytes"], index["checksum"]
    checksum = checksums.named(expected["kind"])
    most = expected["piece_bytes"]
    pieces = [(most * at, wanted) for at, wanted in enumerate(expected["pieces"])]
    if len(pieces) != -(-size // most):
        raise DamagedError(f"{file.name}: its index knows {len(pieces)} pieces of {size} bytes")
    damaged = threading.Event()

    def copy(mine: Sequence[tuple[int, int]]) -> None:
        # Read, not mapped: the training may cut the file short, and touching a hole would kill us.
        buffer = mmap.mmap(-1, most)
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        for at, wanted in mine:
            if damaged.is_set():
                return
            count = min(most, size - at)
            piece = memoryview(buffer)[:count]
            if os.preadv(file.fileno(), [piece], at) != count or checksum(address, count) != wanted:
                damaged.set()
                raise DamagedError(f"{file.name} is not what its index says, from byte {at} on")
            _write(target, piece, at)
            durable.begin_writing(target, at, count)

    threads = min(len(pieces), copying.threads())
    with ThreadPoolExecutor(threads) as others:
        # In turn: together they go through the file from its beginning to its end.
        list(others.map(copy, [pieces[first::threads] for first in range(threads)]))


def _write(descriptor: int, piece: memoryview, at: int) -> None:
    while piece:
        count = os.pwrite(descriptor, piece, at)
        piece, at = piece[count:], at + count


def _carry_own(source: Path, target: Path, index: dict[str, Any]) -> int:
    """The files that a program wrote by its own means."""
    size = 0
    for name, wanted in index["files"].items():
        path = target / own.FOLDER / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (source / own.FOLDER / name).open("rb") as file, durable.draft(path, 0) as draft:
            checksum = 0
            while piece := file.read(checksums.PIECE_BYTES):
                checksum = zlib.crc32(piece, checksum)
                draft.write(piece)
                size += len(piece)
            if checksum != wanted:
                raise DamagedError(f"{file.name} is not what its index says")
    return size


def _size(index: dict[str, Any], folder: Path) -> int:
    """Of what is in its place already."""
    if index["layout"] != own.LAYOUT:
        return int(index["bytes"])
    return sum((folder / own.FOLDER / name).stat().st_size for name in index["files"])


def _content(index: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in index.items() if key not in ("format", "version")}


if __name__ == "__main__":
    sys.exit(main())
