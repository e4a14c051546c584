# SPDX-License-Identifier: Apache-2.0
"""CUDA memory beyond a cap, against a runtime that really refuses. No GPU has seen any of this."""

from __future__ import annotations

import random
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from cuda_rig import HOST, NATIVE, Cuda, Rig
from slipstream.torch_hooks import cuda_pool
from slipstream.torch_hooks.cuda_pool import NOWHERE, ON_DEVICE, ON_HOST, CudaPool, CudaPoolError
from slipstream.torch_hooks.host_memory import HostMemoryError

pytestmark = pytest.mark.unit

VERSIONS = pytest.mark.parametrize("version", [12040, 13000])


@VERSIONS
def test_up_to_the_cap_memory_is_on_the_device_and_beyond_it_on_the_host(version: int) -> None:
    """There with a preference for the host, and mapped for the device: also for CUDA 13."""
    rig = Rig(capacity=1000, version=version).find()
    rig.pool.slip_cuda_cap(2, 100)
    first, second, third = rig.alloc(60, 2), rig.alloc(50, 2), rig.alloc(40, 2)
    assert [rig.pool.slip_cuda_where(one) for one in (first, second, third)] == [
        *(ON_DEVICE, ON_HOST, ON_DEVICE)
    ]
    assert (rig.stub.stub_used(2), rig.stub.stub_used(HOST)) == (100, 50)
    assert (rig.stub.stub_preferred(second), rig.stub.stub_accessed_by(second)) == (HOST, 2)
    rig.books_agree()
    for one in (second, first, third):
        rig.free(one, 0, 2)
    rig.books_agree()
    assert (rig.counts(2).device_bytes, rig.counts(2).host_bytes) == (0, 0)
    assert rig.counts(2).most_device_bytes == 100


def test_what_cuda_refuses_below_the_cap_is_on_the_host() -> None:
    """Others have the memory; and without a cap all of the device may be used."""
    rig = Rig(capacity=100).find()
    assert rig.pool.slip_cuda_where(rig.alloc(80)) == ON_DEVICE
    assert rig.pool.slip_cuda_where(rig.alloc(30)) == ON_HOST
    assert rig.counts().refused == 1
    rig.books_agree()


def test_when_the_host_is_full_too_there_is_none() -> None:
    """Null is what torch takes for out of memory."""
    rig = Rig(capacity=100, host_capacity=10).find()
    assert rig.alloc(200) is None
    assert rig.alloc(1 << 62) is None
    assert rig.counts().failed == 2
    assert [rig.alloc(size) for size in (0, -5)] == [None, None]
    assert [rig.alloc(10, device) for device in (-1, 64)] == [None, None]
    rig.books_agree()


@VERSIONS
def test_a_cap_below_what_is_used_moves_only_what_can_be_moved(version: int) -> None:
    """Addresses stay; device memory stays; managed memory goes and comes with the cap."""
    rig = Rig(capacity=1000, version=version).find()
    rig.pool.slip_cuda_cap(0, 100)
    fixed, managed, other = rig.alloc(70), rig.alloc(60), rig.alloc(200)
    assert rig.settle() == 0
    rig.pool.slip_cuda_cap(0, 150)
    assert rig.settle() == 60
    assert rig.pool.slip_cuda_where(managed) == ON_DEVICE
    assert rig.stub.stub_preferred(managed) == 0
    rig.books_agree()
    rig.pool.slip_cuda_cap(0, 50)
    assert rig.counts().device_bytes == 130
    assert rig.settle() == 60
    assert [rig.pool.slip_cuda_where(one) for one in (fixed, managed)] == [ON_DEVICE, ON_HOST]
    rig.books_agree()
    assert rig.pool.slip_cuda_where(rig.alloc(1)) == ON_HOST
    rig.pool.slip_cuda_cap(0, 1000)
    assert rig.settle(at_most=1) in (1, 60, 200)
    assert rig.settle() > 0
    assert rig.settle() == 0
    for one in (managed, fixed, other):
        rig.free(one)
    rig.books_agree()


def test_what_is_not_ours_is_not_given_back() -> None:
    """Neither a stranger's memory nor ours a second time; both are counted, CUDA hears nothing."""
    rig = Rig(capacity=100).find()
    one = rig.alloc(10)
    assert one
    rig.free(one + 1)
    rig.free(0x1234, 10, 99)
    rig.free(one)
    rig.free(one)
    rig.free(None)
    assert rig.counts().unknown == 3
    assert rig.pool.slip_cuda_where(one) == NOWHERE
    rig.books_agree()


def test_inside_a_piece_is_where_the_piece_is() -> None:
    """Torch cuts what it gets."""
    rig = Rig(capacity=100).find()
    rig.pool.slip_cuda_cap(0, 0)
    one = rig.alloc(10)
    assert one
    assert [rig.pool.slip_cuda_where(one + at) for at in (0, 9)] == [ON_HOST, ON_HOST]
    rig.free(one)


@pytest.mark.parametrize("without", ["prefetch", "advise"])
def test_a_runtime_that_does_less_is_taken_as_it_is(without: str) -> None:
    """What cannot be moved stays where it is, also in the books."""
    rig = Rig(capacity=100, without=without).find()
    rig.pool.slip_cuda_cap(0, 0)
    one = rig.alloc(40)
    rig.pool.slip_cuda_cap(0, 100)
    assert rig.settle() == (0 if without == "prefetch" else 40)
    assert bool(rig.counts().unadvised) is (without == "advise")
    rig.books_agree()
    rig.free(one)
    rig.books_agree()


def test_threads_together_never_go_beyond_the_cap() -> None:
    """Eight that take and give back while the cap changes and memory is moved."""
    rig = Rig(capacity=1 << 40).find()
    rig.pool.slip_cuda_cap(0, 4000)

    def work(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 (no secret)
        held: list[int] = []
        for _ in range(1500):
            if held and chance.random() < 0.5:
                rig.free(held.pop(chance.randrange(len(held))))
            else:
                pointer = rig.alloc(chance.randrange(1, 900))
                assert pointer
                held.append(pointer)
            if seed == 0:
                rig.pool.slip_cuda_cap(0, chance.choice((0, 1000, 4000)))
            if chance.random() < 0.1:
                rig.settle(at_most=2000)
        for pointer in held:
            rig.free(pointer)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert rig.stub.stub_most(0) <= 4000
    assert (rig.counts().device_bytes, rig.counts().host_bytes) == (0, 0)
    assert (rig.counts().unknown, rig.counts().failed) == (0, 0)
    rig.books_agree()


def test_a_library_that_is_no_runtime_is_refused_by_what_it_lacks() -> None:
    """And nothing is allocated without one."""
    rig = Rig(capacity=100)
    assert rig.alloc(10) is None
    rig.free(0x1234)
    assert rig.settle() == 0
    assert rig.pool.slip_cuda_find(b"/nowhere/libcudart.so") == b"the library"
    assert rig.pool.slip_cuda_find(str(rig.library).encode()) == b"cudaRuntimeGetVersion"
    assert rig.alloc(10) is None


def test_the_real_runtime_without_a_gpu_gives_none() -> None:
    """Its functions are found; without a driver there is no memory, and no error is left over."""
    found = sorted(Path("/usr/local").glob("cuda*/lib64/libcudart.so"))
    if not found or torch.cuda.is_available():
        pytest.skip("no CUDA runtime here, or one with a GPU")
    rig = Rig()
    assert rig.pool.slip_cuda_find(str(found[0]).encode()) is None
    assert rig.alloc(1 << 20) is None
    assert rig.counts().failed == 1


def test_what_we_call_is_what_cudas_headers_say(tmp_path: Path) -> None:
    """Compiled by nvcc, with all the assertions in it."""
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc here")
    source = str(NATIVE / "cuda_headers.c")
    done = subprocess.run(
        ["nvcc", "-c", "-o", str(tmp_path / "headers.o"), source],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def opened(rig: Rig, cuda: Cuda) -> CudaPool:
    """The pools of a process, over a rig."""
    return CudaPool(cuda, cuda.empty, str(rig.library), str(rig.runtime))


def test_a_reserve_lies_on_the_host_for_when_torch_is_out_of_memory() -> None:
    """In large and in small pieces; another size replaces it, none gives it back."""
    rig, cuda = Rig(capacity=1 << 30), Cuda()
    pool = opened(rig, cuda)
    pool.hold(1, 50 << 20)
    assert pool.counts(1).host_bytes == (50 + 16) << 20
    pool.hold(1, 50 << 20)
    pool.hold(1, 30 << 20)
    assert (pool.counts(1).host_bytes, pool.counts(1).device_bytes) == ((30 + 16) << 20, 0)
    pool.hold(1, 0)
    assert rig.stub.stub_used(HOST) == 0


def test_what_is_moved_lies_on_the_host_and_comes_back_with_the_cap() -> None:
    """After the device has done what it was at."""
    rig, cuda = Rig(capacity=1 << 30), Cuda()
    pool = opened(rig, cuda)
    address = pool.take(1000, 0)
    assert (pool.is_on_host(address), cuda.synchronized) == (True, [0])
    assert pool.bring_back(0, 1 << 30, 1) == 1000
    assert not pool.is_on_host(address)
    assert pool.bring_back(0, 1 << 30, 1) == 0


def test_a_host_that_is_full_is_said() -> None:
    """As for any other host memory."""
    rig, cuda = Rig(capacity=1 << 30, host_capacity=100), Cuda()
    with pytest.raises(HostMemoryError, match="no managed memory: 1000 bytes"):
        opened(rig, cuda).take(1000, 0)


def test_a_torch_that_does_not_come_to_us_is_found_out() -> None:
    """Expandable segments, say: nothing is promised then."""
    rig, cuda = Rig(capacity=1 << 30), Cuda(asks_allocator=False)
    with pytest.raises(CudaPoolError, match="torch does not ask the pool's allocator"):
        opened(rig, cuda).hold(0, 1000)


def test_a_torch_without_such_pools_is_not_capable() -> None:
    """And says so."""
    rig = Rig(capacity=100)
    old = type("OldCuda", (), {})()
    with pytest.raises(CudaPoolError, match="this torch has no memory pools"):
        CudaPool(old, Cuda().empty, str(rig.library), str(rig.runtime))


def test_this_torch_has_the_pools_and_no_runtime() -> None:
    """What is installed here has the names we use; it is built for the CPU alone."""
    assert cuda_pool.has_pools(torch.cuda)
    if not torch.cuda.is_available():
        # Which of the two, another test decides: it may have loaded the runtime.
        with pytest.raises(CudaPoolError, match=r"not loaded CUDA's runtime|torch makes no pools"):
            cuda_pool.open_pool(torch.cuda, Cuda().empty)
