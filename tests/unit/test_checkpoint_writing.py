# SPDX-License-Identifier: Apache-2.0
"""Writing checkpoints: two files take turns, and the newest whole generation is never touched."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
import torch

from checkpoint_rig import FIRST, FOURTH, SECOND, THIRD, Training, equal, saved
from slipstream.torch_hooks.checkpoint import generations, ramdisk
from slipstream.torch_hooks.checkpoint.errors import CheckpointError
from slipstream.torch_hooks.checkpoint.generations import Generation, Shard
from slipstream.torch_hooks.checkpoint.ramdisk import MappedFile
from slipstream.torch_hooks.checkpoint.restoring import restore
from slipstream.torch_hooks.checkpoint.writer import Writer

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit


def files(root: Path) -> dict[int, str]:
    """Every file of storages by its inode."""
    return {
        path.stat().st_ino: str(path.relative_to(root)) for path in sorted(root.rglob("*.data*"))
    }


def test_generations_are_ordered_by_restart_and_mini_batch() -> None:
    """A training that went back to mini-batch 5 is newer than the one that had reached 100."""
    assert sorted([Generation(1, 5), Generation(0, 100), Generation(0, 7)]) == [
        Generation(0, 7),
        Generation(0, 100),
        Generation(1, 5),
    ]
    assert str(Generation(1, 5)) == "r0001-m000000000005"


def test_the_last_two_generations_are_there(tmp_path: Path) -> None:
    """Older ones are gone."""
    saved(tmp_path, FIRST, SECOND, THIRD, FOURTH)
    assert generations.complete(tmp_path) == [THIRD, FOURTH]
    assert {path.name for path in tmp_path.iterdir()} == {str(THIRD), str(FOURTH)}


def test_two_files_take_turns(tmp_path: Path) -> None:
    """Their memory is had once."""
    writer = saved(tmp_path, FIRST, SECOND)
    before = files(tmp_path)
    training = Training()
    for generation in (THIRD, FOURTH):
        writer.save(generation, training.snapshot())
        writer.finish()
    assert files(tmp_path).keys() == before.keys()
    assert len(before) == 2


def test_memory_is_there_before_the_first_checkpoint(tmp_path: Path) -> None:
    """Prepared in the background; `ready` says when."""
    writer = Writer(tmp_path / "new", Shard(), lambda _: None)
    _, size = Training().snapshot().offsets()
    assert not writer.ready
    writer.prepare(size)
    writer.finish()
    prepared = files(tmp_path / "new")
    assert writer.ready
    assert len(prepared) == 1
    writer.save(FIRST, Training().snapshot())
    writer.finish()
    assert prepared.keys() < files(tmp_path / "new").keys()


def test_a_checkpoint_is_whole_before_there_is_memory_for_the_next(tmp_path: Path) -> None:
    """Whoever carries it need not share the processors; whoever saves again has it by then."""
    writer = Writer(tmp_path, Shard(), pytest.fail)
    writer.save(FIRST, Training().snapshot())
    while not generations.complete(tmp_path):
        pass
    assert len(files(tmp_path)) == 1
    writer.finish()
    assert len(files(tmp_path)) == 2


def test_the_next_process_uses_the_files_of_the_last(tmp_path: Path) -> None:
    """What is older than the newest generation, and what was begun and never finished."""
    saved(tmp_path, FIRST, SECOND)
    before = files(tmp_path)
    writer = Writer(tmp_path, Shard(), lambda _: None)
    writer.prepare(Training().snapshot().offsets()[1])
    writer.finish()
    writer.save(THIRD, Training().snapshot())
    writer.finish()
    assert files(tmp_path).keys() == before.keys()
    assert generations.complete(tmp_path) == [SECOND, THIRD]


def test_a_writer_that_was_killed_leaves_the_newest_generation(tmp_path: Path) -> None:
    """Its index went first: half a copy is never taken for a whole one."""
    writer = saved(tmp_path, FIRST, SECOND)
    snapshot = Training().snapshot()
    file = writer._take(snapshot.offsets()[1])  # noqa: SLF001 (killed here)
    file.map[: file.size] = b"\xff" * file.size
    assert generations.complete(tmp_path) == [SECOND]
    fresh = Training(seed=7, steps=0)
    restored = restore(tmp_path, fresh.parts, pytest.fail)
    assert restored is not None
    assert restored.generation == SECOND


def test_what_was_gone_on_from_is_kept_until_there_is_something_better(tmp_path: Path) -> None:
    """The newest generation is damaged: the one before it is all there is, so it stays."""
    saved(tmp_path, FIRST, SECOND)
    data = tmp_path / str(SECOND) / Shard().data
    data.write_bytes(data.read_bytes()[:-1])
    fresh = Training(seed=7, steps=0)
    restored = restore(tmp_path, fresh.parts, lambda _: None)
    assert restored is not None
    writer = Writer(tmp_path, Shard(), pytest.fail, restart=1, restored=restored.generation)
    snapshot = fresh.snapshot()
    writer.prepare(snapshot.offsets()[1])
    writer.finish()
    file = writer._take(snapshot.offsets()[1])  # noqa: SLF001 (killed here)
    file.map[: file.size] = b"\xff" * file.size
    again = restore(tmp_path, Training(seed=8, steps=0).parts, lambda _: None)
    assert again is not None
    assert again.generation == FIRST


def test_the_same_state_is_not_saved_twice(tmp_path: Path) -> None:
    """Asked again at the same mini-batch, the answer is there already."""
    writer = saved(tmp_path, FIRST, SECOND)
    before = files(tmp_path)
    writer.save(SECOND, Training(seed=5).snapshot())
    writer.finish()
    assert files(tmp_path) == before


def test_a_state_that_has_grown_gets_larger_files(tmp_path: Path) -> None:
    """The old ones are given back."""
    writer = saved(tmp_path, FIRST, SECOND)
    larger = Training(width=32)
    for generation in (THIRD, FOURTH):
        writer.save(generation, larger.snapshot())
        writer.finish()
    assert generations.complete(tmp_path) == [THIRD, FOURTH]
    assert len(files(tmp_path)) == 2
    fresh = Training(seed=7, width=32, steps=0)
    assert restore(tmp_path, fresh.parts, pytest.fail)
    assert equal(fresh.numbers(), larger.numbers())


def test_files_that_somebody_removed_are_made_anew(tmp_path: Path) -> None:
    """A ramdisk that was cleared costs one slower checkpoint."""
    root = tmp_path / "checkpoints"
    writer = saved(root, FIRST, SECOND)
    subprocess.run(["rm", "-r", str(root)], check=True)
    writer.save(THIRD, Training().snapshot())
    writer.finish()
    assert generations.complete(root) == [THIRD]


def test_nothing_is_lost_while_another_rank_has_not_finished(tmp_path: Path) -> None:
    """A rank that is ahead keeps what all have until all have something newer."""
    ranks = [Writer(tmp_path, Shard(rank, 2), pytest.fail) for rank in range(2)]
    for generation in (FIRST, SECOND):
        for writer in ranks:
            writer.save(generation, Training().snapshot())
            writer.finish()
    for generation in (THIRD, FOURTH):
        ranks[1].save(generation, Training().snapshot())
        ranks[1].finish()
    assert generations.complete(tmp_path) == [SECOND]
    ranks[0].save(FOURTH, Training().snapshot())
    ranks[0].finish()
    assert generations.complete(tmp_path) == [SECOND, FOURTH]


def test_shards_of_ranks_that_are_no_more_are_removed(tmp_path: Path) -> None:
    """A training that shrank does not keep the memory of four."""
    for rank in range(4):
        saved(tmp_path, FIRST, shard=Shard(rank, 4))
    saved(tmp_path, SECOND, THIRD)
    left = {path.parent.name for path in tmp_path.rglob("*-of-4.*") if "spare" not in path.name}
    assert left == set()
    assert generations.complete(tmp_path) == [SECOND, THIRD]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_full_ramdisk_is_noted_and_what_was_there_stays(tmp_path: Path) -> None:
    """A real one of four MiB: the second generation does not fit, the first can be read."""
    ramdisk_folder = tmp_path / "ramdisk"
    ramdisk_folder.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(ramdisk_folder)], check=True
    )
    try:
        problems: list[str] = []
        writer = Writer(ramdisk_folder / "job", Shard(), problems.append)
        training = Training(width=500)  # some 3 MiB
        writer.save(FIRST, training.snapshot())
        writer.finish()
        with pytest.raises(CheckpointError, match="no room for a checkpoint"):
            writer.save(SECOND, training.snapshot())
        assert "no room for a checkpoint" in problems[0]
        fresh = Training(seed=7, width=500, steps=0)
        restored = restore(ramdisk_folder / "job", fresh.parts, pytest.fail)
        assert restored is not None
        assert restored.generation == FIRST
        assert len(files(ramdisk_folder)) == 1
        del writer
    finally:
        subprocess.run(["umount", "-l", str(ramdisk_folder)], check=True)


def test_a_missing_ramdisk_is_noted(tmp_path: Path) -> None:
    """Nothing is made in its place."""
    problems: list[str] = []
    writer = Writer(tmp_path / "gone" / "job", Shard(), problems.append)
    writer.prepare(100)
    writer.finish()
    assert not writer.ready
    assert "No such file or directory" in problems[0]
    assert not (tmp_path / "gone").exists()


def test_what_a_cgroup_still_allows_is_counted(tmp_path: Path) -> None:
    """The tightest of all above a process, page cache that can be dropped included."""
    group = tmp_path / "fs/slurm/job_7/step_0"
    group.mkdir(parents=True)
    (tmp_path / "self").write_text("0::/slurm/job_7/step_0\n")
    for folder, most, used, cached in ((group, "max", 5, 1), (group.parent, "1000", 900, 50)):
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 3\ninactive_file {cached}\n")
    found = ramdisk.cgroup_room(tmp_path / "self", tmp_path / "fs")
    assert found == {"the cgroup job_7": 150}


def test_a_file_larger_than_all_memory_is_refused_before_it_is_begun(tmp_path: Path) -> None:
    """It could not be given back in time."""
    with pytest.raises(CheckpointError, match=r"no room for a checkpoint: \d+ MiB are needed"):
        MappedFile(tmp_path / "huge", 1 << 60)
    assert not (tmp_path / "huge").exists() or (tmp_path / "huge").stat().st_size == 0


def test_what_is_in_the_file_is_what_was_in_memory(tmp_path: Path) -> None:
    """The numbers of the moment, not those after: training goes on while checksums are made."""
    training = Training()
    writer = Writer(tmp_path, Shard(), pytest.fail)
    before = training.numbers()
    writer.save(FIRST, training.snapshot())
    with torch.no_grad():
        training.weight.zero_()
    writer.finish()
    fresh = Training(seed=9, steps=0)
    assert restore(tmp_path, fresh.parts, pytest.fail)
    assert equal(fresh.numbers(), before)
