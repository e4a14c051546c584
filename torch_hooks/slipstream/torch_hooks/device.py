# SPDX-License-Identifier: Apache-2.0
"""What parking and memory caps need of a device, and the devices there are.

`Cpu` stands in where there is no GPU: every tensor counts as on the device, and host memory is
other memory of the same machine. `Occupancy` is that, beside the books of simulated GPUs, whose
copies take their time on a copy engine. `Cuda` has never run on a GPU.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
from typing import TYPE_CHECKING

import torch

from slipstream.torch_hooks import host_memory, occupancy_context
from slipstream.torch_hooks.occupancy_errors import OutOfMemoryError
from slipstream.torch_hooks.rate import CHUNK_BYTES, Rate
from slipstream.wire.gpu_state import COPY, TO_HOST

if TYPE_CHECKING:
    from torch import Tensor, UntypedStorage

    from slipstream.torch_hooks.occupancy_context import Context

_CUDA_COPY_BYTES_PER_S = 8e9  # about half of what PCIe 4.0 carries: the rest is for the neighbours


class Device:
    """Where the tensors of this process live; the defaults are those of a device without books."""

    name: str
    reaches_host = False
    """Whether tensors on this device may lie in host memory."""

    def why_stuck(self) -> str:
        """Why nothing on it may be moved; empty if it may."""
        return ""

    def holds(self, storage: UntypedStorage) -> bool:
        """Whether a storage lies on this device."""
        return storage.device.type == self.name

    def synchronize(self) -> None:
        """Wait until all that was queued is done."""

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """Copy bytes to or from it, no faster than its neighbours can bear."""
        destination.copy_(source)

    def prepare(self, storage: UntypedStorage) -> None:
        """A storage that was just allocated is about to be filled."""

    def pin(self, host: Tensor) -> bool:
        """Lock the pages of host memory if copies need that; returns whether it was done."""
        return host.is_pinned()

    def release_caches(self) -> None:
        """Give back what is free but held."""

    def leave(self) -> None:
        """Take what torch does not know of off the device, too."""

    def come_back(self, nbytes: int) -> bool:
        """Undo `leave`. False, and nothing done: that, or so many bytes of tensors, do not fit."""
        return nbytes >= 0

    def cap(self, nbytes: int) -> bool:
        """Hold no more than this of what torch does not know of on the device; 0 is no cap.

        Called at each boundary while there is one, and after that until all is back (True).
        """
        return not nbytes

    def away_bytes(self) -> int:
        """What torch does not know of and is away because of a cap."""
        return 0


class Cpu(Device):
    """No GPU: the memory of this process."""

    name = "cpu"
    reaches_host = True

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None)

    def holds(self, storage: UntypedStorage) -> bool:
        """All but what stands for host memory."""
        return super().holds(storage) and not host_memory.is_ours(storage.data_ptr())

    def prepare(self, storage: UntypedStorage) -> None:
        """Ask for huge pages: filling small ones takes several times as long as the copy."""
        first = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (storage.data_ptr() + storage.nbytes() - first) // mmap.PAGESIZE * mmap.PAGESIZE
        if length >= host_memory.HUGE_PAGE_BYTES:
            self._libc.madvise(
                ctypes.c_void_p(first), ctypes.c_size_t(length), ctypes.c_int(mmap.MADV_HUGEPAGE)
            )

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

    def come_back(self, nbytes: int) -> bool:
        """Book it all again, or nothing: two jobs must not wait for each other's halves."""
        back: list[tuple[Context, int]] = []
        for context in self._contexts:
            wanted = context.wanted_bytes()
            if not _moved_in(context, wanted):
                for other, moved in back:
                    other.move_out(moved)
                return False
            back.append((context, wanted))
        for context, moved in back:
            self._copy(context, moved)
        return super().come_back(nbytes)

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


class Cuda(Device):
    """The CUDA GPU of this process. Never run on one yet."""

    name = "cuda"

    def __init__(self) -> None:
        self._rate = Rate(_CUDA_COPY_BYTES_PER_S)

    def why_stuck(self) -> str:
        """A captured graph replays with the addresses it was captured with."""
        graphs = sum(type(thing) is torch.cuda.CUDAGraph for thing in gc.get_objects())
        return f"{graphs} CUDA graphs hold addresses" if graphs else ""

    def synchronize(self) -> None:
        """Wait for all streams of all its GPUs."""
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)

    def copy(self, destination: Tensor, source: Tensor) -> None:
        """In pieces, at half of what the bus carries."""
        for begin in range(0, source.numel(), CHUNK_BYTES):
            end = min(begin + CHUNK_BYTES, source.numel())
            self._rate.take(end - begin)
            destination[begin:end].copy_(source[begin:end])

    def pin(self, host: Tensor) -> bool:
        """The copy engine reaches only pages that stay where they are."""
        return not int(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.numel(), 0))  # type: ignore[no-untyped-call]  # torch's

    def release_caches(self) -> None:
        """Give the caching allocator's free blocks back to the GPU."""
        torch.cuda.empty_cache()

    def come_back(self, nbytes: int) -> bool:
        """Whether the GPU has as much free."""
        free_bytes, _ = torch.cuda.mem_get_info()
        return free_bytes >= nbytes


def current() -> Device:
    """The device this process trains on."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's
        return Cuda()
    contexts = occupancy_context.open_contexts()
    return Occupancy(contexts) if contexts else Cpu()


def _moved_in(context: Context, nbytes: int) -> bool:
    try:
        context.move_in(nbytes)
    except OutOfMemoryError:
        return False
    return True
