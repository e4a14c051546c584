# SPDX-License-Identifier: Apache-2.0
"""Any tensors, any sequence of parking and capping: no bit changes, and no memory is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slipstream.torch_hooks import device as devices
from slipstream.torch_hooks import storages, tier
from slipstream.torch_hooks.copying import HUGE_PAGE_BYTES
from slipstream.torch_hooks.memory import Memory
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.parking import Parking
from slipstream.torch_hooks.spill import Spill
from slipstream.torch_hooks.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.property

DTYPES = [torch.float32, torch.float16, torch.int64, torch.bool, torch.uint8, torch.complex64]

TURNS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda one: one.t(),
    "rows": lambda one: one[::2],
    "columns": lambda one: one[:, : 1 + one.size(1) // 2],
    "expand": lambda one: one[:1].expand(one.size()),
    "copy": lambda one: one.clone(),
}


@pytest.fixture(scope="module", autouse=True)
def small_areas() -> Iterator[None]:
    """Of host memory: slots come from several, and a new one is there at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tier, "_AREA_BYTES", HUGE_PAGE_BYTES)
        yield


@st.composite
def families(draw: st.DrawFn) -> list[torch.Tensor]:
    """Some storages, each with some views that share it."""
    tensors: list[torch.Tensor] = []
    for _ in range(draw(st.integers(1, 5))):
        rows, columns = draw(st.integers(0, 40)), draw(st.integers(1, 40))
        dtype = draw(st.sampled_from(DTYPES))
        base = torch.randint(0, 2, (rows, columns)).to(dtype)
        tensors.append(base)
        for _ in range(draw(st.integers(0, 3))):
            first = draw(st.integers(0, rows))
            step = draw(st.integers(1, 3))
            view = base[first::step]
            tensors.append(view.t() if draw(st.booleans()) else view)
    return tensors


@settings(max_examples=30)  # each looks through all objects of this process
@given(tensors=families(), times=st.integers(1, 2))
def test_whatever_is_parked_comes_back(tensors: list[torch.Tensor], times: int) -> None:
    """Values, shapes, strides, who shares with whom; while parked, nothing is on the device."""
    expected = [one.tolist() for one in tensors]
    shapes = [(one.size(), one.stride(), one.storage_offset()) for one in tensors]
    numbers = [storages.number(one.untyped_storage()) for one in tensors]
    parking, device = Parking(), devices.Cpu()
    for _ in range(times):
        parking.empty(device)
        assert all(one.untyped_storage().nbytes() == 0 for one in tensors)
        assert parking.fill(device)
    assert [one.tolist() for one in tensors] == expected
    assert [(one.size(), one.stride(), one.storage_offset()) for one in tensors] == shapes
    assert [storages.number(one.untyped_storage()) for one in tensors] == numbers


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 400_000), min_size=1, max_size=30),
    order=st.randoms(use_true_random=False),
)
def test_slots_in_use_never_overlap(sizes: list[int], order: object) -> None:
    """Taken and given back in any order, each holds what was written to it."""
    tier = Tier(devices.Cpu().pin)
    held: list[tuple[torch.Tensor, int]] = []
    for number, nbytes in enumerate(sizes):
        slot = tier.take(nbytes)
        assert slot.numel() >= nbytes
        slot.fill_(number)
        held.append((slot, number))
        if order.random() < 0.4:  # type: ignore[attr-defined]  # a random.Random
            tier.give_back(held.pop(order.randrange(len(held)))[0])  # type: ignore[attr-defined]
    for slot, number in held:
        assert bool((slot == number).all())


@settings(max_examples=40)
@given(
    budget_bytes=st.integers(0, 1 << 21),
    shape=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    turns=st.lists(st.sampled_from(sorted(TURNS)), max_size=4),
)
def test_what_was_saved_is_what_is_given_back(
    budget_bytes: int, shape: tuple[int, int], turns: list[str]
) -> None:
    """Any view of any tensor, kept or spilled, asked for twice."""
    device = devices.Cpu()
    spill = Spill(device, Tier(device.pin), Notes(""))
    spill.budget_bytes = budget_bytes
    tensor = torch.randn(*shape)
    handles: list[tuple[object, list[float]]] = []
    for turn in ["copy", *turns]:
        tensor = TURNS[turn](tensor)
        handles.append((spill.pack(tensor), tensor.tolist()))
    assert spill.kept_bytes <= budget_bytes
    for _ in range(2):
        for handle, expected in handles:
            assert spill.unpack(handle).tolist() == expected


@settings(max_examples=5)  # as above, several times
@example(caps=[1 << 20, 5000, 0, 1])
@given(caps=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=5))
def test_any_sequence_of_caps_learns_the_same(caps: list[int]) -> None:
    """With parking in between."""

    def learn(memory: Memory | None) -> list[list[float]]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Linear(96, 64)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        inputs = torch.randn(70, 64)
        for cap in caps:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            if memory:
                memory.cap(cap)
                memory.park(lambda _: None)
        return [one.tolist() for one in model.parameters()]

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    memory = Memory(Notes(""))
    try:
        assert learn(memory) == learn(None)
    finally:
        memory.close()
        torch.set_num_threads(threads)
