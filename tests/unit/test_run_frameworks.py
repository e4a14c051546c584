# SPDX-License-Identifier: Apache-2.0
"""Trainers of others are asked for their own checkpoints and given them back, scripts unchanged."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from slipstream.torch_hooks.checkpoint.generations import Generation
from slipstream.torch_hooks.testing import Trial
from slipstream.wire.control_block import Capability, Directive, Request

pytestmark = pytest.mark.unit

EXAMPLES = Path(__file__).parents[2] / "examples"
MINIBATCHES = 14
AT = 5


def trial(example: str, folder: Path, *, at: int = 0, restore: Path | None = None) -> Trial:
    """An example of ours as it is, under a page of its own."""
    argv = [sys.executable, str(EXAMPLES / example), f"--minibatches={MINIBATCHES}"]
    ask = Directive(request=Request.CHECKPOINT if at else Request.NONE, armed_for_minibatch=at)
    return Trial([*argv, "--report-every=1", "--host-ms=20"], folder, ask=ask, restore=restore)


def losses(trial: Trial) -> dict[int, str]:
    """What it printed, by mini-batch."""
    found = re.findall(rf"mini-batch (\d+)/{MINIBATCHES}  loss (\S+)", trial.told())
    return {int(minibatch): loss for minibatch, loss in found}


@pytest.mark.parametrize(
    ("example", "package", "exact"),
    [
        ("huggingface.py", "transformers", True),
        ("lightning_mlp.py", "lightning", False),  # it does not remember a loader's position
    ],
)
def test_a_trainer_goes_on_from_its_own_checkpoint(
    tmp_path: Path, example: str, package: str, *, exact: bool
) -> None:
    """Asked at a boundary, killed, started again elsewhere: the mini-batches after that one."""
    pytest.importorskip(package)
    with trial(example, tmp_path / "first", at=AT) as first:
        assert first.wait_for_generations(1) == [Generation(0, AT)]
        assert first.progress.capabilities & Capability.RESTORABLE
        if exact:
            assert first.finish() == 0
    with trial(example, tmp_path / "second", restore=first.checkpoints) as second:
        assert second.finish() == 0, second.told()
    after = range(AT + 1, MINIBATCHES + 1)
    assert list(losses(second)) == list(after)
    if exact:
        assert losses(second) == {at: losses(first)[at] for at in after}


def test_a_checkpoint_that_was_damaged_is_not_given_back(tmp_path: Path) -> None:
    """The trainer would fail with it; so it begins at the beginning, and the log says why."""
    pytest.importorskip("lightning")
    with trial("lightning_mlp.py", tmp_path / "first", at=AT) as first:
        (generation,) = first.wait_for_generations(1)
    file = first.checkpoints / str(generation) / "own/lightning.ckpt"
    file.write_bytes(file.read_bytes()[:-9])
    with trial("lightning_mlp.py", tmp_path / "second", restore=first.checkpoints) as second:
        assert second.finish() == 0
    assert list(losses(second)) == list(range(1, MINIBATCHES + 1))
    assert "lightning.ckpt is not what was written" in second.told()
