# SPDX-License-Identifier: Apache-2.0
"""The CUDA GPUs of a process, as parking and memory caps need them. Never run on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from slipstream.torch_hooks import cuda_pool, cuda_runtime, host_memory
from slipstream.torch_hooks.device import Device
from slipstream.torch_hooks.rate import CHUNK_BYTES, Rate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor, UntypedStorage

    from slipstream.torch_hooks.cuda_pool import CudaPool
    from slipstream.torch_hooks.device import Places
    from slipstream.torch_hooks.tier import Tier

_CUDA_COPY_BYTES_PER_S = 8e9  # about half of what PCIe 4.0 carries: the rest is for the neighbours


class Cuda(Device):
    """The CUDA GPU of this process. Never run on one yet."""

    name = "cuda"

    def __init__(self) -> None:
        self._rate = Rate(_CUDA_COPY_BYTES_PER_S)
        self._pool: CudaPool | None = None
        self._cap_bytes = 0

    def holds(self, storage: UntypedStorage) -> bool:
        """All but what lies in managed memory on the host."""
        away = self._pool is not None and self._pool.is_on_host(storage.data_ptr())
        return super().holds(storage) and not away

    def why_stuck(self) -> str:
        """A captured graph replays with the addresses it was captured with."""
        graphs = cuda_runtime.graphs()
        return f"{graphs} CUDA graphs hold addresses" if graphs else ""

    def most_bytes(self) -> int:
        """What the caching allocator has of the GPUs."""
        counts = range(torch.cuda.device_count())
        return sum(torch.cuda.memory_reserved(index) for index in counts)

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

    def has_room(self, needed_bytes: Mapping[int, int]) -> bool:
        """Whether each GPU has as much free; torch's caches are empty by then."""
        return all(
            torch.cuda.mem_get_info(index)[0] >= nbytes for index, nbytes in needed_bytes.items()
        )

    def places(self, tier: Tier, where: torch.device) -> Places:
        """Managed memory, where there can be any."""
        return _Managed(self._pool, where.index) if self._pool is not None else tier

    def cap(self, nbytes: int) -> bool:
        """Beyond the cap torch finds memory of a reserve, which lies on the host.

        Torch counts the reserve as its own: both together are what it may have.
        """
        if nbytes == self._cap_bytes:
            return not nbytes
        self._cap_bytes = nbytes
        pool = self._opened()
        if pool is None:
            return not nbytes
        count = torch.cuda.device_count()
        room_bytes = host_memory.room_bytes() // 2 // max(1, count)  # for each of them
        for index in range(count):
            total = torch.cuda.get_device_properties(index).total_memory
            torch.cuda.set_per_process_memory_fraction(1.0, index)
            reserve = min(max(0, total - nbytes), room_bytes) if nbytes else 0
            try:
                pool.hold(index, reserve)
            except (cuda_pool.CudaPoolError, torch.cuda.OutOfMemoryError) as error:
                self.shortcoming = f"no reserve: {error}"
                reserve = 0
            if nbytes:
                fraction = min(1.0, (nbytes + reserve) / total)
                torch.cuda.set_per_process_memory_fraction(fraction, index)
            else:
                self._bring_back(pool, index, total)
        self.release_caches()
        return not nbytes

    def _bring_back(self, pool: CudaPool, index: int, total: int) -> None:
        """Without a cap, what lives in managed memory may be on the GPU."""
        while moved := pool.bring_back(index, total, CHUNK_BYTES):
            self._rate.take(moved)

    def _opened(self) -> CudaPool | None:
        if self._pool is None and not self.shortcoming:
            try:
                self._pool = cuda_pool.open_pool(torch.cuda, _empty)
            except (cuda_pool.CudaPoolError, OSError) as error:
                self.shortcoming = f"no managed memory: {error}"
        self.reaches_host = self._pool is not None
        return self._pool


class _Managed:
    """Places in managed memory: a tensor that is dropped is given back."""

    def __init__(self, pool: CudaPool, index: int) -> None:
        self._pool = pool
        self._index = index

    def take(self, nbytes: int, *, exact: bool = False) -> Tensor:
        """Of exactly that size, also if more would do."""
        del exact
        taken: Tensor = self._pool.take(nbytes, self._index)
        return taken

    def give_back(self, slot: Tensor) -> None:
        """Torch does, when nobody has it any more."""


def _empty(nbytes: int, index: int) -> Tensor:
    return torch.empty(nbytes, dtype=torch.uint8, device=f"cuda:{index}")
