# SPDX-License-Identifier: Apache-2.0
"""A ramdisk without room: the checkpoint goes to the shared filesystem, and nobody else notices."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkpoint_rig import FIRST, FOURTH, SECOND, THIRD, Training, equal
from slipstream.torch_hooks import run
from slipstream.torch_hooks.checkpoint import carry, checksums, generations, ramdisk
from slipstream.torch_hooks.checkpoint import spill as spilling
from slipstream.torch_hooks.checkpoint.errors import CheckpointError
from slipstream.torch_hooks.checkpoint.generations import Shard
from slipstream.torch_hooks.checkpoint.restoring import restore
from slipstream.torch_hooks.checkpoint.spill import Spill
from slipstream.torch_hooks.checkpoint.writer import Writer

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.unit


class Place:
    """A ramdisk whose room can be taken away, and a shared filesystem."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ramdisk = folder / "ramdisk"
        self.shared = folder / "shared"
        self.durable = self.shared / "1000" / "7-token"
        self.ramdisk.mkdir()
        self.shared.mkdir()
        self.shared.chmod(0o1777)
        self.full = False
        self.problems: list[str] = []
        self.told: list[str] = []
        self.training = Training()
        free = ramdisk._free_on_disk  # noqa: SLF001 (what it is told of a disk is what we change)
        monkeypatch.setattr(
            ramdisk, "_free_on_disk", lambda where: -(1 << 40) if self.full else free(where)
        )
        self.writer = self.another_writer()

    def another_writer(self, shard: Shard | None = None) -> Writer:
        """As a process has one."""
        return Writer(
            self.ramdisk,
            shard or Shard(),
            self.problems.append,
            spill=Spill(self.durable, self.durable, self.ramdisk),
            on_spill=self.told.append,
        )

    def save(self, generation: generations.Generation) -> list[torch.Tensor]:
        """What it learned up to then."""
        self.training.learn()
        self.writer.save(generation, self.training.snapshot())
        self.writer.finish()
        return self.training.numbers()

    def fill(self) -> None:
        """No more room, and none had before."""
        self.full = True
        for spare in self.ramdisk.glob(".spare*"):
            spare.unlink()

    def carry(self, since_s: float, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
        """As the coordinator has it carried."""
        words = [str(self.ramdisk), str(self.durable), "--patience-s=0", "--ranks=1"]
        assert carry.main([*words, f"--since-s={since_s}"]) == 0
        told: dict[str, object] = json.loads(capsys.readouterr().out)
        return told


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """With room, at first."""
    return Place(tmp_path, monkeypatch)


def test_what_finds_no_room_is_written_to_the_shared_filesystem(place: Place) -> None:
    """It is told, not complained of; and it can be gone on from there, to the bit."""
    place.full = True
    numbers = place.save(FIRST)
    assert place.problems == []
    assert "no room" in place.told[0]
    assert generations.complete(place.ramdisk) == []
    assert generations.complete(place.durable) == [FIRST]
    other = Training(seed=2)
    assert restore(place.durable, other.parts, place.problems.append)
    assert equal(other.numbers(), numbers)
    assert place.problems == []


def test_storages_across_pieces_come_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece holds the end of one storage, what is between and the beginning of the next."""
    monkeypatch.setattr(checksums, "PIECE_BYTES", 4096 + 64)
    place.training = Training(width=48)
    place.full = True
    numbers = place.save(FIRST)
    index = generations.read_index(place.durable, FIRST, Shard())
    assert len(index["checksum"]["pieces"]) > 3
    other = Training(seed=2, width=48)
    assert restore(place.durable, other.parts, place.problems.append)
    assert equal(other.numbers(), numbers)


def test_a_training_without_room_in_memory_is_ready_all_the_same(place: Place) -> None:
    """It can be moved: where it would be saved there is room."""
    place.full = True
    place.writer.prepare(1 << 20)
    place.writer.finish()
    assert place.writer.ready
    assert place.problems == []


def test_with_no_room_anywhere_nothing_is_saved_and_both_are_named(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training goes on; nothing is left behind."""
    place.full = True
    monkeypatch.setattr(spilling, "_MARGIN_BYTES", 1 << 60)
    with pytest.raises(CheckpointError, match=r"no room .*; nor on the shared filesystem"):
        place.save(FIRST)
    place.writer.prepare(1 << 20)
    place.writer.finish()
    assert not place.writer.ready
    assert len(place.problems) == 1
    assert not place.durable.exists()


def test_nothing_is_written_beside_a_mount_that_is_missing(place: Place) -> None:
    """The folder of all durable copies has mode 1777, a mount point has not. Back, it is used."""
    place.full = True
    place.shared.chmod(0o755)
    with pytest.raises(CheckpointError, match="nor is the shared filesystem"):
        place.save(FIRST)
    assert list(place.shared.iterdir()) == []
    place.shared.chmod(0o1777)
    place.save(SECOND)
    assert generations.complete(place.durable) == [SECOND]


def test_a_shared_filesystem_that_does_not_answer_is_not_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that hangs would have the training hang."""
    place.full = True
    monkeypatch.setattr(spilling, "_ANSWERS_WITHIN_S", 0.05)

    def hangs(_: object) -> None:
        time.sleep(0.5)
        raise OSError

    monkeypatch.setattr(os, "statvfs", hangs)
    with pytest.raises(CheckpointError, match="nor is the shared filesystem"):
        place.save(FIRST)


def test_with_room_again_it_goes_back_to_memory(place: Place) -> None:
    """Both places hold a generation; the newest is never touched, wherever it is."""
    place.save(FIRST)
    place.fill()
    place.save(SECOND)
    place.full = False
    place.save(THIRD)
    assert generations.complete(place.ramdisk)[-1] == THIRD
    assert generations.complete(place.durable) == [SECOND]


def test_a_spilled_generation_lets_the_memory_of_an_older_one_be_used(place: Place) -> None:
    """A ramdisk with room for one checkpoint takes every second one."""
    place.save(FIRST)
    place.fill()
    place.save(SECOND)
    numbers = place.save(THIRD)
    assert generations.complete(place.ramdisk) == [THIRD]
    other = Training(seed=2)
    assert restore(place.ramdisk, other.parts, place.problems.append)
    assert equal(other.numbers(), numbers)


def test_two_generations_are_kept_where_it_spills(place: Place) -> None:
    """And of the notes on the ramdisk the last one."""
    place.full = True
    for generation in (FIRST, SECOND, THIRD, FOURTH):
        place.save(generation)
    assert generations.complete(place.durable) == [THIRD, FOURTH]
    assert [note.parent.name for note in place.ramdisk.rglob("*.spilled")] == [str(FOURTH)]


def test_who_carries_finds_it_there(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """As if it had carried it; how much, and that it was spilled, is told."""
    since_s = time.time()
    place.full = True
    place.save(FIRST)
    told = place.carry(since_s, capsys)
    size = generations.read_index(place.durable, FIRST, Shard())["bytes"]
    assert (told["bytes"], told["spilled"]) == (size, True)
    place.full = False
    time.sleep(0.05)
    since_s = time.time()
    place.save(SECOND)
    assert place.carry(since_s, capsys)["spilled"] is False


def test_what_was_spilled_before_it_was_asked_for_is_not_meant(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be hours old."""
    place.full = True
    place.save(FIRST)
    words = [str(place.ramdisk), str(place.durable), "--patience-s=0", "--ranks=1"]
    assert carry.main([*words, f"--since-s={time.time() + 1}"]) == 1
    assert "nothing new" in capsys.readouterr().err


def test_ranks_with_and_without_room_come_together(place: Place) -> None:
    """One in memory, one spilled: carried when both have saved, and whole."""
    since_s = time.time()
    first, second = (place.another_writer(Shard(rank, 2)) for rank in range(2))
    snapshot = replace(place.training.snapshot(), layout="sharded")
    place.full = True
    first.save(FIRST, snapshot)
    assert carry.carry_all(place.ramdisk, place.durable, since_s, ranks=2) == 0
    place.full = False
    second.save(FIRST, snapshot)
    second.finish()
    assert carry.carry_all(place.ramdisk, place.durable, since_s, ranks=2) > 0
    assert generations.world_size(place.durable, FIRST) == 2


def test_a_floor_of_memory_is_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever saves: more than the node has is never free."""
    monkeypatch.setenv(ramdisk.FLOOR_VARIABLE, str(1 << 30))
    place.save(FIRST)
    assert generations.complete(place.durable) == [FIRST]
    assert "above the floor" in place.told[0]


def test_a_program_with_checkpoints_of_its_own_is_given_the_other_folder(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its function raised over a full disk; what it had begun there is removed."""
    monkeypatch.setenv("SLIPSTREAM_CHECKPOINT_DIR", str(place.ramdisk))
    monkeypatch.setenv("SLIPSTREAM_DURABLE_DIR", str(place.durable))

    def save(folder: str) -> None:
        Path(folder, "half").write_text("weights")
        if folder.startswith(str(place.ramdisk)):
            raise RuntimeError("inline_container.cc: file write failed")

    since_s = time.time()
    one = run.of_own_checkpoints(save, lambda _: None, with_place=True)
    one.begin()
    assert one.save()
    saved = generations.complete(place.durable)
    assert len(saved) == 1
    assert generations.complete(place.ramdisk) == []
    assert not list(place.ramdisk.rglob("half"))
    told = place.carry(since_s, capsys)
    assert (told["bytes"], told["spilled"]) == (len("weights"), True)


def test_a_program_that_cannot_save_leaves_nothing_behind(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own fault, wherever it writes to."""
    monkeypatch.setenv("SLIPSTREAM_CHECKPOINT_DIR", str(place.ramdisk))
    monkeypatch.setenv("SLIPSTREAM_DURABLE_DIR", str(place.durable))

    def save(folder: str) -> None:
        Path(folder, "half").write_text("weights")
        raise ValueError("a bug of its own")

    one = run.of_own_checkpoints(save, lambda _: None, with_place=True)
    one.begin()
    assert not one.save()
    assert not list(place.ramdisk.rglob("half"))
    assert not list(place.durable.rglob("half"))
