# SPDX-License-Identifier: Apache-2.0
"""CUDA memory beyond a cap, or beyond what a GPU has: managed memory, by way of torch's own pools.

Torch's caching allocator stays as it is. Beside it are pools (`torch.cuda.MemPool`) whose memory
comes from native/cuda_pool.c: one for what we move there, and a reserve. When torch is out of
memory it takes what lies free in a pool that is made for that (`use_on_oom`); it does not ask that
pool's allocator for more (torch 2.13). So the reserve has to lie there before: managed memory, of
which nothing is on the device until it is used, and which kernels then reach over the bus.

Never run on a GPU. The native part is tested against a runtime that has a capacity and no GPU.
"""

from __future__ import annotations

import ctypes
import inspect
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import cuda_runtime, native
from slipstream.torch_hooks.host_memory import HostMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable

NOWHERE, ON_DEVICE, ON_HOST = range(3)
_SMALL_BYTES = 1 << 20
"""Torch keeps what is not larger apart, in pieces of twice the size."""
_SMALL_PIECES = 16


class CudaPoolError(RuntimeError):
    """There can be no such pool here; says why."""


class Counts(ctypes.Structure):
    """As `slip_cuda_counts`."""

    cap_bytes: int
    device_bytes: int
    host_bytes: int
    refused: int
    failed: int
    unknown: int
    unadvised: int
    _fields_ = tuple(
        (name, ctypes.c_uint64)
        for name in (
            "cap_bytes",
            "device_bytes",
            "host_bytes",
            "most_device_bytes",
            "refused",
            "failed",
            "unknown",
            "unadvised",
        )
    )


class CudaPool:
    """Managed memory for one process.

    Args:
        cuda: `torch.cuda`.
        empty: makes a tensor of so many bytes on a device of CUDA's.
        library: the hooks' native code, as a path.
        runtime: CUDA's runtime, as a path.

    Raises:
        CudaPoolError: it cannot be done here.
    """

    def __init__(
        self,
        cuda: Any,  # noqa: ANN401 (a module, which torch does not type)
        empty: Callable[[int, int], Any],
        library: str,
        runtime: str,
    ) -> None:
        self._cuda = cuda
        self._empty = empty
        self._native = declared(library)
        missing = self._native.slip_cuda_find(runtime.encode())
        if missing:
            raise CudaPoolError(f"{runtime} lacks {missing.decode()}")
        if not has_pools(cuda):
            raise CudaPoolError("this torch has no memory pools that are used when memory is out")
        try:
            self._allocator = cuda.memory.CUDAPluggableAllocator(
                library, "slip_cuda_alloc", "slip_cuda_free"
            )
            self._moved = cuda.MemPool(self._allocator.allocator())
        except (AttributeError, RuntimeError, TypeError) as error:
            raise CudaPoolError(f"this torch makes no pools: {error}") from error
        self._reserves: dict[int, tuple[int, Any]] = {}

    def hold(self, device: int, nbytes: int) -> None:
        """Have so much managed memory lie ready for when torch is out of memory; 0 is none.

        What of an earlier reserve is in use stays where it is.

        Raises:
            CudaPoolError: torch did not come to us for it.
        """
        held, _ = self._reserves.get(device, (0, None))
        if held == nbytes:
            return
        self._reserves.pop(device, None)  # torch gives back what nobody uses
        if not nbytes:
            return
        pool = self._cuda.MemPool(self._allocator.allocator(), use_on_oom=True)
        before = self.counts(device).host_bytes
        self._native.slip_cuda_cap(device, 0)
        with self._cuda.use_mem_pool(pool, device):
            pieces = [self._empty(_SMALL_BYTES, device) for _ in range(_SMALL_PIECES)]
            pieces.append(self._empty(nbytes, device))
        del pieces  # free in the pool, which keeps them
        if self.counts(device).host_bytes < before + nbytes:
            raise CudaPoolError("torch does not ask the pool's allocator (expandable segments?)")
        self._reserves[device] = nbytes, pool

    def take(self, nbytes: int, device: int) -> Any:  # noqa: ANN401 (a tensor of torch's)
        """Bytes of the device's that lie on the host; raises HostMemoryError."""
        self._native.slip_cuda_cap(device, 0)
        self._cuda.synchronize(device)  # what is about to go there may still be written
        try:
            with self._cuda.use_mem_pool(self._moved, device):
                return self._empty(nbytes, device)
        except self._cuda.OutOfMemoryError as error:
            raise HostMemoryError(f"no managed memory: {error}") from error

    def bring_back(self, device: int, cap_bytes: int, at_most_bytes: int) -> int:
        """Let managed memory be on the device up to a cap; returns how much was moved, or 0."""
        self._native.slip_cuda_cap(device, cap_bytes)
        return int(self._native.slip_cuda_settle(device, at_most_bytes, None))

    def is_on_host(self, address: int) -> bool:
        """Whether memory of ours lies there, on the host."""
        return bool(self._native.slip_cuda_where(address) == ON_HOST)

    def counts(self, device: int) -> Counts:
        """What is where."""
        told = Counts()
        self._native.slip_cuda_count(device, ctypes.byref(told))
        return told


def open_pool(cuda: Any, empty: Callable[[int, int], Any]) -> CudaPool:  # noqa: ANN401 (torch's)
    """For the runtime that torch has loaded; raises CudaPoolError."""
    path = native.library_path()
    if not path.exists():
        raise CudaPoolError(f"{path} is not built")
    try:
        runtime = cuda_runtime.loaded()
    except cuda_runtime.CudaRuntimeError as error:
        raise CudaPoolError(str(error)) from error
    return CudaPool(cuda, empty, str(path), runtime)


def has_pools(cuda: Any) -> bool:  # noqa: ANN401 (torch's)
    """Whether this torch has what is needed."""
    pool = getattr(cuda, "MemPool", None)
    if pool is None or not hasattr(cuda, "use_mem_pool"):
        return False
    return "use_on_oom" in inspect.signature(pool.__init__).parameters


def declared(library: str) -> ctypes.CDLL:
    """The native functions, with what they take and return."""
    found = ctypes.CDLL(library)
    found.slip_cuda_find.argtypes = (ctypes.c_char_p,)
    found.slip_cuda_find.restype = ctypes.c_char_p
    found.slip_cuda_cap.argtypes = (ctypes.c_int, ctypes.c_uint64)
    found.slip_cuda_cap.restype = None
    found.slip_cuda_settle.argtypes = (ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p)
    found.slip_cuda_settle.restype = ctypes.c_uint64
    found.slip_cuda_where.argtypes = (ctypes.c_void_p,)
    found.slip_cuda_where.restype = ctypes.c_int
    found.slip_cuda_count.argtypes = (ctypes.c_int, ctypes.POINTER(Counts))
    found.slip_cuda_count.restype = None
    return found
