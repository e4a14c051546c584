# SPDX-License-Identifier: Apache-2.0
"""A training's state in one file, from which it goes on to the bit.

The model with its buffers, the optimizer, the random state of every rank and the position: leave
out any one of them, and the losses after a resume differ.
"""

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class CheckpointError(Exception):
    """The file is no checkpoint of this training; says why."""


@dataclass(frozen=True)
class Checkpoint:
    """What is saved between two mini-batches."""

    training: Mapping[str, str | int | float]  # what makes it this training and no other
    minibatches_done: int
    loss: float
    model: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    random_states: list[Tensor]  # one of each rank


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint so that its path holds the old one or the new one, never a half."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as file:
        torch.save({field.name: getattr(checkpoint, field.name) for field in _FIELDS}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read(path: Path, *, training: Mapping[str, str | int | float]) -> Checkpoint:
    """Read the checkpoint of one training, and refuse that of another."""
    try:
        # All to the CPU: random states must be there, and the rest is copied to its device.
        saved = torch.load(path, map_location="cpu", weights_only=True)
        checkpoint = Checkpoint(**saved)
    except (EOFError, RuntimeError, TypeError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} is not a checkpoint of these examples: {error}") from error
    differences = [
        f"{name} {checkpoint.training.get(name)!r} there, {here!r} here"
        for name, here in training.items()
        if checkpoint.training.get(name) != here
    ]
    if differences:
        raise CheckpointError(f"{path} is of another training: {'; '.join(differences)}")
    return checkpoint


_FIELDS = fields(Checkpoint)
