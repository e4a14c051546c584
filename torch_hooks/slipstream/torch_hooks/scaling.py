# SPDX-License-Identifier: Apache-2.0
"""A cap on device memory that changes while a training runs, also to below what it needs.

First what is saved for the backward pass goes to host memory (see `spill`). When what lives from
one mini-batch to the next is above the cap by itself, optimizer state follows, then parameters:
where the device can reach host memory, a storage's memory is exchanged for host memory, in place,
so that whoever uses it finds it there. When the cap rises they come back, parameters first.

What single operations need while they run comes on top of the cap.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import torch

from slipstream.torch_hooks import storages
from slipstream.torch_hooks.host_memory import HostMemoryError
from slipstream.torch_hooks.saved_hooks import SavedHooks
from slipstream.torch_hooks.spill import Spill
from slipstream.torch_hooks.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import UntypedStorage

    from slipstream.torch_hooks.device import Device
    from slipstream.torch_hooks.notes import Notes

_LOOKING_PART = 100
"""A look at all tensors may take one part in so many of the time."""
_LOOK_EVERY_S = 1.0
"""How often it is asked whether one is needed, where that is known without it."""


class Scaling:
    """A process under a cap."""

    def __init__(self, device: Device, notes: Notes) -> None:
        self._device = device
        self._notes = notes
        self._tier = Tier(device.pin)
        self._spill = Spill(device, self._tier, notes)
        self._hooks = SavedHooks(self._spill.pack, self._spill.unpack)
        self._away: dict[int, storages.Reference] = {}
        self._cap_bytes = 0
        self._look_again_s = 0.0

    @property
    def away_bytes(self) -> int:
        """What was moved out at the last look, and what a simulated GPU has off its books."""
        kept = (known.storage() for known in self._away.values())
        moved_bytes = sum(one.nbytes() for one in kept if one is not None)
        return self._device.away_bytes() + moved_bytes

    def apply(self, cap_bytes: int) -> bool:
        """At a boundary: keep to the cap from now on; 0 is none. True: everything is back."""
        is_back = self._device.cap(cap_bytes)
        if self._device.shortcoming:
            self._notes.problem("cap is not kept in full", self._device.shortcoming)
        began_s = time.monotonic()
        if cap_bytes != self._cap_bytes or began_s >= self._look_again_s:
            self._cap_bytes = cap_bytes
            if self._is_wide(cap_bytes):
                self._look_again_s = began_s + _LOOK_EVERY_S
            else:
                self._settle(cap_bytes)
                now_s = time.monotonic()
                self._look_again_s = now_s + _LOOKING_PART * (now_s - began_s)
        if cap_bytes:
            self._hooks.push()
        elif not self._hooks.pop():
            self._spill.budget_bytes = 1 << 62  # they stay, and let everything stay
        return is_back

    def _is_wide(self, cap_bytes: int) -> bool:
        """Whether half the cap would do, without a look at every tensor, which takes a while.

        An owner's is: it is there for a surge, and must cost nothing until then.
        """
        most_bytes = self._device.most_bytes()
        if self._away or (cap_bytes and 2 * most_bytes > cap_bytes):
            return False
        self._spill.budget_bytes = max(0, cap_bytes - most_bytes)
        return True

    def _settle(self, cap_bytes: int) -> None:
        found = storages.alive(self._device.holds)
        held_bytes = found.stuck_bytes + sum(one.nbytes() for one in found.movable)
        if cap_bytes and held_bytes > cap_bytes:
            held_bytes = self._move_out(held_bytes, cap_bytes)
        else:
            held_bytes = self._move_in(held_bytes, cap_bytes or None)
        if cap_bytes and held_bytes > cap_bytes:
            self._notes.problem(
                "cap too small", f"{held_bytes} bytes must stay on the device, {cap_bytes} may"
            )
        self._spill.budget_bytes = max(0, cap_bytes - held_bytes)

    def _move_out(self, held_bytes: int, cap_bytes: int) -> int:
        if not self._device.reaches_host or not hasattr(torch.UntypedStorage, "_swap_data_ptr_"):
            return held_bytes  # an older torch, or a GPU without managed memory
        for storage in _state_then_parameters():
            if held_bytes <= cap_bytes:
                break
            if not self._device.holds(storage) or not storages.is_movable(storage):
                continue
            try:
                places = self._device.places(self._tier, storage.device)
                slot = places.take(storage.nbytes(), exact=True)
            except HostMemoryError as error:
                self._notes.problem("not moved", f"{error}; it stays on the device")
                break
            self._exchange(storage, slot.untyped_storage())
            self._away[storages.number(storage)] = storages.Reference(storage)
            held_bytes -= storage.nbytes()
        return held_bytes

    def _move_in(self, held_bytes: int, cap_bytes: int | None) -> int:
        for number, known in reversed(list(self._away.items())):
            storage = known.storage()
            if storage is None:
                del self._away[number]
                continue
            if cap_bytes is not None and held_bytes + storage.nbytes() > cap_bytes:
                break
            fresh = storages.fresh(storage.nbytes(), storage.device)
            self._device.prepare(fresh)
            self._exchange(storage, fresh)
            places = self._device.places(self._tier, storage.device)
            places.give_back(storages.raw(fresh))
            del self._away[number]
            held_bytes += storage.nbytes()
        return held_bytes

    def _exchange(self, storage: UntypedStorage, other: UntypedStorage) -> None:
        """Each has the other's memory afterwards, and the first what it held before."""
        self._device.copy(storages.raw(other), storages.raw(storage))
        storage._swap_data_ptr_(other)  # type: ignore[attr-defined]


def _state_then_parameters() -> Iterator[UntypedStorage]:
    """Of all optimizers, each kind from the largest down."""
    optimizers = list(storages.instances(torch.optim.Optimizer))
    kinds: tuple[list[Any], list[Any]] = (
        [one for each in optimizers for state in each.state.values() for one in state.values()],
        [one for each in optimizers for group in each.param_groups for one in group["params"]],
    )
    for tensors in kinds:
        found = {}
        for one in tensors:
            storage = storages.storage_of(one) if isinstance(one, torch.Tensor) else None
            if storage is not None:
                found[storages.number(storage)] = storage
        yield from sorted(found.values(), key=lambda storage: -storage.nbytes())
