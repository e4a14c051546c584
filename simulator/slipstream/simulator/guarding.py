# SPDX-License-Identifier: Apache-2.0
"""What a node's guard leaves to a guest beside a guaranteed owner, and what the owner still feels.

The guard lets guests launch only while the owner's GPU is idle and takes their share back when its
mini-batches get longer. What it does over a minute is worked out once for each pair of kinds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from slipstream.simulator.measured import Measured


class Guarding(Protocol):
    """Speeds of an owner and its guest under guard; 1 is the speed alone."""

    def owner(self, owner: int, guest: int) -> float:
        """The owner's, by the kinds of both."""
        ...

    def guest(self, owner: int, guest: int) -> float:
        """The guest's."""
        ...


class Gated:
    """From what our colocation benchmark measured of the gate alone.

    The guest has the time that the owner leaves idle. The owner is later by `felt` of the guest's
    share, for a kernel that runs is not stopped.
    """

    def __init__(self, measured: Measured, felt: float = 0.018) -> None:
        self._idle = tuple(1.0 - kind.use_pct / 100.0 for kind in measured.kinds)
        self._felt = felt

    def owner(self, owner: int, guest: int) -> float:
        """Later by what a guest's kernels overrun."""
        return 1.0 - self._felt * self.guest(owner, guest)

    def guest(self, owner: int, guest: int) -> float:
        """What is idle, whoever the guest is."""
        del guest
        return self._idle[owner]
