# SPDX-License-Identifier: Apache-2.0
"""The ranks that train one model together, as the training loop sees them; here, a team of one."""

from typing import Protocol

from torch import Tensor, nn


class Team(Protocol):
    """All ranks of a training. Every rank makes the same calls in the same order."""

    @property
    def rank(self) -> int:
        """This process's place, from 0 on."""

    @property
    def ranks(self) -> int:
        """How many processes train."""

    def replicate(self, model: nn.Module) -> nn.Module:
        """Return the module whose backward pass shares gradients between the ranks."""

    def anyone(self, *, says: bool) -> bool:
        """Say to every rank whether any of them says so."""

    def gather(self, state: Tensor) -> list[Tensor]:
        """Return every rank's tensor, in the order of ranks; all have the same size."""


class Alone:
    """The team of a training in one process."""

    rank = 0
    ranks = 1

    def replicate(self, model: nn.Module) -> nn.Module:
        """Return the model itself: there is nobody to share gradients with."""
        return model

    def anyone(self, *, says: bool) -> bool:
        """Return what this process says."""
        return says

    def gather(self, state: Tensor) -> list[Tensor]:
        """Return this process's tensor."""
        return [state]
