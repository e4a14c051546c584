# SPDX-License-Identifier: Apache-2.0
"""Carrying checkpoints to where they outlive their node, and going on from there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import zlib
from typing import TYPE_CHECKING

import pytest

from checkpoint_rig import FIRST, SECOND, THIRD, Training, equal, saved
from slipstream.torch_hooks.checkpoint import carry, checksums, generations, own
from slipstream.torch_hooks.checkpoint.errors import CheckpointError, DamagedError
from slipstream.torch_hooks.checkpoint.generations import Shard
from slipstream.torch_hooks.checkpoint.restoring import restore, sources

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit


def test_what_was_carried_is_what_was_saved(tmp_path: Path) -> None:
    """By a process of its own that knows nothing of torch."""
    training = Training()
    saved(tmp_path / "here", FIRST, training=training)
    words = [sys.executable, "-X", "importtime", "-m", carry.__name__]
    done = subprocess.run(
        [*words, tmp_path / "here", tmp_path / "there/42"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["bytes"] > 0
    assert "| torch\n" not in done.stderr
    fresh = Training(seed=9, steps=0)
    assert restore(tmp_path / "there/42", fresh.parts, pytest.fail)
    assert equal(fresh.numbers(), training.numbers())


def test_only_the_newest_is_carried_and_two_are_kept(tmp_path: Path) -> None:
    """What is there already costs nothing."""
    for count, generation in enumerate((FIRST, SECOND, THIRD)):
        saved(tmp_path / "here", generation)
        assert carry.carry(tmp_path / "here", tmp_path / "there") > 0
        assert carry.carry(tmp_path / "here", tmp_path / "there") == 0
        assert len(generations.complete(tmp_path / "there")) == min(2, count + 1)
    assert generations.generations(tmp_path / "there") == [SECOND, THIRD]


def test_what_was_saved_before_it_was_asked_for_is_not_carried(tmp_path: Path) -> None:
    """Nobody could carry it then, hours ago maybe: a move must not go back to it."""
    saved(tmp_path / "here", FIRST)
    asked_s = time.time() + 10
    assert carry.carry_all(tmp_path / "here", tmp_path / "there", asked_s) == 0
    saved(tmp_path / "here", SECOND)
    for path in (tmp_path / "here" / str(SECOND)).glob("*.json"):
        os.utime(path, (asked_s + 1, asked_s + 1))
    assert carry.carry_all(tmp_path / "here", tmp_path / "there", asked_s) > 0
    assert generations.complete(tmp_path / "there") == [SECOND]


@pytest.mark.parametrize("damage", ["flip", "cut", "index"])
def test_a_damaged_one_is_not_carried(tmp_path: Path, damage: str) -> None:
    """And what was there before stays."""
    saved(tmp_path / "here", FIRST)
    carry.carry(tmp_path / "here", tmp_path / "there")
    saved(tmp_path / "here", SECOND)
    folder = tmp_path / "here" / str(SECOND)
    path = folder / (Shard().index if damage == "index" else Shard().data)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw[: len(raw) // 2] if damage == "cut" else raw)
    with pytest.raises(DamagedError):
        carry.carry(tmp_path / "here", tmp_path / "there")
    assert generations.complete(tmp_path / "there") == [FIRST]
    assert carry.main([str(tmp_path / "here"), str(tmp_path / "there")]) == 1


def test_an_index_that_knows_another_number_of_pieces_is_not_followed(tmp_path: Path) -> None:
    """Nothing is carried without a checksum of its own."""
    saved(tmp_path / "here", FIRST)
    folder = tmp_path / "here" / str(FIRST)
    index = generations.read_index(tmp_path / "here", FIRST, Shard())
    index["checksum"]["pieces"].append(0)
    generations.write_index(folder, Shard(), index)
    with pytest.raises(DamagedError, match="knows 2 pieces"):
        carry.carry(tmp_path / "here", tmp_path / "there")


def test_pieces_are_put_where_they_were_whoever_carries_them(tmp_path: Path) -> None:
    """Several threads carry one file, and its last piece is shorter."""
    saved(tmp_path / "here", FIRST)
    folder = tmp_path / "here" / str(FIRST)
    index = generations.read_index(tmp_path / "here", FIRST, Shard())
    raw = (folder / Shard().data).read_bytes()[: index["bytes"]]
    most = len(raw) // 7
    assert len(raw) % most
    sums = [zlib.crc32(raw[at : at + most]) for at in range(0, len(raw), most)]
    index["checksum"] = {"kind": checksums.CRC32, "piece_bytes": most, "pieces": sums}
    generations.write_index(folder, Shard(), index)
    carry.carry(tmp_path / "here", tmp_path / "there")
    assert (tmp_path / "there" / str(FIRST) / Shard().data).read_bytes() == raw


def test_shards_of_several_nodes_come_together(tmp_path: Path) -> None:
    """Each node carries its own; the generation is whole with the last."""
    for rank in range(2):
        saved(tmp_path / f"node{rank}", FIRST, shard=Shard(rank, 2))
    carry.carry(tmp_path / "node0", tmp_path / "there")
    assert generations.complete(tmp_path / "there") == []
    carry.carry(tmp_path / "node1", tmp_path / "there")
    assert generations.complete(tmp_path / "there") == [FIRST]


def test_tasks_that_train_apart_and_programs_own_files_are_carried(tmp_path: Path) -> None:
    """Each in a folder of its own."""
    root = tmp_path / "here/task-1"
    root.mkdir(parents=True)
    (own.begin(root, FIRST) / "mine.pt").write_bytes(b"state")
    own.commit(root, FIRST, Shard(), {"program": "program"})
    assert carry.carry_all(tmp_path / "here", tmp_path / "there") == len(b"state")
    ((_, folder),) = own.newest(tmp_path / "there/task-1", pytest.fail)
    assert (folder / "mine.pt").read_bytes() == b"state"


@pytest.mark.parametrize("late", [0, 1])
def test_nothing_is_carried_before_all_ranks_have_saved(tmp_path: Path, late: int) -> None:
    """The job is ended as soon as it was carried: half a generation would be all that is left.

    The first rank writes the model and comes last, mostly; the others have little to write.
    """
    here, there = tmp_path / "here", tmp_path / "there"
    saved(here, FIRST, shard=Shard(1 - late, 2))
    assert carry.carry_all(here, there, ranks=2) == 0
    assert generations.generations(there) == []
    saved(here, FIRST, shard=Shard(late, 2))
    assert carry.carry_all(here, there, ranks=2) > 0
    assert generations.complete(there) == [FIRST]


def test_nothing_is_carried_before_all_tasks_that_train_apart_have_saved(tmp_path: Path) -> None:
    """Each task has a folder; the one that is slower must not begin anew."""
    here, there = tmp_path / "here", tmp_path / "there"
    saved(here, FIRST)
    (here / "task-1").mkdir()
    assert carry.carry_all(here, there, ranks=2) == 0
    saved(here / "task-1", SECOND)
    assert carry.carry_all(here, there, ranks=2) > 0
    assert generations.complete(there) == [FIRST]
    assert generations.complete(there / "task-1") == [SECOND]


def test_ranks_that_saved_different_mini_batches_are_not_carried(tmp_path: Path) -> None:
    """Nothing could go on from that: the job stays."""
    here, there = tmp_path / "here", tmp_path / "there"
    for rank, generation in ((0, FIRST), (1, SECOND)):
        saved(here, generation, shard=Shard(rank, 2))
    words = [str(here), str(there), "--patience-s", "0.05", "--ranks", "2"]
    assert carry.main(words) == 1
    assert generations.complete(there) == []


def test_a_part_of_ranks_of_several_nodes_is_no_whole_one(tmp_path: Path) -> None:
    """Whoever asked is told so, instead of that it was saved."""
    here, there = tmp_path / "here", tmp_path / "there"
    saved(here, FIRST, shard=Shard(0, 2))
    with pytest.raises(CheckpointError, match="lacks ranks"):
        carry.carry_all(here, there, ranks=1)


def test_nothing_to_carry_is_no_error(tmp_path: Path) -> None:
    """A job that was never asked to save."""
    assert carry.carry_all(tmp_path / "nowhere", tmp_path / "there") == 0


def test_a_shared_filesystem_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    """What was written beside it would be called durable, and be seen by this node alone."""
    saved(tmp_path / "here", FIRST)
    target = tmp_path / "shared" / "1000" / "5-token"
    assert carry.main([str(tmp_path / "here"), str(target)]) == 1
    assert not (tmp_path / "shared").exists()
    (tmp_path / "shared").mkdir()
    assert carry.main([str(tmp_path / "here"), str(target)]) == 0
    assert generations.complete(target) == [FIRST]


def test_a_program_goes_on_only_from_its_own(tmp_path: Path) -> None:
    """One job may run several, one after the other."""
    saved(tmp_path, FIRST, program="one")
    problems: list[str] = []
    fresh = Training(seed=9, steps=0)
    assert restore(tmp_path, fresh.parts, problems.append, "another") is None
    assert "another program" in problems[0]
    assert restore(tmp_path, fresh.parts, pytest.fail, "one")


def test_the_newest_of_several_places_comes_first(tmp_path: Path) -> None:
    """The ramdisk on a tie, the shared copy where the ramdisk has less or nothing."""
    ramdisk, shared = tmp_path / "ramdisk", tmp_path / "shared"
    assert sources([ramdisk, shared]) == []
    saved(ramdisk, FIRST)
    shutil.copytree(ramdisk, shared)
    assert sources([ramdisk, shared]) == [ramdisk, shared]
    saved(shared, SECOND)
    assert sources([ramdisk, shared]) == [shared, ramdisk]


def test_one_waits_for_what_is_about_to_be_saved(tmp_path: Path) -> None:
    """Not for what was carried before; and not for ever."""
    here, there = tmp_path / "here", tmp_path / "there"
    saved(here, FIRST)
    carry.carry(here, there)
    words = [sys.executable, "-m", carry.__name__, str(here), str(there), "--patience-s"]
    late = subprocess.run([*words, "0.1"], capture_output=True, text=True, check=False)
    assert late.returncode == 1
    assert "nothing new was saved" in late.stderr
    with subprocess.Popen([*words, "60"], stdout=subprocess.PIPE) as waiting:
        saved(here, SECOND)
        assert waiting.wait() == 0
    assert generations.complete(there) == [FIRST, SECOND]
