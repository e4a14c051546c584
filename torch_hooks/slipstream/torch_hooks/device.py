# SPDX-License-Identifier: Apache-2.0
"""What parking and memory caps need of a device, and the devices there are.

`Cpu` stands in where there is no GPU: every tensor counts as on the device, and host memory is
other memory of the same machine. `Occupancy` is that, beside the books of simulated GPUs, whose
copies take their time on a copy engine. `Cuda` (see `cuda_device`) has never run on a GPU.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING, Protocol

import torch

from slipstream.torch_hooks import copying, host_memory, occupancy_context
from slipstream.torch_hooks.occupancy_errors import OutOfMemoryError
from slipstream.torch_hooks.rate import CHUNK_BYTES, Rate
from slipstream.wire.gpu_state import COPY, TO_HOST

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor, UntypedStorage

    from slipstream.torch_hooks.occupancy_context import Context
    from slipstream.torch_hooks.tier import Tier


class Device:
    """Where the tensors of this process live; the defaults are those of a device without books."""

    name: str
    reaches_host = False
    """Whether tensors on this device may lie in host memory."""
    shortcoming = ""
    """What a cap cannot do here; empty if nothing."""

    def why_stuck(self) -> str:
        """Why nothing on it may be moved; empty if it may."""
        return ""

    def holds(self, storage: UntypedStorage) -> bool:
        """Whether a storage lies on this device."""
        return storage.device.type == self.name

    def most_bytes(self) -> int:
        """All tensors on it take no more than this; must be quick to say."""
        return 1 << 62

    def synchronize(self) -> None:
        """Wait until all that was queued is done."""

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Copy bytes to or from it, no faster than its neighbours can bear."""
        destination.copy_(source)

    def copy_all(self, pairs: Sequence[tuple[Tensor, Tensor]], *, fresh: bool = False) -> None:
        """The same for many: bytes of the second into the first of each.

        `fresh`: the first were just allocated.
        """
        del fresh
        for destination, source in pairs:
            self.copy(destination, source)

    def prepare(self, storage: UntypedStorage) -> None:
        """A storage that was just allocated is about to be filled."""

    def pin(self, host: Tensor) -> bool:
        """Lock the pages of host memory if copies need that; returns whether it was done."""
        return host.is_pinned()

    def release_caches(self) -> None:
        """Give back what is free but held."""

    def has_room(self, needed_bytes: Mapping[int, int]) -> bool:
        """Whether so many bytes of tensors fit on each of its GPUs, by their numbers."""
        del needed_bytes
        return True

    def leave(self) -> None:
        """Take what torch does not know of off the device, too."""

    def come_back(self, nbytes: int, begins: Callable[[], None] = lambda: None) -> bool:
        """Undo `leave`. False, and nothing done: that, or so many bytes of tensors, do not fit.

        `begins` is called when there is room, before anything is copied.
        """
        if nbytes >= 0:
            begins()
        return nbytes >= 0

    def places(self, tier: Tier, _where: torch.device) -> Places:
        """Where storages of this device may lie that are not on it."""
        return tier

    def cap(self, nbytes: int) -> bool:
        """Hold no more than this of what torch does not know of on the device; 0 is no cap.

        Called at each boundary while there is one, and after that until all is back (True).
        """
        return not nbytes

    def away_bytes(self) -> int:
        """What torch does not know of and is away because of a cap."""
        return 0


class Places(Protocol):
    """Memory that is not on the device."""

    def take(self, nbytes: int, *, exact: bool = False) -> Tensor:
        """So many bytes of it; raises HostMemoryError."""

    def give_back(self, slot: Tensor) -> None:
        """They are not needed any more."""


class Cpu(Device):
    """No GPU: the memory of this process."""

    name = "cpu"
    reaches_host = True

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)

    def holds(self, storage: UntypedStorage) -> bool:
        """All but what stands for host memory."""
        return super().holds(storage) and not host_memory.is_ours(storage.data_ptr())

    def most_bytes(self) -> int:
        """The memory of this process."""
        try:
            with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 (asked at boundaries)
                return int(file.read().split()[1]) * mmap.PAGESIZE
        except (OSError, ValueError, IndexError):
            return super().most_bytes()

    def prepare(self, storage: UntypedStorage) -> None:
        """Ask for huge pages: filling small ones takes several times as long as the copy."""
        first = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (storage.data_ptr() + storage.nbytes() - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if length >= copying.HUGE_PAGE_BYTES:
            self._libc.madvise(
                ctypes.c_void_p(first), ctypes.c_size_t(length), ctypes.c_int(mmap.MADV_HUGEPAGE)
            )

    def copy_all(self, pairs: Sequence[tuple[Tensor, Tensor]], *, fresh: bool = False) -> None:
        """On several processors, and what is fresh on huge pages."""
        pieces = [
            copying.Piece(destination.data_ptr(), source.data_ptr(), source.numel())
            for destination, source in pairs
        ]
        copying.copy_all(pieces, fresh=fresh)

    def release_caches(self) -> None:
        """Have malloc give back what it keeps of freed memory."""
        if hasattr(self._libc, "malloc_trim"):  # glibc's
            self._libc.malloc_trim(0)


class Occupancy(Cpu):
    """Simulated GPUs: tensors are the CPU's; what is allocated there stands on the GPUs' books."""

    def __init__(self, contexts: list[Context]) -> None:
        super().__init__()
        self._contexts = contexts
        self._rates = {id(one): Rate(one.gpu.copy_bytes_per_s / 2) for one in contexts}

    def synchronize(self) -> None:
        """Wait for this process's kernels and copies."""
        for context in self._contexts:
            context.synchronize()

    def leave(self) -> None:
        """Copy what is on the books to the host, then strike it."""
        for context in self._contexts:
            self._move_out(context, context.held_bytes())

    def come_back(self, nbytes: int, begins: Callable[[], None] = lambda: None) -> bool:
        """Book it all again, or nothing: two jobs must not wait for each other's halves."""
        back: list[tuple[Context, int]] = []
        for context in self._contexts:
            wanted = context.wanted_bytes()
            if not _moved_in(context, wanted):
                for other, moved in back:
                    other.move_out(moved)
                return False
            back.append((context, wanted))
        if not super().come_back(nbytes, begins):
            return False
        for context, moved in back:
            self._copy(context, moved)
        return True

    def cap(self, nbytes: int) -> bool:
        """Move what is above the cap out, or what is below it in; what is away comes by in turn.

        A mini-batch needs all of its memory: what is away is copied in and out for each.
        """
        for context in self._contexts:
            context.cap_bytes = nbytes or None
            above = context.held_bytes() - nbytes if nbytes else 0
            wanted = context.wanted_bytes()
            if above > 0:
                self._move_out(context, above)
            elif wanted and _moved_in(context, wanted):
                self._copy(context, wanted)
            self._copy(context, context.away_bytes)
            self._copy(context, context.away_bytes, TO_HOST)
        return not nbytes and not any(context.away_bytes for context in self._contexts)

    def away_bytes(self) -> int:
        """What is not on the books but should be."""
        return sum(context.away_bytes for context in self._contexts)

    def _move_out(self, context: Context, nbytes: int) -> None:
        self._copy(context, nbytes, TO_HOST)
        context.move_out(nbytes)

    def _copy(self, context: Context, nbytes: int, flags: int = 0) -> None:
        for begin in range(0, nbytes, CHUNK_BYTES):
            chunk = min(CHUNK_BYTES, nbytes - begin)
            self._rates[id(context)].take(chunk)
            duration_ns = chunk * 1_000_000_000 // context.gpu.copy_bytes_per_s
            context.wait(COPY, context.enqueue(COPY, duration_ns, flags))


def current() -> Device:
    """The device this process trains on."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's
        from slipstream.torch_hooks.cuda_device import Cuda  # noqa: PLC0415 (it needs this module)

        return Cuda()
    contexts = occupancy_context.open_contexts()
    return Occupancy(contexts) if contexts else Cpu()


def _moved_in(context: Context, nbytes: int) -> bool:
    try:
        context.move_in(nbytes)
    except OutOfMemoryError:
        return False
    return True
