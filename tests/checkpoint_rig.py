# SPDX-License-Identifier: Apache-2.0
"""Small trainings and their checkpoints, for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from slipstream.torch_hooks.checkpoint import parts
from slipstream.torch_hooks.checkpoint.encoding import Encoder
from slipstream.torch_hooks.checkpoint.generations import Generation, Shard
from slipstream.torch_hooks.checkpoint.restoring import REPLICATED
from slipstream.torch_hooks.checkpoint.writer import Snapshot, Writer

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND, THIRD, FOURTH = (Generation(0, number) for number in (10, 20, 30, 40))


class Training:
    """A model with buffers and a tied weight, and its optimizer with a state."""

    def __init__(self, *, seed: int = 1, width: int = 8, steps: int = 2) -> None:
        torch.manual_seed(seed)
        first, second = (torch.nn.Linear(width, width, bias=False) for _ in range(2))
        norm = torch.nn.BatchNorm1d(width)
        self.model = torch.nn.Sequential(first, norm, second)
        second.weight = first.weight
        self.weight, self.bias = first.weight, norm.bias
        self.model.register_buffer("mask", torch.rand(width), persistent=False)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        for _ in range(steps):
            self.learn()

    @property
    def parts(self) -> dict[str, torch.nn.Module | torch.optim.Optimizer]:
        """As they are named in a session."""
        return {"model": self.model, "optimizer": self.optimizer}

    @property
    def tied(self) -> torch.nn.Parameter:
        """The weight of the last layer."""
        return self.model.get_parameter("2.weight")

    def learn(self) -> float:
        """One mini-batch; returns its loss."""
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(torch.randn(4, self.weight.shape[0])).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        self.optimizer.step()
        return loss.item()

    def numbers(self) -> list[torch.Tensor]:
        """All that a checkpoint has to bring back, copied."""
        state = self.optimizer.state_dict()["state"]
        tensors = [*self.model.parameters(), *self.model.buffers()]
        tensors += [one for values in state.values() for one in values.values()]
        return [one.detach().clone() for one in tensors]

    def snapshot(self) -> Snapshot:
        """What a run would save."""
        encoder = Encoder()
        position = {"loop": 0, "epoch": 0, "batches": 0, "minibatches": 0}
        state = {
            "parts": parts.encode(self.parts, encoder),
            "position": encoder.encode(position, "position"),
            "random": encoder.encode({"now": None, "epoch_began": None}, "random"),
        }
        return Snapshot(REPLICATED, state, encoder.storages)


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    """To the bit."""
    return len(one) == len(other) and all(map(torch.equal, one, other))


def saved(
    root: Path,
    *generations: Generation,
    training: Training | None = None,
    shard: Shard | None = None,
    program: str = "",
) -> Writer:
    """Generations of one training, which learns a little between them."""
    training = training or Training()
    problems: list[str] = []
    writer = Writer(root, shard or Shard(), problems.append)
    for generation in generations:
        training.learn()
        writer.save(generation, replace(training.snapshot(), program=program))
        writer.finish()
    assert problems == [], problems
    return writer
