# SPDX-License-Identifier: Apache-2.0
"""Trainers of others are asked for their own checkpoints and given them back, scripts unchanged."""

from __future__ import annotations

import os
import re
import subprocess
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
    ("example", "package"), [("huggingface.py", "transformers"), ("lightning_mlp.py", "lightning")]
)
def test_a_trainer_goes_on_from_its_own_checkpoint(
    tmp_path: Path, example: str, package: str
) -> None:
    """Asked at a boundary, killed, started again elsewhere: the mini-batches after that one."""
    pytest.importorskip(package)
    with trial(example, tmp_path / "first", at=AT) as first:
        assert first.wait_for_generations(1) == [Generation(0, AT)]
        assert first.progress.capabilities & Capability.RESTORABLE
        assert first.finish() == 0
    with trial(example, tmp_path / "second", restore=first.checkpoints) as second:
        assert second.finish() == 0, second.told()
    after = range(AT + 1, MINIBATCHES + 1)
    assert losses(second) == {at: losses(first)[at] for at in after}


def gone_on(script: str, folder: Path, at: int, *words: str) -> tuple[list[str], list[str]]:
    """What a program notes alone without the hooks, and what after a checkpoint at a boundary."""
    argv = [sys.executable, str(Path(__file__).parents[1] / script), *words]
    noted = {name: folder / f"{name}.losses" for name in ("alone", "first", "second")}
    subprocess.run(
        argv,
        env={**os.environ, "SLIPSTREAM_HOOKS": "0", "LOSSES": str(noted["alone"])},
        check=True,
        capture_output=True,
    )
    ask = Directive(request=Request.CHECKPOINT, armed_for_minibatch=at)
    variables = {"LOSSES": str(noted["first"])}
    with Trial(argv, folder / "first", ask=ask, environment=variables) as first:
        first.wait_for_generations(1)
    variables = {"LOSSES": str(noted["second"])}
    with Trial(argv, folder / "second", restore=first.checkpoints, environment=variables) as second:
        assert second.finish() == 0, second.told()
    alone, rest = (noted[name].read_text().splitlines() for name in ("alone", "second"))
    return alone, rest


@pytest.mark.parametrize(
    ("words", "at"),
    [(("0",), 11), (("0",), 15), (("0",), 16), (("2",), 11), (("2", "persistent"), 19)],
)
def test_lightning_goes_on_at_its_place_in_an_epoch(
    tmp_path: Path, words: tuple[str, ...], at: int
) -> None:
    """Shuffled and changed at random, with a validation that a scheduler listens to, to the bit."""
    pytest.importorskip("lightning")
    alone, rest = gone_on("lightning_training.py", tmp_path, at, *words)
    assert len(rest) == len(alone) - at
    assert rest == alone[at:]


@pytest.mark.parametrize("form", ["own", "parts"])
@pytest.mark.parametrize(("workers", "accumulated"), [(0, 1), (2, 2)])
def test_a_loop_with_accelerate_goes_on_at_its_place(
    tmp_path: Path, form: str, workers: int, accumulated: int
) -> None:
    """By its `save_state` and `load_state`, and by ours of what `prepare` returned, to the bit."""
    pytest.importorskip("accelerate")
    words = (form, str(workers), str(accumulated))
    alone, rest = gone_on("accelerate_training.py", tmp_path, 5, *words)
    assert len(rest) == len(alone) - 5 * accumulated
    assert rest == alone[5 * accumulated :]


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
