# SPDX-License-Identifier: Apache-2.0
"""The command line of the examples: read once, checked, and turned into one frozen `Settings`."""

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import data
from devices import DEVICES, Work
from models import KINDS


@dataclass(frozen=True)
class Settings:
    """Everything a run was told."""

    model: str
    width: int
    depth: int
    minibatches: int
    batch_size: int
    learning_rate: float
    seed: int
    report_every: int
    host_ms: float
    loading_s: float
    device: str
    work: Work
    save: Path | None
    resume: bool


def parse(
    argv: Sequence[str] | None, description: str | None, *, only_model: str | None = None
) -> Settings:
    """Read the command line; a wrong one ends the program (2) with the right answers.

    Args:
        argv: the arguments, or None for the program's own.
        description: what `--help` says first.
        only_model: the model of a program that has just one, and that leaves saving to others.
    """
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--device", choices=DEVICES, default="auto", help="default: %(default)s")
    if only_model is None:
        models = list(KINDS)
        parser.add_argument("--model", choices=models, default="mlp", help="default: %(default)s")
        _add_checkpoint(parser)
    else:
        parser.set_defaults(model=only_model, save=None, resume=False)
    _add_numbers(parser.add_argument_group("training"), _TRAINING)
    _add_numbers(parser.add_argument_group("occupancy GPU", _OCCUPANCY_MEANS), _OCCUPANCY)
    return _settings(parser, parser.parse_args(argv))


def _add_checkpoint(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("checkpoint").add_argument
    add("--save", type=Path, metavar="PATH", help="save at the end and at SIGTERM")
    add("--resume", action="store_true", help="go on from the file of --save, if there is one")


class _Number(NamedTuple):
    flag: str
    read: Callable[[str], float]
    default: float | None
    unit: str
    meaning: str


def _add_numbers(group: "argparse._ArgumentGroup", numbers: Sequence[_Number]) -> None:
    for flag, read, default, unit, meaning in numbers:
        shown = "the model's own" if default is None else "%(default)s"
        group.add_argument(
            flag, type=read, default=default, metavar=unit, help=f"{meaning} (default: {shown})"
        )


def _settings(parser: argparse.ArgumentParser, told: argparse.Namespace) -> Settings:
    kind = KINDS[told.model]
    width = told.width or kind.width
    if width % kind.width_multiple:
        parser.error(f"--width {width}: a {told.model} needs a multiple of {kind.width_multiple}")
    if told.batch_size > data.SAMPLES:
        parser.error(f"--batch-size {told.batch_size}: there are only {data.SAMPLES} samples")
    if told.resume and told.save is None:
        parser.error("--resume needs --save PATH: the file to go on from")
    return Settings(
        model=told.model,
        width=width,
        depth=told.depth or kind.depth,
        minibatches=told.minibatches,
        batch_size=told.batch_size,
        learning_rate=told.learning_rate,
        seed=told.seed,
        report_every=told.report_every,
        host_ms=told.host_ms,
        loading_s=told.loading_s,
        device=told.device,
        work=Work(told.kernel_ms, told.kernels_per_minibatch, told.memory_mib),
        save=told.save,
        resume=told.resume,
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return value


_TRAINING: Final = (
    _Number("--minibatches", _count, 200, "N", "how long to train"),
    _Number("--batch-size", _count, 32, "N", "samples in a mini-batch"),
    _Number("--width", _count, None, "N", "units or channels of a layer"),
    _Number("--depth", _count, None, "N", "layers"),
    _Number("--learning-rate", _amount, 0.003, "RATE", "Adam's"),
    _Number("--seed", int, 0, "N", "of weights, data and dropout"),
    _Number("--report-every", _count, 20, "N", "mini-batches from one line to the next"),
    _Number("--host-ms", _amount, 0.0, "MS", "input pipeline of a mini-batch, device idle"),
    _Number("--loading-s", _amount, 0.0, "S", "loading before the device is opened"),
)
_OCCUPANCY_MEANS: Final = "what the training asks of a simulated GPU; cpu and cuda need none of it"
_OCCUPANCY: Final = (
    _Number("--kernel-ms", _amount, 5.0, "MS", "time of one kernel"),
    _Number("--kernels-per-minibatch", _count, 4, "N", "kernels a mini-batch queues"),
    _Number("--memory-mib", _amount, 1024.0, "MIB", "memory held from start to end"),
)
