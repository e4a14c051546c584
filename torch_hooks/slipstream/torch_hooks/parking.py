# SPDX-License-Identifier: Apache-2.0
"""Emptying a device into host memory, and filling it again to the bit.

Each storage of a living tensor is copied out and made empty in place, later grown again and copied
back. Tensors, their views and whoever holds them never notice: it is the same storage throughout.
Anything may interrupt this, a user's Ctrl-C first of all; what was moved by then is known.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch

from slipstream.torch_hooks import storages
from slipstream.torch_hooks.host_memory import Area, aligned

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, UntypedStorage

    from slipstream.torch_hooks.device import Device


class Parking:
    """Where the tensors of this process go; the place is kept for the next time."""

    def __init__(self) -> None:
        self._area: Area | None = None
        self._away: list[tuple[UntypedStorage, Tensor]] = []

    def empty(self, device: Device) -> int:
        """Take everything off the device; returns how many bytes of tensors had to stay."""
        device.synchronize()
        found = storages.alive(device.holds)
        area = self._area_for(sum(aligned(one.nbytes()) for one in found.movable), device)
        leaving = _places(found.movable, area)
        device.copy_all([(host, storages.raw(storage)) for storage, host in leaving])
        for storage, host in leaving:
            self._away.append((storage, host))
            storage.resize_(0)
        device.release_caches()
        device.leave()
        return found.stuck_bytes

    def fill(self, device: Device, begins: Callable[[], None] = lambda: None) -> bool:
        """Bring everything back; False if it does not fit yet, and then what is away stays away.

        `begins` is called once there is room.
        """
        needed_bytes: Counter[int] = Counter()
        for storage, host in self._away:
            needed_bytes[storage.device.index or 0] += host.numel()
        if not device.has_room(needed_bytes):
            return False
        if not device.come_back(sum(needed_bytes.values()), begins):
            return False
        try:
            self.fill_tensors(device)
        except torch.cuda.OutOfMemoryError:  # a neighbour was faster
            for storage, _ in self._away:
                storage.resize_(0)
            device.release_caches()
            return False
        return True

    def fill_tensors(self, device: Device) -> None:
        """Bring the tensors back, whatever else there is room for."""
        for storage, host in self._away:
            storage.resize_(host.numel())
        device.copy_all([(storages.raw(one), host) for one, host in self._away], fresh=True)
        device.synchronize()
        self._away.clear()
        if self._area:
            self._area.offer()

    def _area_for(self, nbytes: int, device: Device) -> Area:
        if self._area is None or self._area.nbytes < nbytes:
            self._area = None  # first: there may be no room for both
            self._area = Area(nbytes, pin=device.pin)
        return self._area


def _places(leaving: list[UntypedStorage], area: Area) -> list[tuple[UntypedStorage, Tensor]]:
    """Each with its place in host memory."""
    places = []
    begin = 0
    for storage in leaving:
        host = area.bytes[begin : begin + storage.nbytes()]
        places.append((storage, host))
        begin += aligned(host.numel())
    return places
