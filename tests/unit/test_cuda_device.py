# SPDX-License-Identifier: Apache-2.0
"""The CUDA device as parking and caps use it, over a `torch.cuda` and a runtime without a GPU.

That the names exist in this torch is checked; what they do on a GPU is not.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

from cuda_rig import Cuda as Pools
from cuda_rig import Rig
from slipstream.torch_hooks import cuda_pool, cuda_runtime, host_memory, rate
from slipstream.torch_hooks.cuda_device import Cuda
from slipstream.torch_hooks.cuda_pool import CudaPool, CudaPoolError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.unit

MIB = 1 << 20
TOTAL = 1 << 30


class Fake:
    """What the device asks of `torch.cuda`, and what it was told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fractions: list[tuple[float, int]] = []
        self.emptied = 0
        self.free_bytes = [TOTAL, TOTAL]
        self.synchronized: list[int] = []
        replaced: dict[str, Callable[..., Any]] = {
            "device_count": lambda: 2,
            "memory_reserved": lambda index: (index + 1) * MIB,
            "mem_get_info": lambda index: (self.free_bytes[index], TOTAL),
            "synchronize": self.synchronized.append,
            "empty_cache": self._empty_cache,
            "get_device_properties": lambda _: types.SimpleNamespace(total_memory=TOTAL),
            "set_per_process_memory_fraction": lambda part, at: self.fractions.append((part, at)),
        }
        for name, function in replaced.items():
            assert callable(getattr(torch.cuda, name)), "this torch has no such function"
            monkeypatch.setattr(torch.cuda, name, function)

    def _empty_cache(self) -> None:
        self.emptied += 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Two GPUs of a GiB each."""
    return Fake(monkeypatch)


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """Managed memory for them."""
    made, pools = Rig(capacity=TOTAL), Pools()

    def opened(*_: object) -> CudaPool:
        return CudaPool(pools, pools.empty, str(made.library), str(made.runtime))

    monkeypatch.setattr(cuda_pool, "open_pool", opened)
    monkeypatch.setattr(host_memory, "room_bytes", lambda: 8 * TOTAL)
    return made


def test_a_cap_is_a_fraction_with_a_reserve_on_the_host_beside_it(cuda: Fake, rig: Rig) -> None:
    """Torch may have both; without a cap it has all, and the reserve is given back."""
    device = Cuda()
    assert not device.cap(TOTAL // 4)
    assert (device.reaches_host, device.shortcoming) == (True, "")
    assert cuda.fractions == [(1.0, 0), (1.0, 0), (1.0, 1), (1.0, 1)]  # a quarter and three
    assert rig.stub.stub_used(-1) >= 2 * 3 * TOTAL // 4
    told = len(cuda.fractions)
    assert not device.cap(TOTAL // 4), "the same again costs nothing"
    assert len(cuda.fractions) == told
    assert device.cap(0)
    assert cuda.fractions[told:] == [(1.0, 0), (1.0, 1)]
    assert rig.stub.stub_used(-1) == 0
    assert cuda.emptied == 2


def test_a_host_with_little_room_makes_a_smaller_reserve(
    cuda: Fake, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of what is there for all GPUs: torch is told of as much as there will be."""
    monkeypatch.setattr(host_memory, "room_bytes", lambda: 512 * MIB)
    device = Cuda()
    assert not device.cap(TOTAL // 4)
    assert cuda.fractions == [(1.0, 0), (0.375, 0), (1.0, 1), (0.375, 1)]
    assert rig.stub.stub_used(-1) >= 256 * MIB


@pytest.mark.parametrize("error", [CudaPoolError("none here"), OSError("no library")])
def test_without_managed_memory_a_cap_is_for_activations_alone(
    cuda: Fake, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """It is said why, nothing is set, and nothing raises."""

    def none(*_: object) -> CudaPool:
        raise error

    monkeypatch.setattr(cuda_pool, "open_pool", none)
    device = Cuda()
    assert not device.cap(TOTAL // 4)
    assert (device.reaches_host, cuda.fractions) == (False, [])
    assert device.shortcoming == f"no managed memory: {error}"
    assert device.cap(0)


def test_a_reserve_that_cannot_be_had_is_said(cuda: Fake, rig: Rig) -> None:
    """The cap holds all the same."""
    device = Cuda()
    device.cap(TOTAL)
    assert rig.stub.stub_used(-1) == 0
    cuda.fractions.clear()

    def refuse(_device: int, nbytes: int) -> None:
        if nbytes:
            raise CudaPoolError("torch does not ask")

    pool = device.places(None, torch.device("cuda", 0))._pool  # type: ignore[arg-type, attr-defined]  # noqa: SLF001
    pool.hold = refuse
    assert not device.cap(TOTAL // 2)
    assert device.shortcoming == "no reserve: torch does not ask"
    assert cuda.fractions == [(1.0, 0), (0.5, 0), (1.0, 1), (0.5, 1)]


def test_copies_go_in_pieces_that_wait_for_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    """And every byte arrives."""
    taken: list[int] = []
    monkeypatch.setattr(rate.Rate, "take", lambda _, nbytes: taken.append(nbytes))
    source = torch.randint(0, 255, (2 * rate.CHUNK_BYTES + 5,), dtype=torch.uint8)
    target = torch.zeros_like(source)
    Cuda().copy(target, source)
    assert torch.equal(source, target)
    assert taken == [rate.CHUNK_BYTES, rate.CHUNK_BYTES, 5]


def test_a_device_is_waited_for_emptied_and_counted(cuda: Fake) -> None:
    """All of its GPUs."""
    device = Cuda()
    device.synchronize()
    device.release_caches()
    assert (cuda.synchronized, cuda.emptied, device.most_bytes()) == ([0, 1], 1, 3 * MIB)


def test_who_comes_back_needs_room(cuda: Fake) -> None:
    """On each of its GPUs: room on one is none for another."""
    cuda.free_bytes = [100, 200]
    assert Cuda().has_room({0: 100, 1: 200})
    assert not Cuda().has_room({0: 101})
    assert not Cuda().has_room({0: 10, 1: 201})
    assert Cuda().has_room({})


def test_graphs_keep_everything_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have captured addresses."""
    assert Cuda().why_stuck() == ""
    monkeypatch.setattr(cuda_runtime, "graphs", lambda: 2)
    assert Cuda().why_stuck() == "2 CUDA graphs hold addresses"


@pytest.mark.parametrize(("error", "pinned"), [(0, True), (2, False)])
def test_pages_that_cannot_be_pinned_are_not(
    monkeypatch: pytest.MonkeyPatch, *, error: int, pinned: bool
) -> None:
    """The copy is slower then, no more."""
    runtime = types.SimpleNamespace(cudaHostRegister=lambda *_: error)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    assert Cuda().pin(torch.zeros(10, dtype=torch.uint8)) is pinned
