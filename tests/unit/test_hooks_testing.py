# SPDX-License-Identifier: Apache-2.0
"""The public testing module: a script is tried without a cluster, and told what is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.torch_hooks.testing import Trial, TrialError, check_resume
from slipstream.wire.control_block import Directive, Phase, Request

pytestmark = pytest.mark.unit

SCRIPT = str(Path(__file__).parents[1] / "checkpoint_training.py")
FORGETFUL = """
import torch
from slipstream.torch_hooks.run import session
torch.set_num_threads(1)
learned = torch.nn.Linear(4, 1)
memory = 1.0  # a variable of the loop that nobody saves
optimizer = torch.optim.SGD(learned.parameters(), lr=0.01)
with session(model=learned, optimizer=optimizer) as run:
    for epoch, batches in run.epochs(range(100_000), 1):
        for batch in batches:
            memory *= 0.9
            optimizer.zero_grad()
            (learned(torch.ones(4)) - memory).square().mean().backward()
            optimizer.step()
"""
WAITING = """
import time, torch
from slipstream.torch_hooks.attach import boundary
while True:
    boundary()
    time.sleep(0.001)
"""


def command(*words: str) -> subprocess.CompletedProcess[str]:
    """The module as a command."""
    return subprocess.run(
        [sys.executable, "-m", "slipstream.torch_hooks.testing", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LOSSES": "/dev/null"},
    )


def test_a_script_that_goes_on_to_the_bit_passes() -> None:
    """The command says so and ends with 0."""
    done = command("--at=4", "--until=9", "--", sys.executable, SCRIPT, "--epochs=9999")
    assert done.stdout.startswith("goes on to the bit: the same state after mini-batch "), done
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_that_forgets_something_is_told_what_differs(tmp_path: Path) -> None:
    """A variable of its own that the loop needs and nobody saves."""
    argv = [sys.executable, "-c", FORGETFUL]
    verdict = check_resume(argv, tmp_path, at=4, until=9)
    assert verdict.restorable
    assert verdict.minibatches >= 9
    assert "parts.model.module.weight" in verdict.differences
    assert not [name for name in verdict.differences if name.startswith("position")]


def test_a_script_that_is_too_short_is_told_so() -> None:
    """With what it printed."""
    done = command("--at=50", "--until=60", "--", sys.executable, SCRIPT, "--epochs=1")
    assert done.returncode == 2
    assert "error: waited in vain: it has ended" in done.stderr


def test_a_trial_sees_and_asks(tmp_path: Path) -> None:
    """Progress up, directives down, as the coordinator has them."""
    with Trial([sys.executable, "-c", WAITING], tmp_path) as trial:
        trial.wait_for(lambda: trial.progress.minibatches > 3)
        assert trial.progress.phase == Phase.TRAINING
        assert trial.progress.pid == trial.pid
        trial.ask(Request.CHECKPOINT, at=10)
        trial.wait_for(lambda: trial.progress.problems == 1)
        assert trial.progress.directive_epoch == 2
    assert "not served: request 3" in trial.told()


def test_a_directive_from_the_beginning_is_armed(tmp_path: Path) -> None:
    """Nothing happens before its mini-batch."""
    ask = Directive(request=Request.CHECKPOINT, armed_for_minibatch=50)
    with Trial([sys.executable, "-c", WAITING], tmp_path, ask=ask) as trial:
        trial.wait_for(lambda: trial.progress.directive_epoch == 1)
        before = trial.progress
        assert before.problems == 0 or before.minibatches >= 50
        trial.wait_for(lambda: trial.progress.problems == 1)
        assert trial.progress.minibatches >= 50


def test_waiting_ends_with_a_training_that_ends(tmp_path: Path) -> None:
    """And says what it printed."""
    with (
        Trial([sys.executable, "-c", "print('all I say')"], tmp_path) as trial,
        pytest.raises(TrialError, match="all I say"),
    ):
        trial.wait_for(lambda: False)
    with (
        Trial([sys.executable, "-c", WAITING], tmp_path / "other") as trial,
        pytest.raises(TrialError, match="waited in vain: Progress"),
    ):
        trial.wait_for(lambda: False, patience_s=0.1)


def test_a_trial_has_to_be_started(tmp_path: Path) -> None:
    """It is a context."""
    with pytest.raises(TrialError, match="use it in a `with` statement"):
        Trial(["true"], tmp_path).finish()
