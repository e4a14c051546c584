# SPDX-License-Identifier: Apache-2.0
"""The training loop: plain PyTorch as people write it. It knows of no Slurm and no Slipstream."""

import time
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import checkpoint
import data
from devices import Device
from models import KINDS
from options import Settings
from team import Team


class Trainer:
    """A model, its optimizer, its data, and how far the training is."""

    def __init__(self, settings: Settings, device: Device, team: Team) -> None:
        kind = KINDS[settings.model]
        self.settings, self.device, self.team = settings, device, team
        torch.manual_seed(settings.seed)
        self.model = kind.build(settings.width, settings.depth).to(device.torch_device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=settings.learning_rate)
        self.minibatches_done = 0
        self.loss = float("nan")
        self._replica = team.replicate(self.model)
        self._data = data.Minibatches(
            kind.samples(torch.Generator().manual_seed(settings.seed)),
            batch_size=settings.batch_size,
            seed=settings.seed,
            rank=team.rank,
            ranks=team.ranks,
            host_s=settings.host_ms / 1e3,
        )
        torch.manual_seed(settings.seed + team.rank)  # one's own dropout on the weights of all

    def minibatches(self) -> Iterator[float]:
        """Train to the end; yield at each boundary the milliseconds the mini-batch took."""
        upcoming = self._data.after(self.minibatches_done)
        while self.minibatches_done < self.settings.minibatches:
            started_ns = time.perf_counter_ns()
            inputs, targets = next(upcoming)
            self.loss = self._learn(inputs, targets)
            self.minibatches_done += 1
            yield (time.perf_counter_ns() - started_ns) / 1e6

    def _learn(self, inputs: Tensor, targets: Tensor) -> float:
        inputs, targets = self.device.put(inputs, targets)
        self.device.launch()
        self.optimizer.zero_grad()
        logits = self._replica(inputs)
        loss = cross_entropy(logits.flatten(0, -2), targets.flatten())
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        self.optimizer.step()
        self.device.synchronize()
        return loss.item()

    def save(self) -> None:
        """Write the training's state to the file of the settings, if they name one."""
        path = self.settings.save
        if path is None:
            return
        random_states = self.team.gather(self.device.random_state())
        if self.team.rank == 0:
            state = checkpoint.Checkpoint(
                training=self._identity(),
                minibatches_done=self.minibatches_done,
                loss=self.loss,
                model=self.model.state_dict(),
                optimizer=self.optimizer.state_dict(),
                random_states=random_states,
            )
            checkpoint.write(path, state)

    def resume(self) -> None:
        """Go on from the file of the settings, if there is one yet."""
        path = self.settings.save
        if path is None or not path.exists():
            return
        state = checkpoint.read(path, training=self._identity())
        self.minibatches_done = state.minibatches_done
        self.loss = state.loss
        self.model.load_state_dict(state.model)
        self.optimizer.load_state_dict(dict(state.optimizer))
        self.device.set_random_state(state.random_states[self.team.rank])

    def _identity(self) -> dict[str, str | int | float]:
        return {
            "model": self.settings.model,
            "width": self.settings.width,
            "depth": self.settings.depth,
            "batch size": self.settings.batch_size,
            "learning rate": self.settings.learning_rate,
            "seed": self.settings.seed,
            "ranks": self.team.ranks,
        }
