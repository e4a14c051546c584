# SPDX-License-Identifier: Apache-2.0
"""Saved activations under a budget: what autograd keeps for the backward pass, beyond it in a tier.

Torch asks (`saved_tensors_hooks`) for each tensor that it saves what to keep in its place. Within
the budget that is the tensor itself; beyond it, a copy in host memory, brought back when backward
asks for it. Two things are easily done wrong, and then gradients are wrong in silence:

* A graph that is kept (`retain_graph`) asks more than once. So a slot is given back when its handle
  dies, not when it has been asked for.
* A tensor that stays must be detached: an output kept by its own graph would never be freed.

Whoever changes a saved tensor in place gets the same error as without us.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

import torch

from slipstream.torch_hooks import storages
from slipstream.torch_hooks.host_memory import HostMemoryError
from slipstream.torch_hooks.labels import label

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, UntypedStorage

    from slipstream.torch_hooks.device import Device
    from slipstream.torch_hooks.notes import Notes
    from slipstream.torch_hooks.tier import Tier

SMALL_BYTES = 16 << 10
"""Below that a copy costs more than it gains."""

_ALIGNMENT = 64


class Spill:
    """The hooks of this process, and the books of what they keep."""

    def __init__(self, device: Device, tier: Tier, notes: Notes) -> None:
        self.budget_bytes = 0
        self.kept_bytes = 0
        self.spilled = 0
        """How many tensors were copied out so far."""
        self._device = device
        self._tier = tier
        self._notes = notes
        self._kept: dict[int, list[int]] = {}  # storage: how often, how large
        self._gone: deque[int] = deque()
        self._out: weakref.WeakValueDictionary[tuple[int, ...], _Copy] = (
            weakref.WeakValueDictionary()
        )
        self._lock = threading.RLock()  # a destructor may run in the middle of anything

    def pack(self, tensor: Tensor) -> object:
        """Torch saves this tensor: what to keep in its place."""
        if tensor.numel() * tensor.element_size() < SMALL_BYTES or not self._is_ours(tensor):
            return _Kept(tensor)
        storage = tensor.untyped_storage()
        number = storages.number(storage)
        with self._lock:
            self._count_the_gone()
            kept = self._kept.get(number)
            if kept is not None:
                kept[0] += 1
                return _Counted(tensor, self._gone, number)
            if self.kept_bytes + storage.nbytes() > self.budget_bytes:
                try:
                    with label("spill"):
                        return self._copied(tensor, storage)
                except HostMemoryError as error:
                    self._notes.problem("not spilled", f"{error}; it stays on the device")
            self._kept[number] = [1, storage.nbytes()]
            self.kept_bytes += storage.nbytes()
            return _Counted(tensor, self._gone, number)

    def unpack(self, handle: object) -> Tensor:
        """Backward needs what was saved."""
        return handle.tensor()  # type: ignore[attr-defined,no-any-return]  # what pack returned

    def _is_ours(self, tensor: Tensor) -> bool:
        """Not a parameter, which stays anyway, nor anything but plain memory on the device."""
        base = tensor if tensor._base is None else tensor._base  # noqa: SLF001 (views have no other way to their base)
        if base.is_leaf and base.requires_grad:
            return False
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            return False
        plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)  # others may be wrappers
        return plain and self._device.holds(tensor.untyped_storage())

    def _count_the_gone(self) -> None:
        while self._gone:
            number = self._gone.popleft()
            kept = self._kept[number]
            kept[0] -= 1
            if not kept[0]:
                del self._kept[number]
                self.kept_bytes -= kept[1]

    def _copied(self, tensor: Tensor, storage: UntypedStorage) -> _Spilled:
        """Its bytes once, however many views of them are saved."""
        first = int(tensor.storage_offset()) * tensor.element_size()
        last = first + _extent(tensor) * tensor.element_size()
        if last - first > tensor.numel() * tensor.element_size():
            return self._copied_densely(tensor)
        key = (storages.number(storage), tensor._version, first, last)  # noqa: SLF001 (autograd's own)
        copy = self._out.get(key)
        if copy is None:
            copy = _Copy(self._device, self._tier, storage, first, last)
            self._out[key] = copy
            self.spilled += 1
        return _Spilled(copy, tensor, tensor.stride())

    def _copied_densely(self, tensor: Tensor) -> _Spilled:
        """A view with gaps: without them, its dimensions in the order they had in memory."""
        strides = [0] * tensor.dim()
        step = 1
        for dimension in sorted(range(tensor.dim()), key=tensor.stride):
            strides[dimension] = step
            step *= tensor.size(dimension)
        with torch.no_grad():
            dense = torch.empty_strided(
                tensor.size(), strides, dtype=tensor.dtype, device=tensor.device
            ).copy_(tensor)
        storage = dense.untyped_storage()
        copy = _Copy(self._device, self._tier, storage, 0, storage.nbytes())
        self.spilled += 1
        return _Spilled(copy, dense, strides)


class _Kept:
    """A tensor that stays where it is."""

    __slots__ = ("_tensor", "_version")

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor.detach()
        self._version = self._tensor._version  # noqa: SLF001 (autograd's own)

    def tensor(self) -> Tensor:
        """Itself, if nobody has changed it since."""
        if self._tensor._version != self._version:  # noqa: SLF001 (as above)
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: it is at version {self._tensor._version}; "  # noqa: SLF001
                f"expected version {self._version} instead."
            )
        return self._tensor


class _Counted(_Kept):
    """One that counts against the budget until the graph lets go of it."""

    __slots__ = ("_gone", "_number")

    def __init__(self, tensor: Tensor, gone: deque[int], number: int) -> None:
        super().__init__(tensor)
        self._gone = gone
        self._number = number

    def __del__(self) -> None:
        self._gone.append(self._number)


class _Copy:
    """Bytes of a storage in a slot of the tier; given back when the last handle is gone."""

    def __init__(
        self, device: Device, tier: Tier, storage: UntypedStorage, first: int, last: int
    ) -> None:
        self._device = device
        self._tier = tier
        self._where = storage.device
        self._nbytes = last - first
        # The same alignment as it had: vector code may add in another order at another.
        self._skip = (storage.data_ptr() + first) % _ALIGNMENT
        self._source = storages.Reference(storage)  # our key is its number: it must stay its own
        self._back: storages.Reference | None = None
        self._slot = tier.take(self._nbytes)
        device.copy(self._slot[: self._nbytes], storages.raw(storage)[first:last])

    def __del__(self) -> None:
        if hasattr(self, "_slot"):
            self._tier.give_back(self._slot)

    def view(self, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int]) -> Tensor:
        """A tensor over the bytes, back on the device; one memory for all views that still live."""
        storage = self._back.storage() if self._back else None
        if storage is None:
            storage = storages.fresh(self._skip + self._nbytes, self._where)
            self._device.prepare(storage)
            self._device.copy(storages.raw(storage)[self._skip :], self._slot[: self._nbytes])
            self._back = storages.Reference(storage)
        tensor = torch.empty(0, dtype=dtype, device=self._where)
        return tensor.set_(storage, self._skip // dtype.itemsize, tuple(size), tuple(stride))


class _Spilled:
    """A tensor of which only the shape is here."""

    __slots__ = ("_copy", "_dtype", "_size", "_stride")

    def __init__(self, copy: _Copy, tensor: Tensor, stride: Sequence[int]) -> None:
        self._copy = copy
        self._dtype = tensor.dtype
        self._size = tensor.size()
        self._stride = stride

    def tensor(self) -> Tensor:
        """The bits that were saved."""
        with label("spill"):
            return self._copy.view(self._dtype, self._size, self._stride)


def _extent(tensor: Tensor) -> int:
    """How many elements lie between its first and its last, both included."""
    return 1 + sum((tensor.size(each) - 1) * tensor.stride(each) for each in range(tensor.dim()))
