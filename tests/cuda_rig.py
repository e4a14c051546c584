# SPDX-License-Identifier: Apache-2.0
"""The hooks' CUDA allocator over a runtime that has a capacity and no GPU, for tests."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import itertools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import native
from slipstream.torch_hooks.cuda_pool import Counts, declared

if TYPE_CHECKING:
    from collections.abc import Iterator

NATIVE = Path(__file__).with_name("native")
HOST = -1
_numbers = itertools.count()


@functools.cache
def built() -> Path:
    """A folder with the allocator and the runtime, compiled once per test run."""
    folder = Path(tempfile.mkdtemp(prefix="slipstream-cuda-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    pool = [str(path) for path in native.sources() if path.name.startswith("cuda_")]
    for name, sources in (("pool.so", pool), ("cudart.so", [str(NATIVE / "stub_cudart.c")])):
        subprocess.run(["cc", *native.FLAGS, "-o", str(folder / name), *sources], check=True)
    return folder


def fresh(name: str) -> Path:
    """One of them under a name that nobody has loaded: it has books of its own."""
    return Path(shutil.copy(built() / f"{name}.so", built() / f"{name}-{next(_numbers)}.so"))


class Rig:
    """An allocator and a runtime with books of their own: each is loaded from its own file."""

    def __init__(self, **settings: object) -> None:
        self.library, self.runtime = fresh("pool"), fresh("cudart")
        before = dict(os.environ)
        os.environ.update({f"STUB_CUDA_{name.upper()}": str(one) for name, one in settings.items()})
        self.stub = ctypes.CDLL(str(self.runtime))
        os.environ.clear()
        os.environ.update(before)
        for name in ("stub_used", "stub_most", "stub_wrong_frees"):
            getattr(self.stub, name).restype = ctypes.c_uint64
        for name in ("stub_preferred", "stub_accessed_by"):
            getattr(self.stub, name).argtypes = (ctypes.c_void_p,)
        self.pool = declared(str(self.library))
        self.pool.slip_cuda_alloc.argtypes = (ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p)
        self.pool.slip_cuda_alloc.restype = ctypes.c_void_p
        self.pool.slip_cuda_free.argtypes = (
            *(ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p),
        )
        self.pool.slip_cuda_free.restype = None

    def find(self) -> Rig:
        """Have the allocator find the runtime."""
        assert self.pool.slip_cuda_find(str(self.runtime).encode()) is None
        return self

    def alloc(self, size: int, device: int = 0) -> int | None:
        """As torch calls it."""
        pointer: int | None = self.pool.slip_cuda_alloc(size, device, None)
        return pointer

    def free(self, pointer: int | None, size: int = 0, device: int = 0) -> None:
        """As torch calls it."""
        self.pool.slip_cuda_free(pointer, size, device, None)

    def settle(self, at_most: int = 1 << 60, device: int = 0) -> int:
        """Move what should be moved."""
        return int(self.pool.slip_cuda_settle(device, at_most, None))

    def counts(self, device: int = 0) -> Counts:
        """The allocator's books."""
        told = Counts()
        self.pool.slip_cuda_count(device, ctypes.byref(told))
        return told

    def books_agree(self) -> None:
        """What the allocator counts is what the runtime has."""
        found = [self.counts(device) for device in range(4)]
        assert [one.device_bytes for one in found] == [self.stub.stub_used(at) for at in range(4)]
        assert sum(one.host_bytes for one in found) == self.stub.stub_used(HOST)
        assert self.stub.stub_wrong_frees() == 0
        assert self.stub.cudaGetLastError() == 0, "an error was left for the next to find"


class Cuda:
    """What `torch.cuda` has of pools, as its source has it, over the allocator of a rig.

    A pool keeps what is freed in it. When memory is out, what lies free in a pool with `use_on_oom`
    is used; its allocator is not asked.
    """

    class OutOfMemoryError(RuntimeError):
        """As torch's."""

    def __init__(self, *, asks_allocator: bool = True) -> None:
        self.memory = self
        self.synchronized: list[int] = []
        self._asks_allocator = asks_allocator
        self._current: Any = None

    def CUDAPluggableAllocator(self, path: str, alloc: str, free: str) -> Any:  # noqa: N802, ANN401 (torch's name)
        """Functions of a library."""
        library = ctypes.CDLL(path)
        functions = getattr(library, alloc), getattr(library, free)
        functions[0].restype = ctypes.c_void_p
        allocator = type("Allocator", (), {"functions": functions, "allocator": lambda self: self})
        return allocator()

    class MemPool:
        """A pool."""

        def __init__(self, allocator: Any = None, use_on_oom: bool = False) -> None:  # noqa: ANN401, FBT001, FBT002 (as torch's)
            self.allocator = allocator
            self.use_on_oom = use_on_oom
            self.held: list[tuple[int, int, int]] = []

        def __del__(self) -> None:
            for pointer, size, device in self.held:
                self.allocator.functions[1](
                    *(ctypes.c_void_p(pointer), ctypes.c_ssize_t(size), device, None)
                )

    @contextlib.contextmanager
    def use_mem_pool(self, pool: Any, device: int) -> Iterator[None]:  # noqa: ANN401 (as torch's)
        """What is allocated meanwhile comes from the pool."""
        self._current = pool, device
        yield
        self._current = None

    def synchronize(self, device: int) -> None:
        """Wait for a device."""
        self.synchronized.append(device)

    def empty(self, nbytes: int, device: int) -> int:
        """The address of so many bytes; a pool keeps them when they are dropped."""
        pool, there = self._current
        assert there == device
        if not self._asks_allocator:
            return 0
        pointer = pool.allocator.functions[0](ctypes.c_ssize_t(nbytes), device, None)
        if pointer is None:
            raise self.OutOfMemoryError(f"{nbytes} bytes")
        pool.held.append((pointer, nbytes, device))
        return int(pointer)
