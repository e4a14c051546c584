# SPDX-License-Identifier: Apache-2.0
"""Saved activations under a budget: the same gradients, and nothing kept for longer than needed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from slipstream.torch_hooks import device as devices
from slipstream.torch_hooks import host_memory, storages
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.spill import SMALL_BYTES, Spill
from slipstream.torch_hooks.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

pytestmark = pytest.mark.unit

SIDE = 128
LARGE = SIDE * SIDE * 4
assert LARGE > SMALL_BYTES
COMPILED = """
import torch
import torch._functorch.config
from slipstream.torch_hooks import device as devices
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.spill import Spill
from slipstream.torch_hooks.tier import Tier
torch._functorch.config.donated_buffer = False  # else torch refuses to keep a compiled graph
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(128, 256), torch.nn.GELU(), torch.nn.Linear(256, 128))
compiled = torch.compile(model)
inputs = torch.randn(64, 128)
def gradients():
    model.zero_grad()
    loss = compiled(inputs).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    return [one.grad.clone() for one in model.parameters()]
expected = gradients()
device = devices.Cpu()
spill = Spill(device, Tier(device.pin), Notes("1"))
with torch.autograd.graph.saved_tensors_hooks(spill.pack, spill.unpack):
    found = gradients()
print(spill.spilled > 0, all(map(torch.equal, expected, found)))
"""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in one order, so that bits can be compared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def spill() -> Spill:
    """With no budget at all: everything that can be spilled is."""
    device = devices.Cpu()
    return Spill(device, Tier(device.pin), Notes(""))


def chained(weight: Tensor, inputs: Tensor) -> Tensor:
    """Saves outputs (exp), inputs (mul), views with other strides (t) and the same one twice."""
    hidden = (inputs @ weight).exp()
    turned = hidden.t() * hidden
    both = torch.cat([turned, hidden], dim=1)
    left, right = both[:, :SIDE], both[:, SIDE:]  # views with gaps
    return (left * right).tanh().sum() + (hidden * hidden.expand(2, SIDE, SIDE)).mean()


def gradient(
    function: Callable[[Tensor, Tensor], Tensor], *, passes: int = 1, spill: Spill | None = None
) -> Tensor:
    """Of a seeded weight; with several passes over one graph that is kept."""
    torch.manual_seed(2)
    weight = (0.01 * torch.randn(SIDE, SIDE)).requires_grad_()
    inputs = torch.randn(SIDE, SIDE)
    if spill:
        with saved_tensors_hooks(spill.pack, spill.unpack):
            loss = function(weight, inputs)
    else:
        loss = function(weight, inputs)
    for number in range(passes):
        loss.backward(retain_graph=number + 1 < passes)  # type: ignore[no-untyped-call]  # torch's
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("budget_bytes", [0, LARGE, 3 * LARGE, 1 << 30])
@pytest.mark.parametrize("passes", [1, 3])
def test_gradients_are_the_same_to_the_bit(spill: Spill, budget_bytes: int, passes: int) -> None:
    """Whatever part of the saved tensors is spilled, and however often the graph is used."""
    spill.budget_bytes = budget_bytes
    expected = gradient(chained, passes=passes)
    assert torch.equal(gradient(chained, passes=passes, spill=spill), expected)
    assert (spill.spilled > 0) == (budget_bytes < 1 << 30)


def test_a_profile_shows_what_is_spilled_and_brought_back(spill: Spill) -> None:
    """By a label of ours around each copy."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        gradient(chained, spill=spill)
    (label,) = (one for one in profile.key_averages() if "slipstream" in one.key)
    assert (label.key, label.count >= 2 * spill.spilled > 0) == ("slipstream: spill", True)


def test_second_derivatives_are_the_same(spill: Spill) -> None:
    """A graph of a graph (create_graph)."""

    def twice(weight: Tensor, inputs: Tensor) -> Tensor:
        first = torch.autograd.grad((inputs @ weight).sin().sum(), weight, create_graph=True)[0]
        return first.square().sum()

    assert torch.equal(gradient(twice, spill=spill), gradient(twice))
    assert spill.spilled > 0


def test_a_slot_is_not_used_again_while_its_graph_lives(spill: Spill) -> None:
    """Two graphs that are kept, asked in turns: neither finds the other's numbers."""
    weights = [torch.full((SIDE, SIDE), value, requires_grad=True) for value in (0.1, 0.2)]
    with saved_tensors_hooks(spill.pack, spill.unpack):
        losses = [weight.exp().square().sum() for weight in weights]
        for _ in range(3):
            for loss in losses:
                loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]  # torch's
                other = torch.zeros(SIDE, SIDE, requires_grad=True).exp().square().exp()
        del other
    for weight in weights:
        assert weight.grad is not None
        assert torch.allclose(weight.grad, 6 * (2 * weight).exp().detach())


def test_slots_are_used_again_when_the_graph_is_gone(spill: Spill) -> None:
    """Ten mini-batches need no more host memory than one."""
    gradient(chained, spill=spill)
    cut = spill._tier._left  # noqa: SLF001 (what has been cut off is what counts)
    for _ in range(10):
        gradient(chained, spill=spill)
    assert spill._tier._left == cut  # noqa: SLF001 (as above)


def test_the_budget_is_kept_to_and_given_back(spill: Spill) -> None:
    """What stays counts once for each storage, until the graph lets go of it."""
    spill.budget_bytes = 2 * LARGE
    weight = torch.zeros(SIDE, SIDE, requires_grad=True)
    for _ in range(3):
        with saved_tensors_hooks(spill.pack, spill.unpack):
            one = weight.exp()
            loss = (one * one).exp().exp().exp().sum()
            assert spill.kept_bytes == 2 * LARGE
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
        del one, loss
    with saved_tensors_hooks(spill.pack, spill.unpack):
        weight.exp()
        weight.exp()
    assert spill.kept_bytes <= 2 * LARGE


def test_a_kept_output_dies_with_its_graph(spill: Spill) -> None:
    """Not detached it would hold its own graph, for ever and without a cycle the collector sees."""
    spill.budget_bytes = 1 << 30
    weight = torch.zeros(SIDE, SIDE, requires_grad=True)
    with saved_tensors_hooks(spill.pack, spill.unpack):
        output = weight.exp()
    memory = storages.Reference(output.untyped_storage())
    assert memory.storage() is not None
    del output
    assert memory.storage() is None


def test_parameters_and_what_is_small_are_left_alone(spill: Spill) -> None:
    """A parameter is on the device anyway; a small tensor is not worth the way."""
    weight = torch.nn.Parameter(torch.ones(SIDE, SIDE))
    small = torch.ones(4, requires_grad=True)
    with saved_tensors_hooks(spill.pack, spill.unpack):
        kept = (torch.ones(1, SIDE) @ weight.t()).sum() + small.exp().sum()
    kept.backward()  # type: ignore[no-untyped-call]  # torch's
    assert spill.spilled == 0


def test_who_changes_a_saved_tensor_hears_of_it_as_ever(spill: Spill) -> None:
    """Torch's own error, not a wrong gradient."""
    spill.budget_bytes = 1 << 30
    weight = torch.zeros(SIDE, SIDE, requires_grad=True)
    with saved_tensors_hooks(spill.pack, spill.unpack):
        output = weight.exp()
    output.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()  # type: ignore[no-untyped-call]  # torch's


def test_a_spilled_tensor_that_is_changed_was_already_copied(spill: Spill) -> None:
    """Each version has its own copy, and each use finds the one that it saved."""
    weight = torch.full((SIDE, SIDE), 2.0, requires_grad=True)
    with saved_tensors_hooks(spill.pack, spill.unpack):
        factor = torch.full((SIDE, SIDE), 3.0)
        first = (weight * factor).sum()
        factor.mul_(2)
        second = (weight * factor).sum()
    (first + second).backward()  # type: ignore[no-untyped-call]  # torch's
    assert weight.grad is not None
    assert torch.equal(weight.grad, torch.full((SIDE, SIDE), 9.0))


def test_a_full_host_keeps_tensors_on_the_device(
    spill: Spill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the cap, but alive; noted."""
    monkeypatch.setattr(host_memory, "room_bytes", lambda: 0)
    expected = gradient(chained)
    assert torch.equal(gradient(chained, spill=spill), expected)
    assert spill.spilled == 0
    assert "not spilled" in spill._notes.counts  # noqa: SLF001 (who hears it is another matter)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64])
def test_every_kind_of_number_comes_back(spill: Spill, dtype: torch.dtype) -> None:
    """Also a conjugate, which is a view with a mark that bytes do not show."""
    values = torch.randn(SIDE, SIDE, dtype=torch.float64).to(dtype)
    for tensor in (values, values.t(), values[:, : SIDE // 2 + 20], values[3:], values.conj()):
        handle = spill.pack(tensor)
        back = spill.unpack(handle)
        assert torch.equal(back, tensor)
        assert back.dtype == dtype
    assert spill.spilled >= 3


def test_checkpointed_activations_are_recomputed_as_ever(spill: Spill) -> None:
    """Torch's own activation checkpointing uses the same hooks, inside ours."""
    from torch.utils.checkpoint import checkpoint  # noqa: PLC0415 (only here)

    def recomputed(weight: Tensor, inputs: Tensor) -> Tensor:
        result: Tensor = checkpoint(chained, weight, inputs, use_reentrant=False)
        return result

    assert torch.equal(gradient(recomputed, spill=spill), gradient(chained))


def test_compiled_graphs_spill_too(tmp_path: Path) -> None:
    """In a process of its own, with a cache of its own, for a graph that is used twice."""
    done = subprocess.run(
        [sys.executable, "-c", COMPILED],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True True\n", done.stderr


def test_slots_are_found_by_size_and_waste_little() -> None:
    """A slot given back serves sizes down to half of it; what is cut is an eighth too large."""
    tier = Tier(devices.Cpu().pin)
    for nbytes in (5000, 100_000, 1_234_567):
        slot = tier.take(nbytes)
        assert nbytes <= slot.numel() <= nbytes * 9 // 8
        address = slot.data_ptr()
        assert host_memory.is_ours(address)
        tier.give_back(slot)
        assert tier.take(nbytes * 2 // 3).data_ptr() == address
    assert tier.take(777, exact=True).numel() == 777
