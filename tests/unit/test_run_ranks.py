# SPDX-License-Identifier: Apache-2.0
"""Several ranks: one saves for all, all restore, however many there are; shards stay shards."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slipstream.torch_hooks.checkpoint import generations
from slipstream.torch_hooks.checkpoint.generations import Generation, Shard
from slipstream.torch_hooks.testing import Trial
from slipstream.wire.control_block import Capability, Directive, Request

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.unit, pytest.mark.timeout(600)]

SCRIPT = str(Path(__file__).parents[1] / "checkpoint_ranks.py")
EPOCHS = 4


@contextlib.contextmanager
def team(
    folder: Path, ranks: int, *, kind: str = "replicated", at: int = 0, restore: Path | None = None
) -> Iterator[list[Trial]]:
    """So many ranks of one training, each with its own page, all with one checkpoint folder."""
    folder.mkdir()
    ask = Directive(request=Request.CHECKPOINT if at else Request.NONE, armed_for_minibatch=at)
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                Trial(
                    [sys.executable, SCRIPT, kind, str(EPOCHS)],
                    folder / str(rank),
                    ask=ask,
                    restore=restore,
                    environment={
                        "RANK": str(rank),
                        "WORLD_SIZE": str(ranks),
                        "MEETING": str(folder / "meeting"),
                        "LOSSES": str(folder / f"losses {rank}"),
                        "SLIPSTREAM_CHECKPOINT_DIR": str(folder / "checkpoints"),
                    },
                )
            )
            for rank in range(ranks)
        ]


def finished(folder: Path, ranks: int, **how: object) -> list[list[str]]:
    """What each rank noted when all were done."""
    with team(folder, ranks, **how) as trials:  # type: ignore[arg-type]  # passed on
        for trial in trials:
            assert trial.finish() == 0, trial.told()
    return [(folder / f"losses {rank}").read_text().splitlines() for rank in range(ranks)]


def saved(folder: Path, ranks: int, *, at: int, kind: str = "replicated") -> Path:
    """The checkpoints of a training that was killed after its first."""
    with team(folder, ranks, at=at, kind=kind) as trials:
        root = folder / "checkpoints"
        trials[0].wait_for(lambda: bool(generations.complete(root)))
        assert generations.complete(root) == [Generation(0, at)]
        assert generations.world_size(root, Generation(0, at)) == ranks
        for trial in trials:
            able = trial.progress.capabilities
            assert able & Capability.RESTORABLE, trial.told()
            assert not able & Capability.REBINDABLE, "they would have to meet anew"
    return root


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_replicas_go_on_to_the_bit(tmp_path: Path, ranks: int) -> None:
    """Each with the dropout of its own; only the first has written the model."""
    at = 4
    whole = finished(tmp_path / "whole", ranks, at=at)
    root = tmp_path / "whole/checkpoints"
    (generation,) = generations.complete(root)
    assert generation == Generation(0, at)
    indexes = [
        generations.read_index(root, generation, Shard(rank, ranks)) for rank in range(ranks)
    ]
    assert [("parts" in index["state"]) for index in indexes] == [True] + [False] * (ranks - 1)
    again = finished(tmp_path / "again", ranks, restore=root)
    for rank in range(ranks):
        assert again[rank][0] == f"begins {at} True"
        assert again[rank][1:] == whole[rank][1 + at :]
    assert len({lines[-1] for lines in again}) == 1


@pytest.mark.parametrize(("before", "after"), [(4, 2), (2, 1), (1, 2)])
def test_a_data_parallel_training_may_grow_and_shrink(
    tmp_path: Path, before: int, after: int
) -> None:
    """The samples of the epoch that were used stay used; all ranks have the same parameters."""
    at = 2
    root = saved(tmp_path / "stopped", before, at=at)
    again = finished(tmp_path / "again", after, restore=root)
    batches_left = EPOCHS * 96 // 8 // after - at * before // after
    for lines in again:
        assert lines[0] == f"begins {at} True"
        assert len(lines) == 1 + batches_left + 1
    assert len({lines[-1] for lines in again}) == 1


def test_shards_are_saved_and_restored_by_each_rank(tmp_path: Path) -> None:
    """FSDP2: parameters and the optimizer's state, to the bit."""
    whole = finished(tmp_path / "whole", 2, kind="sharded", at=5)
    root = tmp_path / "whole/checkpoints"
    index = generations.read_index(root, Generation(0, 5), Shard(1, 2))
    assert index["layout"] == "sharded"
    again = finished(tmp_path / "again", 2, kind="sharded", restore=root)
    for rank in range(2):
        assert again[rank][0] == "begins 5 True"
        assert again[rank][1:] == whole[rank][6:]
    assert whole[0][-1] != whole[1][-1]


def test_a_generation_that_one_rank_finds_damaged_is_passed_over_by_all(tmp_path: Path) -> None:
    """They agree before any of them is changed."""
    root = saved(tmp_path / "stopped", 2, at=5, kind="sharded")
    data = root / str(Generation(0, 5)) / Shard(1, 2).data
    data.write_bytes(data.read_bytes()[:-1])
    again = finished(tmp_path / "again", 2, kind="sharded", restore=root)
    assert [lines[0] for lines in again] == ["begins 0 False"] * 2
