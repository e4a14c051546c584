# SPDX-License-Identifier: Apache-2.0
"""The host's side of a memory cap: slots for tensors, used again and again.

Mini-batches ask for the same sizes over and over, so a slot that was given back is found by its
size. Sizes are rounded up by at most an eighth, and a slot of up to twice the size will do: lengths
that vary do not add up to a slot for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slipstream.torch_hooks.host_memory import Area, aligned

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_AREA_BYTES = 64 << 20
_LEAST_BYTES = 4096


class Tier:
    """Slots of host memory. Giving back is safe at any moment, in any thread."""

    def __init__(self, pin: Callable[[Tensor], bool]) -> None:
        self._pin = pin
        self._areas: list[Area] = []
        self._left = 0
        self._free: dict[int, list[Tensor]] = {}

    def take(self, nbytes: int, *, exact: bool = False) -> Tensor:
        """A slot of at least so many bytes; raises HostMemoryError if the host has no more."""
        size = nbytes if exact else _rounded(nbytes)
        for other in sorted(self._free):
            if size <= other <= (size if exact else 2 * size) and self._free[other]:
                return self._free[other].pop()
        return self._cut(size)

    def give_back(self, slot: Tensor) -> None:
        """It may be handed out again."""
        self._free.setdefault(slot.numel(), []).append(slot)

    def _cut(self, size: int) -> Tensor:
        if aligned(size) > self._left:
            self._areas.append(Area(max(size, _AREA_BYTES), pin=self._pin, inherited=True))
            self._left = self._areas[-1].nbytes
        begin = self._areas[-1].nbytes - self._left
        self._left -= aligned(size)
        return self._areas[-1].piece(begin, size)


def _rounded(nbytes: int) -> int:
    """Up to the next of eight steps between two powers of two."""
    nbytes = max(nbytes, _LEAST_BYTES)
    step = 1 << max(0, nbytes.bit_length() - 4)
    return -(-nbytes // step) * step
