# SPDX-License-Identifier: Apache-2.0
"""The two lines: stopped anywhere, gone on with elsewhere, to the bit; and never in the way."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from run_rig import alone, checkpoint_at, losses, trial
from slipstream.torch_hooks.checkpoint import generations
from slipstream.torch_hooks.checkpoint.generations import Generation, Shard
from slipstream.wire.control_block import Capability, Phase, Request

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

MINIBATCHES = 20  # four epochs of five
WITHOUT_SESSION = """
import torch
learned = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([learned], lr=0.1)
for _ in range(200):
    (learned ** 2).sum().backward()
    optimizer.step()
print("trained")
"""
WITH_SESSION = """
import torch
from slipstream.torch_hooks.run import session
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with session({named}) as run:
    for _ in range(20):
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        run.boundary()
"""
OWN = """
import os, torch
from slipstream.torch_hooks.run import session
learned = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([learned], lr=0.01)
done = 0
def save(folder):
    torch.save({"done": done, "learned": learned.detach()}, f"{folder}/mine.pt")
def load(folder):
    global done
    state = torch.load(f"{folder}/mine.pt")
    done = state["done"]
    learned.data.copy_(state["learned"])
with session(save=save, load=load) as run:
    while done < 40:
        optimizer.zero_grad()
        (learned ** 2).sum().backward()
        optimizer.step()
        done += 1
        run.boundary()
        with open(os.environ["LOSSES"], "a") as file:
            file.write(f"{done} {learned.sum().item().hex()}\\n")
"""


@pytest.mark.parametrize(
    ("words", "at"),
    [
        (("--optimizer=adam", "--workers=0"), 7),
        (("--optimizer=momentum", "--workers=0"), 10),
        (("--optimizer=adam", "--workers=2"), 8),
        (("--optimizer=momentum", "--workers=2", "--find"), 3),
        (("--optimizer=adam", "--workers=2", "--persistent"), 12),
    ],
)
def test_a_killed_training_goes_on_in_a_fresh_process_to_the_bit(
    tmp_path: Path, words: tuple[str, ...], at: int
) -> None:
    """Losses and parameters are those of a training that nobody disturbed."""
    undisturbed = alone(tmp_path / "alone", *words)
    with trial(tmp_path / "stopped", *words, ask=checkpoint_at(at)) as stopped:
        assert stopped.wait_for_generations(1) == [Generation(0, at)]
        stopped.kill()
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(stopped.checkpoints, elsewhere)
    shutil.rmtree(tmp_path / "stopped/checkpoints")
    with trial(tmp_path / "resumed", *words, restore=elsewhere) as resumed:
        assert resumed.finish() == 0, resumed.told()
    assert losses(tmp_path / "resumed") == undisturbed[at:]
    assert len(undisturbed) == MINIBATCHES + 1
    assert losses(tmp_path / "stopped") == undisturbed[: len(losses(tmp_path / "stopped"))]


def test_a_training_says_when_it_can_be_restored(tmp_path: Path) -> None:
    """Not before there is memory for a checkpoint; no longer when the loop is over."""
    with trial(tmp_path, "--epochs=400") as training:
        training.wait_for(lambda: bool(training.progress.capabilities & Capability.RESTORABLE))
        assert training.progress.phase == Phase.TRAINING
    with trial(tmp_path / "short", "--epochs=4") as training:
        assert training.finish() == 0
        assert not training.progress.capabilities & Capability.RESTORABLE


def test_a_script_without_a_session_is_not_restorable(tmp_path: Path) -> None:
    """It is asked all the same: noted, and it trains on."""
    program = ("-c", WITHOUT_SESSION)
    with trial(tmp_path, ask=checkpoint_at(5), program=program) as training:
        assert training.finish() == 0
        assert not training.progress.capabilities & Capability.RESTORABLE
        assert training.progress.minibatches == 200
    assert "not served: request 3: this training cannot do it" in training.told()
    assert not training.checkpoints.exists()


@pytest.mark.parametrize(
    ("named", "complaint"),
    [
        ("", "nothing is named in session"),
        ("optimizer", "2 of the 2 parameters that optimizer learns are of no module"),
        ("torch.nn.Linear(9, 9)", "SGD steps, and is no part of session"),
        ("save=print", "session(…) has save without the other"),
    ],
)
def test_a_script_that_names_too_little_is_not_restorable(
    tmp_path: Path, named: str, complaint: str
) -> None:
    """It would begin anew elsewhere, so it is never moved; it says what is missing."""
    program = ("-c", WITH_SESSION.format(named=named))
    with trial(tmp_path, ask=checkpoint_at(5), program=program) as training:
        assert training.finish() == 0
        assert not training.progress.capabilities & Capability.RESTORABLE
        assert training.progress.minibatches == 20
    assert complaint in training.told()
    assert not training.checkpoints.exists()


def test_parts_need_no_names(tmp_path: Path) -> None:
    """The two lines as short as they can be."""
    program = ("-c", WITH_SESSION.format(named="model, optimizer"))
    with trial(tmp_path, ask=checkpoint_at(5), program=program) as training:
        assert training.finish() == 0
    (generation,) = generations.complete(training.checkpoints)
    index = generations.read_index(training.checkpoints, generation, Shard())
    assert set(index["state"]["parts"]) == {"model", "optimizer"}


def test_without_slipstream_it_is_a_plain_loop(tmp_path: Path) -> None:
    """No page, no folder, no files; switched off, it does not look at folders either."""
    before = sorted(path.name for path in tmp_path.iterdir())
    assert len(alone(tmp_path / "alone")) == MINIBATCHES + 1
    assert sorted(path.name for path in (tmp_path / "alone").iterdir()) == ["losses"]
    assert before == []


@pytest.mark.parametrize(
    ("words", "variables", "complaint"),
    [
        ((), {"SLIPSTREAM_CHECKPOINT_DIR": "/nowhere/at/all"}, "No such file or directory"),
        (("--odd",), {}, "odd is a object, which has no state_dict and load_state_dict"),
        ((), {"SLIPSTREAM_RESTORE": "/nowhere"}, "nothing to go on from in /nowhere"),
    ],
)
def test_what_cannot_be_done_is_noted_and_training_goes_on(
    tmp_path: Path, words: tuple[str, ...], variables: dict[str, str], complaint: str
) -> None:
    """To its end, with the losses it would have had."""
    undisturbed = alone(tmp_path / "alone")
    folder = tmp_path / "trial"
    with trial(folder, *words, ask=checkpoint_at(3), variables=variables) as training:
        assert training.finish() == 0
        assert training.progress.problems >= 1
    assert complaint in training.told()
    assert losses(folder) == undisturbed


def test_of_two_generations_the_whole_one_is_taken(tmp_path: Path) -> None:
    """The newest was damaged on its way; nothing whole is left: from the beginning."""
    undisturbed = alone(tmp_path / "alone", "--epochs=100")
    with trial(tmp_path / "first", "--epochs=100", ask=checkpoint_at(4)) as first:
        first.wait_for_generations(1)
        first.ask(Request.CHECKPOINT, at=9)
        older, newer = first.wait_for_generations(2)
    for generation, start in ((newer, older.minibatches), (older, 0)):
        data = first.checkpoints / str(generation) / Shard().data
        data.write_bytes(data.read_bytes()[:-1])
        folder = tmp_path / f"from {start}"
        with trial(folder, "--epochs=100", restore=first.checkpoints) as again:
            again.wait_for(lambda folder=folder: (folder / "losses").exists())  # type: ignore[misc]
            assert again.finish() == 0
        assert losses(folder) == undisturbed[start:]
        assert f"generation {generation} is passed over" in again.told()


def test_tasks_that_train_apart_have_a_folder_each(tmp_path: Path) -> None:
    """The third task of a job that knows of no ranks, and goes on from its own."""
    task = {"SLURM_PROCID": "2"}
    with trial(tmp_path / "first", ask=checkpoint_at(6), variables=task) as first:
        first.wait_for(lambda: bool(generations.complete(first.checkpoints / "task-2")))
    with trial(tmp_path / "second", restore=first.checkpoints, variables=task) as second:
        assert second.finish() == 0
    assert losses(tmp_path / "second")[0].split()[0] == "7"


def test_another_model_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """It trains from the beginning, as if there were no checkpoint."""
    with trial(tmp_path / "first", ask=checkpoint_at(4)) as first:
        first.wait_for_generations(1)
    wider = alone(tmp_path / "alone", "--width=17")
    with trial(tmp_path / "second", "--width=17", restore=first.checkpoints) as second:
        assert second.finish() == 0
    assert "model is another one: 0.bias is float32[16] there, float32[17] here" in second.told()
    assert losses(tmp_path / "second") == wider


def test_killed_at_any_moment_there_is_something_to_go_on_from(tmp_path: Path) -> None:
    """One after the other, each killed while it saves again and again, each goes on from there."""
    known = dict(line.split() for line in alone(tmp_path / "alone", "--epochs=60")[:-1])
    root = tmp_path / "checkpoints"
    reached = Generation(-1, 0)
    for number in range(5):
        folder = tmp_path / str(number)
        variables = {"SLIPSTREAM_CHECKPOINT_DIR": str(root)}
        with trial(folder, "--epochs=9999", restore=root, variables=variables) as training:
            training.ask(Request.CHECKPOINT)
            training.wait_for(lambda at=reached: max(generations.complete(root), default=at) > at)  # type: ignore[misc]
            for asked in range(number * 3):
                training.ask(Request.CHECKPOINT)
                training.wait_for(lambda at=asked: training.progress.directive_epoch == at + 3)  # type: ignore[misc]
        reached = generations.complete(root)[-1]
        for line in losses(folder):
            minibatch, loss = line.split()
            assert known.setdefault(minibatch, loss) == loss
    assert reached.restart == 4


def test_a_program_with_its_own_checkpoints_is_asked_to_write_one(tmp_path: Path) -> None:
    """And given it back, in a folder that is ours to copy."""
    program = ("-c", OWN)
    with trial(tmp_path / "whole", program=program) as whole:
        assert whole.finish() == 0
    with trial(tmp_path / "first", program=program, ask=checkpoint_at(13)) as first:
        assert first.wait_for_generations(1) == [Generation(0, 13)]
    with trial(tmp_path / "second", program=program, restore=first.checkpoints) as second:
        assert second.finish() == 0
    assert losses(tmp_path / "second") == losses(tmp_path / "whole")[13:]


def test_a_programs_own_checkpoint_that_it_cannot_read_is_passed_over(tmp_path: Path) -> None:
    """What its function raises is noted; it begins at the beginning."""
    program = ("-c", OWN)
    with trial(tmp_path / "first", program=program, ask=checkpoint_at(13)) as first:
        (generation,) = first.wait_for_generations(1)
    (first.checkpoints / str(generation) / "own/mine.pt").write_bytes(b"rubbish")
    with trial(tmp_path / "second", program=program, restore=first.checkpoints) as second:
        assert second.finish() == 0
    assert len(losses(tmp_path / "second")) == 40
    assert f"generation {generation} is passed over" in second.told()
