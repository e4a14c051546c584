# SPDX-License-Identifier: Apache-2.0
"""Restoring: to the bit, or not at all; what is damaged or of another training changes nothing."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkpoint_rig import FIRST, SECOND, Training, equal, saved
from slipstream.torch_hooks.checkpoint import generations, own
from slipstream.torch_hooks.checkpoint.comparison import differences
from slipstream.torch_hooks.checkpoint.errors import CheckpointError
from slipstream.torch_hooks.checkpoint.generations import Generation, Shard
from slipstream.torch_hooks.checkpoint.restoring import Restored, restore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.unit

ALONE = Shard()


def data(root: Path, generation: Generation) -> Path:
    """Its file of storages."""
    return root / str(generation) / ALONE.data


def index(root: Path, generation: Generation) -> Path:
    """Its index."""
    return root / str(generation) / ALONE.index


def tried(root: Path, training: Training) -> tuple[Restored | None, str]:
    """What came of a restore, and all that was said."""
    problems: list[str] = []
    return restore(root, training.parts, problems.append), "\n".join(problems)


def flip(path: Path, at: int, bit: int) -> None:
    """One bit of a file."""
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """An index with something else in it and the right checksum."""
    content = json.loads(path.read_text().splitlines()[0])
    change(content)
    line = json.dumps(content)
    path.write_text(f"{line}\n{zlib.crc32(line.encode()):08x}\n")


def test_all_of_it_comes_back_to_the_bit(tmp_path: Path) -> None:
    """Parameters, all buffers, the optimizer's state; and the next mini-batches are the same."""
    training = Training()
    saved(tmp_path, FIRST, training=training)
    fresh = Training(seed=9, steps=0)
    restored, said = tried(tmp_path, fresh)
    assert said == ""
    assert restored is not None
    assert equal(fresh.numbers(), training.numbers())
    torch.manual_seed(3)
    there = [training.learn() for _ in range(3)]
    torch.manual_seed(3)
    assert [fresh.learn() for _ in range(3)] == there


def test_tied_weights_stay_tied_and_views_stay_views(tmp_path: Path) -> None:
    """Memory is filled where it is: whoever looks at it sees it."""
    training = Training()
    saved(tmp_path, FIRST, training=training)
    fresh = Training(seed=9, steps=0)
    view = fresh.weight.detach()[0]
    tried(tmp_path, fresh)
    assert fresh.tied is fresh.weight
    assert torch.equal(view, training.weight[0])


def test_the_optimizer_owns_what_it_is_given(tmp_path: Path) -> None:
    """Its next step changes its own memory, not the checkpoint."""
    saved(tmp_path, FIRST)
    first, second = Training(seed=3, steps=0), Training(seed=4, steps=0)
    tried(tmp_path, first)
    before = first.numbers()
    first.learn()
    tried(tmp_path, second)
    assert equal(second.numbers(), before)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    where=st.floats(0, 1, exclude_max=True),
    bit=st.integers(0, 7),
    part=st.sampled_from(["data", "json"]),
)
def test_a_flipped_bit_is_found_wherever_it_is(
    tmp_path_factory: pytest.TempPathFactory, where: float, bit: int, part: str
) -> None:
    """The generation before it is taken instead."""
    root = tmp_path_factory.mktemp("flip")
    training = Training()
    saved(root, FIRST, training=training)
    before = training.numbers()
    saved(root, SECOND, training=training)
    path = (data if part == "data" else index)(root, SECOND)
    size = path.stat().st_size
    flip(path, int(where * size), bit)
    fresh = Training(seed=9, steps=0)
    restored, said = tried(root, fresh)
    assert restored is not None
    assert restored.generation == FIRST
    assert f"generation {SECOND} is passed over" in said
    assert equal(fresh.numbers(), before)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut off": (lambda root: _cut(data(root, SECOND)), "was cut off"),
    "emptied": (lambda root: data(root, SECOND).write_bytes(b""), "was cut off"),
    "no data": (lambda root: data(root, SECOND).unlink(), "cannot be read"),
    "index cut off": (lambda root: _cut(index(root, SECOND)), "is no index|damaged"),
    "index emptied": (lambda root: index(root, SECOND).write_bytes(b""), "is no index"),
    "index of another": (
        lambda root: index(root, SECOND).write_bytes(index(root, FIRST).read_bytes()),
        "was swapped",
    ),
    "data of another": (
        lambda root: data(root, SECOND).write_bytes(data(root, FIRST).read_bytes()),
        "is damaged: 1 of 1 pieces differ",
    ),
    "another format": (
        lambda root: rewritten(index(root, SECOND), lambda one: one.update(version=9)),
        "version 9; these hooks read 'slipstream checkpoint', version 1",
    ),
    "unknown checksum": (
        lambda root: rewritten(index(root, SECOND), lambda one: one["checksum"].update(kind="md5")),
        "its checksums are 'md5'; known are 'crc32c' and 'crc32'",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_passed_over(tmp_path: Path, damage: str) -> None:
    """And said so; the generation before it is taken."""
    saved(tmp_path, FIRST, SECOND)
    spoil, complaint = DAMAGES[damage]
    spoil(tmp_path)
    fresh = Training(seed=9, steps=0)
    restored, said = tried(tmp_path, fresh)
    assert restored is not None
    assert restored.generation == FIRST
    assert any(word in said for word in complaint.split("|")), said


def test_shards_of_two_ranks_that_were_swapped_are_found(tmp_path: Path) -> None:
    """With their data or without."""
    for rank in range(2):
        saved(tmp_path, FIRST, shard=Shard(rank, 2), training=Training(seed=rank))
    folder = tmp_path / str(FIRST)
    one, other = (folder / Shard(rank, 2).index for rank in range(2))
    texts = one.read_text(), other.read_text()
    one.write_text(texts[1])
    other.write_text(texts[0])
    restored, said = tried(tmp_path, Training(seed=9, steps=0))
    assert restored is None
    assert "was swapped" in said
    one.write_text(texts[0])
    other.write_text(texts[1])
    raws = [(folder / Shard(rank, 2).data).read_bytes() for rank in range(2)]
    (folder / Shard(0, 2).data).write_bytes(raws[1])
    restored, said = tried(tmp_path, Training(seed=9, steps=0))
    assert restored is None
    assert "is damaged" in said


def test_when_nothing_is_whole_the_training_is_as_it_was(tmp_path: Path) -> None:
    """It starts from the beginning, with the weights it began with."""
    saved(tmp_path, FIRST, SECOND)
    for generation in (FIRST, SECOND):
        flip(data(tmp_path, generation), 100, 3)
    fresh = Training(seed=9, steps=0)
    before = fresh.numbers()
    restored, said = tried(tmp_path, fresh)
    assert restored is None
    assert said.count("is passed over") == 2
    assert equal(fresh.numbers(), before)


def test_an_empty_folder_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    """Nor is one that is not there."""
    for root in (tmp_path, tmp_path / "nowhere"):
        assert tried(root, Training())[1] == (
            f"nothing to go on from in {root}: no generation is complete"
        )


def another_width() -> Training:
    """The same names, other shapes."""
    return Training(width=16, steps=0)


def one_layer_more() -> Training:
    """Other names."""
    training = Training(steps=0)
    training.model.append(torch.nn.Linear(8, 8))
    return training


def another_optimizer() -> Training:
    """Fewer parameters in it."""
    training = Training(steps=0)
    training.optimizer = torch.optim.Adam([training.weight])
    return training


def another_precision() -> Training:
    """The same shapes in other numbers."""
    training = Training(steps=0)
    training.model.to(torch.float64)
    return training


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (another_width, "model is another one: 0.weight is float32[8, 8] there, float32[16, 16]"),
        (another_width, "; and "),
        (one_layer_more, "3.bias is missing there, float32[8] here"),
        (another_precision, "0.weight is float32[8, 8] there, float64[8, 8] here"),
        (another_optimizer, "its groups have [3] parameters there, [1] here"),
    ],
)
def test_another_model_is_refused_and_left_alone(
    tmp_path: Path, make: Callable[[], Training], complaint: str
) -> None:
    """The sentence says what differs, and how."""
    saved(tmp_path, FIRST)
    training = make()
    before = training.numbers()
    restored, said = tried(tmp_path, training)
    assert restored is None
    assert complaint in said
    assert equal(training.numbers(), before)


def test_other_parts_are_refused(tmp_path: Path) -> None:
    """A scheduler that was not there when the state was saved."""
    saved(tmp_path, FIRST)
    training = Training(steps=0)
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, 3)
    problems: list[str] = []
    assert restore(tmp_path, {**training.parts, "scheduler": scheduler}, problems.append) is None
    assert (
        "the checkpoint has model, optimizer; this training has model, optimizer, s" in problems[0]
    )


class Stubborn(torch.optim.Adam):
    """An optimizer that refuses what it is given, but not what it had."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take only an empty state."""
        if state_dict["state"]:
            raise ValueError("not that one")
        super().load_state_dict(state_dict)


def test_a_part_that_refuses_its_state_leaves_all_as_it_was(tmp_path: Path) -> None:
    """Half a restore would be worse than none."""
    training = Training()
    second = torch.optim.Adam(training.model.parameters())
    saved(tmp_path, FIRST, training=training)
    fresh = Training(seed=9, steps=0)
    fresh.optimizer = Stubborn(fresh.model.parameters())
    before = fresh.numbers()
    with pytest.raises(CheckpointError, match="optimizer does not take its state: not that one"):
        restore(tmp_path, fresh.parts, pytest.fail)
    assert equal(fresh.numbers(), before)
    assert second.state == {}


def test_a_sharded_checkpoint_needs_as_many_ranks(tmp_path: Path) -> None:
    """It says how many there are and were."""
    training = Training()
    for rank in range(2):
        saved(tmp_path, FIRST, shard=Shard(rank, 2), training=training)
    for rank in range(2):
        path = tmp_path / str(FIRST) / Shard(rank, 2).index
        rewritten(path, lambda one: one.update(layout="sharded"))
    restored, said = tried(tmp_path, Training(seed=9, steps=0))
    assert restored is None
    assert "it is sharded over 2 ranks, this training has 1" in said


def test_a_programs_own_checkpoint_is_not_ours_to_read(tmp_path: Path) -> None:
    """And the other way round: only whole ones of its own are offered to it."""
    saved(tmp_path, FIRST)
    folder = own.begin(tmp_path, SECOND)
    (folder / "mine.pt").touch()
    problems: list[str] = []
    assert list(own.newest(tmp_path, problems.append)) == []
    own.commit(tmp_path, SECOND, ALONE, {})
    assert list(own.newest(tmp_path, problems.append)) == [(SECOND, folder)]
    assert set(problems) == {
        f"generation {FIRST} is passed over: it was not written by the program's own means"
    }
    restored, said = tried(tmp_path, Training(seed=9, steps=0))
    assert restored is not None
    assert restored.generation == FIRST
    assert "written by the program's own means" in said


def test_a_programs_own_checkpoints_are_kept_for_two_generations(tmp_path: Path) -> None:
    """As ours are; one that was changed since is passed over."""
    all_of_them = [Generation(0, number) for number in range(5)]
    for generation in all_of_them:
        (own.begin(tmp_path, generation) / "mine.pt").touch()
        own.commit(tmp_path, generation, ALONE, {})
    assert generations.generations(tmp_path) == all_of_them[-2:]
    (tmp_path / str(all_of_them[-1]) / "own/mine.pt").write_bytes(b"changed")
    problems: list[str] = []
    whole = list(own.newest(tmp_path, problems.append))
    assert [generation for generation, _ in whole] == [all_of_them[-2]]
    assert "mine.pt is not what was written" in problems[0]


def test_differences_are_named(tmp_path: Path) -> None:
    """Two checkpoints beside each other."""
    one, other = Training(), Training()
    for name, training in (("one", one), ("same", other)):
        torch.manual_seed(5)
        saved(tmp_path / name, FIRST, training=training)
    with torch.no_grad():
        other.bias[3] += 1e-6
    other.optimizer.param_groups[0]["lr"] = 0.2
    saved(tmp_path / "other", SECOND, training=other)
    assert differences(tmp_path / "one", tmp_path / "same") == []
    found = differences(tmp_path / "one", tmp_path / "other")
    assert "parts.model.module.1.bias" in found
    assert "parts.optimizer.state.param_groups[0].lr" in found
    with pytest.raises(CheckpointError, match="has no generation that is complete"):
        differences(tmp_path / "one", tmp_path / "none")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])
