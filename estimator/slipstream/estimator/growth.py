# SPDX-License-Identifier: Apache-2.0
"""Growth laws: what a training needs grows with its sizes. Two forms, and the middle of both.

A power law, one product with any exponents, needs few runs. A sum of products, none of them
negative, is what really happens, and takes more runs to find:

memory is weights and their optimizer's state (width² · depth) plus activations (batch · width ·
depth · …) plus a constant; the time of a mini-batch is made likewise. Which products is found in
the runs (`growth_fit`); here they are only multiplied out. Beyond the sizes that were seen both go
on growing, as trees cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from slipstream.estimator.columns import Row

    Array = NDArray[np.float64]

LARGEST_LOG: Final = 60.0
FARTHEST: Final = 3.0
"""Spreads from the centre: beyond that a line bends no more."""
_ONE: Final = np.ones(1)


@dataclass(frozen=True, eq=False)
class Laws:
    """Terms of all labels: label l has the terms first[l] to first[l + 1] - 1.

    A term is weight · Π number ** exponent · gate · gate. Where there is none, the law says 0.
    """

    exponents: Array
    """For each term, of each number."""
    gates: NDArray[np.int32]
    """Two for each term."""
    weights: Array
    first: NDArray[np.int32]
    power: Array
    """For each label, of 1, all columns and pairs: the power laws, straight lines once bent."""
    pairs: NDArray[np.int32]
    """Pairs of columns whose products bend the lines a little."""
    blend: Array
    """Of each label the part that the sum of products has in it; the rest is the power law's."""
    leash: Array
    """Of each label how far from the power law the sum of products is believed: the farther the
    more often it was right of the two. Beyond, one of its products was found by chance."""

    def lines(self, row: Row) -> Array:
        """What each label's power law says of one job, bent."""
        near = np.minimum(np.maximum(row.scaled, -FARTHEST), FARTHEST)
        products = near[self.pairs[:, 0]] * near[self.pairs[:, 1]]
        lines: Array = self.power @ np.concatenate((_ONE, row.scaled, products))
        return lines

    def values(self, row: Row) -> Array:
        """What each label's sum of products says of one job."""
        logs = np.minimum(self.exponents @ row.logs, LARGEST_LOG)
        opened = row.gates[self.gates]
        sums = np.zeros(len(self.weights) + 1)
        np.cumsum(self.weights * np.exp(logs) * opened[:, 0] * opened[:, 1], out=sums[1:])
        values: Array = np.diff(sums[self.first])
        return values
