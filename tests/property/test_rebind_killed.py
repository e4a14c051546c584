# SPDX-License-Identifier: Apache-2.0
"""A re-bind that is killed at any moment: what was saved is gone on from, to the bit."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from slipstream.torch_hooks.checkpoint import generations
from slipstream.torch_hooks.testing import Trial
from slipstream.wire.control_block import Capability, Phase, Request

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.property, pytest.mark.timeout(300)]

SCRIPT = str(Path(__file__).parents[1] / "rebind_training.py")
ARGV = [sys.executable, SCRIPT, "--flush"]
LAST = 300


def losses(trial: Trial) -> list[tuple[int, str]]:
    """What it printed of each mini-batch, in its order; the last line may be torn."""
    return [
        (int(number), loss)
        for number, loss in re.findall(
            r"^(\d+) (\S+p\S+)\n", trial.output.read_text(), re.MULTILINE
        )
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The loss of each mini-batch when nothing happens."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with Trial([*ARGV, "--nap-ms=0"], folder, environment={"NOTES": "/dev/null"}) as trial:
        assert trial.finish() == 0, trial.told()
    found = dict(losses(trial))
    assert list(found) == list(range(1, LAST + 1))
    return found


def after(seconds: float) -> Callable[[Trial], None]:
    """So long after the asking."""

    def wait(_: Trial) -> None:
        time.sleep(seconds)

    return wait


def once(phase: Phase) -> Callable[[Trial], None]:
    """When the page says so; the phases before and after an exec last long enough to be seen."""

    def wait(trial: Trial) -> None:
        trial.wait_for(lambda: trial.progress.phase == phase)
        assert trial.progress.rebinds == (phase != Phase.REBINDING)

    return wait


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(after(0.0), id="as soon as it is asked"),
        pytest.param(after(0.006), id="about when it saves"),
        pytest.param(after(0.02), id="about when it has saved"),
        pytest.param(once(Phase.REBINDING), id="saved, around the exec"),
        pytest.param(once(Phase.IMPORTING), id="after the exec"),
        pytest.param(once(Phase.LOADING), id="before or while it restores"),
    ],
)
def test_no_mini_batch_is_lost_or_done_otherwise(
    tmp_path: Path, moment: Callable[[Trial], None], undisturbed: dict[int, str]
) -> None:
    """Killed then, the training goes on elsewhere from the newest whole generation there is."""
    environment = {"NOTES": str(tmp_path / "notes")}
    with Trial(ARGV, tmp_path / "first", environment=environment) as first:
        first.wait_for(lambda: bool(first.progress.capabilities & Capability.REBINDABLE))
        first.ask(Request.CHECKPOINT)
        (early,) = first.wait_for_generations(1)
        first.ask(Request.REBIND, gpus=["GPU-b"])
        moment(first)
        first.kill()
    newest = generations.complete(first.checkpoints)[-1]
    assert newest >= early
    with Trial(
        ARGV, tmp_path / "second", restore=first.checkpoints, environment=environment
    ) as second:
        assert second.finish() == 0, second.told()
    begun, gone_on = losses(first), losses(second)
    assert f"generation {newest}" in second.told()
    assert [number for number, _ in gone_on] == list(range(newest.minibatches + 1, LAST + 1))
    numbers = [number for number, _ in begun]
    assert numbers == list(range(1, len(numbers) + 1)), "one was done twice, or none"
    assert len(numbers) >= newest.minibatches
    for number, loss in (*begun, *gone_on):
        assert loss == undisturbed[number]
