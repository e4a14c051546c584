# SPDX-License-Identifier: Apache-2.0
"""The memory that tensors alive in this process lie in, each piece once.

Tensors are found through Python's collector: parameters, buffers, gradients, optimizer state, the
parts of a DTensor, and whatever else the program holds. What only C++ holds, the gradient buckets
of DDP say, is not seen; it stays where it is, and is as good as before.
"""

from __future__ import annotations

import gc
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from slipstream.torch_hooks import native_objects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor, UntypedStorage


T = TypeVar("T")
_FROZEN_AT_START = 1000
"""Python 3.12 freezes some hundred objects of its own, none of them a tensor."""


@dataclass(frozen=True)
class Found:
    """What was found on a device."""

    movable: list[UntypedStorage]
    stuck_bytes: int
    """Of storages that must stay: others (a process, numpy, a library) know their address."""


def alive(on_device: Callable[[UntypedStorage], bool]) -> Found:
    """All storages of living tensors on the device."""
    movable: list[UntypedStorage] = []
    stuck_bytes = 0
    seen: set[int] = set()
    for tensor in instances(torch.Tensor):
        storage = storage_of(tensor)
        if storage is None or number(storage) in seen:
            continue
        seen.add(number(storage))
        if not on_device(storage) or not storage.nbytes():
            continue
        if is_movable(storage):
            movable.append(storage)
        else:
            stuck_bytes += storage.nbytes()
    return Found(movable, stuck_bytes)


def number(storage: UntypedStorage) -> int:
    """What tells a storage from all others while it lives, whatever memory it has."""
    return int(storage._cdata)  # noqa: SLF001 (torch's own code compares storages by it)


class Reference:
    """A storage that may die; while this lives, its number is given to no other."""

    __slots__ = ("_weak",)

    def __init__(self, storage: UntypedStorage) -> None:
        kind = torch.multiprocessing.reductions.StorageWeakRef
        self._weak = kind(storage)  # type: ignore[no-untyped-call]  # torch's

    def storage(self) -> UntypedStorage | None:
        """The storage, if it still lives."""
        return torch.UntypedStorage._new_with_weak_ptr(self._weak.cdata)  # noqa: SLF001 (as torch's own reductions do)


def fresh(nbytes: int, device: torch.device) -> UntypedStorage:
    """A new one."""
    return torch.UntypedStorage(nbytes, device=device)  # type: ignore[no-untyped-call]  # torch's


def is_movable(storage: UntypedStorage) -> bool:
    """Whether only tensors know where it lies; those on CUDA always say that they are shared."""
    return _is_resizable(storage) and (storage.is_cuda or not storage.is_shared())


def _is_resizable(storage: UntypedStorage) -> bool:
    """Torch before 2.3 does not say; it refuses, or makes a copy of the same size."""
    if hasattr(storage, "resizable"):
        return storage.resizable()
    try:
        storage.resize_(storage.nbytes())
    except RuntimeError:
        return False
    return True


def raw(storage: UntypedStorage) -> Tensor:
    """Its bytes, as a tensor over the same memory."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def instances(kind: type[T]) -> Iterator[T]:
    """All living objects of a class and of those derived from it."""
    kinds = {kind}
    fresh = [kind]
    while fresh:
        fresh = [child for parent in fresh for child in type.__subclasses__(parent)]
        kinds.update(fresh)
    things = _all_objects()
    found = native_objects.of_types(things, kinds)
    if found is not None:
        return (things[at] for at in found)
    # By type, not isinstance: that would ask each object for its class, and run the user's code.
    return (thing for thing in things if type(thing) in kinds)


def _all_objects() -> list[Any]:
    """All that the collector knows, also what the program told it to leave alone."""
    if gc.get_freeze_count() <= _FROZEN_AT_START:
        return gc.get_objects()
    gc.unfreeze()
    try:
        return gc.get_objects()
    finally:
        gc.freeze()  # what is young goes along: there is no other way back


def storage_of(tensor: Tensor) -> UntypedStorage | None:
    """Where it lies; None if it has no memory of its own: sparse, fake, a wrapper of others."""
    try:
        storage = tensor.untyped_storage()
        return storage if storage.device.type != "meta" and storage.data_ptr() else None
    except (RuntimeError, NotImplementedError):
        return None
