# SPDX-License-Identifier: Apache-2.0
"""The example trainer on the CPU: it learns, and an interruption changes not one bit of it."""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoint
import options
import progress
import train
from devices import Cpu
from models import KINDS
from team import Alone
from trainer import Trainer

pytestmark = pytest.mark.unit

PROGRAM = Path(__file__).parents[2] / "examples" / "train.py"


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums over several threads may differ in their last bit, and other tests may want more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def trainer_for(arguments: Sequence[str]) -> Trainer:
    """A trainer on the CPU, as the program builds it."""
    return Trainer(options.parse(arguments, None), Cpu(), Alone())


def losses_of(trainer: Trainer) -> list[float]:
    """Train to the end."""
    return [trainer.loss for _ in trainer.minibatches()]


@pytest.mark.parametrize("model", KINDS)
def test_every_model_learns(model: str) -> None:
    """After sixty mini-batches the loss is well below that of the beginning."""
    losses = losses_of(trainer_for(["--model", model, "--minibatches", "60"]))
    first, last = sum(losses[:5]) / 5, sum(losses[-5:]) / 5
    assert last < 0.6 * first


@pytest.mark.parametrize("model", KINDS)
def test_width_and_depth_size_a_model(model: str) -> None:
    """Twice the width or one more layer are more parameters."""
    kind = KINDS[model]

    def parameters(width: int, depth: int) -> int:
        return sum(parameter.numel() for parameter in kind.build(width, depth).parameters())

    usual = parameters(kind.width, kind.depth)
    assert parameters(2 * kind.width, kind.depth) > usual
    assert parameters(kind.width, kind.depth + 1) > usual


@pytest.mark.parametrize("model", KINDS)
def test_a_resumed_training_is_the_same_to_the_bit(model: str, tmp_path: Path) -> None:
    """Losses, parameters, buffers, optimizer and random state end as without the interruption."""
    arguments = ["--model", model, "--batch-size", "256"]  # eight mini-batches an epoch
    whole = trainer_for([*arguments, "--minibatches", "20"])
    losses = losses_of(whole)
    random_state = whole.device.random_state()

    saved = ["--save", str(tmp_path / "half.pt")]
    first = trainer_for([*arguments, *saved, "--minibatches", "11"])
    losses_before = losses_of(first)
    first.save()
    torch.manual_seed(12345)  # another process would have drawn other numbers meanwhile
    second = trainer_for([*arguments, *saved, "--minibatches", "20"])
    second.resume()

    assert losses_before + losses_of(second) == losses
    assert_same(second.model.state_dict(), whole.model.state_dict())
    assert_same(second.optimizer.state_dict(), whole.optimizer.state_dict())
    assert torch.equal(second.device.random_state(), random_state)


def test_dropout_goes_on_where_it_was(tmp_path: Path) -> None:
    """The random state saved is the one in use: drawing after a resume gives the same numbers."""
    arguments = ["--model", "lstm", "--minibatches", "2", "--save", str(tmp_path / "a.pt")]
    trainer = trainer_for(arguments)
    losses_of(trainer)
    trainer.save()
    expected = torch.rand(8)
    trainer_for(arguments).resume()
    assert torch.equal(torch.rand(8), expected)


def test_a_save_that_fails_leaves_the_last_one(tmp_path: Path) -> None:
    """Writing stops in the middle: the path still holds the checkpoint from before, whole."""
    path = tmp_path / "a.pt"
    trainer = trainer_for(["--minibatches", "2", "--save", str(path)])
    losses_of(trainer)
    trainer.save()
    before = path.read_bytes()
    good = checkpoint.read(path, training={})
    with pytest.raises((AttributeError, pickle.PicklingError)):
        checkpoint.write(path, replace(good, model={"layer": lambda: "cannot be saved"}))
    assert path.read_bytes() == before
    trainer.save()
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.pt"]


def test_a_finished_training_has_nothing_left_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Starting it once more trains nothing and reports the loss it ended with."""
    arguments = ["--minibatches", "3", "--save", str(tmp_path / "a.pt"), "--resume"]
    arguments += ["--device", "cpu"]
    assert [train.main(arguments), train.main(arguments)] == [0, 0]
    totals = [t for t in map(progress.parse_total, capsys.readouterr().out.splitlines()) if t]
    assert [total.trained for total in totals] == [3, 0]
    assert totals[0].loss == totals[1].loss


def test_a_checkpoint_of_another_training_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Going on with another model or seed would be neither training; what differs is named."""
    common = ["--device", "cpu", "--minibatches", "2", "--save", str(tmp_path / "a.pt")]
    assert train.main(common) == 0
    assert train.main([*common, "--resume", "--width", "16", "--seed", "7"]) == 1
    error = capsys.readouterr().err
    assert "a.pt is of another training: width 64 there, 16 here; seed 0 there, 7 here" in error


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 nor this"])
def test_a_file_that_is_no_checkpoint_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line says which file, and it is left as it is."""
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    assert train.main(["--device", "cpu", "--save", str(path), "--resume"]) == 1
    assert f"error: {path} is not a checkpoint of these examples" in capsys.readouterr().err
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["--model", "gpt"], "'mlp', 'cnn', 'transformer', 'lstm'"),
        (["--device", "tpu"], "'auto', 'cpu', 'cuda', 'occupancy'"),
        (["--modle", "mlp"], "--model {mlp,cnn,transformer,lstm}"),
        (["--minibatches", "0"], "'0' is not a whole number from 1 on"),
        (["--batch-size", "4096"], "there are only 2048 samples"),
        (["--kernel-ms", "-1"], "'-1' is not a number from 0 on"),
        (["--host-ms", "inf"], "'inf' is not a number from 0 on"),
        (["--model", "transformer", "--width", "33"], "a transformer needs a multiple of 2"),
        (["--resume"], "--resume needs --save PATH"),
    ],
)
def test_a_wrong_flag_is_refused_with_the_right_answers(
    arguments: list[str], answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program ends with 2 before it trains, and says what it would have taken."""
    with pytest.raises(SystemExit) as ended:
        train.main(arguments)
    assert ended.value.code == 2
    assert answer in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")
def test_a_gpu_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """Asked for CUDA on a machine without, the trainer does not quietly train on the CPU."""
    assert train.main(["--device", "cuda"]) == 1
    assert "torch sees no CUDA GPU; --device can be auto, cpu or occ" in capsys.readouterr().err


def test_sigterm_ends_a_training_that_goes_on_later(tmp_path: Path) -> None:
    """As Slurm does it: terminated, saved, exit code 0; the same command then trains the rest."""
    save = tmp_path / "a.pt"
    arguments = ["--device", "cpu", "--minibatches", "40", "--report-every", "1"]
    resumable = [*arguments, "--save", str(save), "--resume"]
    argv = [sys.executable, str(PROGRAM), *resumable, "--host-ms", "50"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        next(line for line in process.stdout if progress.parse(line))
        process.send_signal(signal.SIGTERM)
        *_, last = process.stdout
    assert process.returncode == 0
    stopped = progress.parse_total(last)
    assert stopped is not None
    assert 1 <= stopped.minibatch < 40
    assert last.startswith("stopped")

    rest = trainer_for(resumable)
    rest.resume()
    assert rest.minibatches_done == stopped.minibatch
    assert losses_of(rest)[-1] == losses_of(trainer_for(arguments))[-1]


@pytest.mark.parametrize(
    ("folder", "command"),
    [("examples", "./train.py --model cnn"), (".", "examples/train.py --model cnn")],
)
def test_the_batch_script_finds_the_trainer(folder: str, command: str) -> None:
    """Submitted from the examples or from the folder above; the interpreter here is `echo`."""
    done = run_batch_script(PROGRAM.parents[1] / folder)
    assert (done.returncode, done.stdout.strip()) == (0, command)


def test_the_batch_script_says_where_to_submit_it_from(tmp_path: Path) -> None:
    """Elsewhere the job ends with a sentence in its log."""
    done = run_batch_script(tmp_path)
    assert done.returncode == 1
    assert f"no train.py in {tmp_path}: submit from the folder of the examples" in done.stderr


def run_batch_script(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run train.sh as a job that was submitted from a folder."""
    argv = ["bash", str(PROGRAM.with_name("train.sh")), "--model", "cnn"]
    environ = os.environ | {"PYTHON": "echo"}
    return subprocess.run(
        argv, check=False, capture_output=True, text=True, cwd=folder, env=environ
    )


def assert_same(one: Any, other: Any) -> None:  # noqa: ANN401 (a state dict holds anything)
    """Equal in structure and in every bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, its in zip(one, other, strict=True):
            assert_same(mine, its)
    else:
        assert one == other
