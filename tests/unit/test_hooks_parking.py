# SPDX-License-Identifier: Apache-2.0
"""Emptying the device and filling it again, in this process: to the bit, and nobody notices."""

from __future__ import annotations

import copy
import gc
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from slipstream.torch_hooks import device as devices
from slipstream.torch_hooks import host_memory, native_objects, storages
from slipstream.torch_hooks.host_memory import Area, HostMemoryError
from slipstream.torch_hooks.memory import Memory
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.parking import Parking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in one order, so that bits can be compared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Trained:
    """A small training that has begun."""

    def __init__(self, optimizer: Callable[..., torch.optim.Optimizer]) -> None:
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4)
        )
        self.optimizer = optimizer(self.model.parameters(), lr=0.1)
        self.inputs = torch.randn(8, 16)
        self.minibatch()

    def minibatch(self) -> None:
        """One more."""
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()

    def bits(self) -> list[torch.Tensor]:
        """All that it knows."""
        state = self.optimizer.state_dict()["state"]
        moments = [one for each in state.values() for one in each.values() if one is not None]
        return [*self.model.state_dict().values(), *moments]


def momentum(parameters: object, lr: float) -> torch.optim.Optimizer:
    """SGD with one buffer for each parameter."""
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)  # type: ignore[arg-type]


@pytest.mark.parametrize("optimizer", [momentum, torch.optim.Adam, torch.optim.Adagrad])
def test_a_training_goes_on_as_if_it_had_never_parked(
    optimizer: Callable[..., torch.optim.Optimizer],
) -> None:
    """Parameters, buffers, gradients and optimizer state; three times, then on."""
    training = Trained(optimizer)
    never_parked = copy.deepcopy(training)
    parking, device = Parking(), devices.Cpu()
    for _ in range(3):
        parking.empty(device)
        assert parking.fill(device)
        training.minibatch()
        never_parked.minibatch()
    for one, other in zip(training.bits(), never_parked.bits(), strict=True):
        assert torch.equal(one, other)


def test_the_memory_is_really_gone_while_parked() -> None:
    """By the kernel's own count, and back after that."""
    tensor = torch.ones(64 << 20, dtype=torch.uint8)
    parking, device = Parking(), devices.Cpu()
    parking.empty(device)
    assert parking.fill(device)  # from now on the host's side is there
    before = resident_kib()
    parking.empty(device)
    parked = resident_kib()
    assert tensor.untyped_storage().nbytes() == 0
    assert before - parked > 48 << 10  # of 64: others come and go
    assert parking.fill(device)
    assert tensor.untyped_storage().nbytes() == 64 << 20
    assert int(tensor.sum(dtype=torch.int64)) == 64 << 20


def test_views_and_those_who_share_stay_together() -> None:
    """One storage under five names: the same objects over the same memory afterwards."""
    base = torch.arange(100.0)
    view, turned, bits = base[10:20], base.view(10, 10).t(), base.view(torch.int32)
    alias = torch.empty(0).set_(base.untyped_storage())
    names = [id(one) for one in (base, view, turned, bits, alias)]
    expected = [one.clone() for one in (base, view, turned, bits, alias)]
    parking, device = Parking(), devices.Cpu()
    parking.empty(device)
    assert base.untyped_storage().nbytes() == 0
    assert parking.fill(device)
    assert [id(one) for one in (base, view, turned, bits, alias)] == names
    for one, other in zip((base, view, turned, bits, alias), expected, strict=True):
        assert torch.equal(one, other)
    base[10] = -1.0
    assert view[0] == turned[0, 1] == alias[10] == -1.0


def test_parking_between_forward_and_backward_changes_no_gradient() -> None:
    """The graph holds the same storages, and finds them filled again."""
    weight = torch.randn(8, 8, requires_grad=True)
    inputs = torch.randn(8, 8)
    (inputs @ weight).tanh().square().sum().backward()  # type: ignore[no-untyped-call]  # torch's
    assert weight.grad is not None
    expected, weight.grad = weight.grad, None
    hidden = (inputs @ weight).tanh()
    loss = hidden.square().sum()
    parking, device = Parking(), devices.Cpu()
    parking.empty(device)
    assert hidden.untyped_storage().nbytes() == 0
    assert parking.fill(device)
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    assert weight.grad is not None
    assert torch.equal(weight.grad, expected)


def test_what_others_look_at_stays() -> None:
    """Numpy, a buffer of the user's, shared memory: their address is known elsewhere."""
    seen_by_numpy = torch.ones(1000)
    array = seen_by_numpy.numpy()
    of_a_buffer = torch.frombuffer(bytearray(4000), dtype=torch.float32)
    shared = torch.ones(1000).share_memory_()  # type: ignore[no-untyped-call]  # torch's
    plain = torch.ones(1000)
    found = storages.alive(devices.Cpu().holds)
    movable = {storages.number(one) for one in found.movable}
    assert storages.number(plain.untyped_storage()) in movable
    for one in (seen_by_numpy, of_a_buffer, shared):
        assert storages.number(one.untyped_storage()) not in movable
    assert found.stuck_bytes >= 12000
    parking, device = Parking(), devices.Cpu()
    assert parking.empty(device) >= 12000
    assert array.sum() == shared.sum() == 1000
    assert parking.fill(device)


def test_tensors_without_memory_are_passed_over() -> None:
    """Fake, sparse, on no device, empty: there is nothing to move."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415 (slow to import)

    with FakeTensorMode():
        fake = torch.empty(10)
    for one in (fake, torch.eye(3).to_sparse(), torch.empty(5, device="meta"), torch.empty(0)):
        assert storages.storage_of(one) is None
    found = storages.alive(devices.Cpu().holds)
    assert all(storage.nbytes() for storage in found.movable)
    parking, device = Parking(), devices.Cpu()
    parking.empty(device)
    assert parking.fill(device)


def test_tensors_are_the_same_whoever_looks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native code finds what Python would; also more of them than it has room for at first."""

    class Odd(torch.Tensor):
        """Of a class that comes late."""

    many = [torch.empty(1) for _ in range(5000)]
    odd = torch.ones(3).as_subclass(Odd)
    natively = {id(one) for one in storages.instances(torch.Tensor)}
    assert {id(one) for one in (*many, odd)} <= natively
    monkeypatch.setattr(native_objects, "of_types", lambda *_: None)
    assert {id(one) for one in storages.instances(torch.Tensor)} == natively
    assert {id(one) for one in storages.instances(Odd)} == {id(odd)}


def test_what_the_collector_was_told_to_leave_alone_is_parked_too() -> None:
    """Programs call gc.freeze() for speed; their model is on the device all the same."""
    tensor = torch.ones(1000)
    parking, device = Parking(), devices.Cpu()
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        parking.empty(device)
        assert tensor.untyped_storage().nbytes() == 0
        assert parking.fill(device)
        assert gc.get_freeze_count() >= frozen // 2, "it is left alone as before"
    finally:
        gc.unfreeze()
    assert torch.equal(tensor, torch.ones(1000))


def test_a_class_of_the_users_is_parked_like_any_tensor() -> None:
    """Parameters are one; a subclass in a script is another."""

    class Labelled(torch.Tensor):
        """A tensor with a name."""

    mine = torch.ones(1000).as_subclass(Labelled)
    parking, device = Parking(), devices.Cpu()
    parking.empty(device)
    assert mine.untyped_storage().nbytes() == 0
    assert parking.fill(device)
    assert torch.equal(mine, torch.ones(1000))


def test_an_interrupt_while_parked_finds_the_tensors_filled() -> None:
    """Ctrl-C goes to the program, which may want to save its model."""
    tensor = torch.arange(1000)

    def stand_still(emptied: bool) -> None:  # noqa: FBT001 (the callback's signature)
        assert emptied
        assert tensor.untyped_storage().nbytes() == 0
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Memory(Notes("")).park(stand_still)
    assert torch.equal(tensor, torch.arange(1000))


def test_an_interrupt_half_way_out_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After any number of copies, the others were not yet moved and these come back."""
    tensors = [torch.full((100,), value) for value in range(6)]

    class Struck(devices.Cpu):
        """Interrupted at one of its copies, which it makes one by one, as CUDA does."""

        left = 0
        left_on_the_way_back = 0
        copy_all = devices.Device.copy_all

        def come_back(self, nbytes: int, begins: Callable[[], None] = lambda: None) -> bool:
            self.left = self.left_on_the_way_back
            return super().come_back(nbytes, begins)

        def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            super().copy(destination, source)

    for out, back in ((1, 0), (2, 0), (5, 0), (0, 1), (0, 3)):
        device = Struck()
        device.left, device.left_on_the_way_back = out, back
        monkeypatch.setattr(devices, "current", lambda device=device: device)
        with pytest.raises(KeyboardInterrupt):
            Memory(Notes("")).park(lambda _: None)
        for value, tensor in enumerate(tensors):
            assert torch.equal(tensor, torch.full((100,), value))


def test_a_neighbour_that_is_faster_gets_the_memory() -> None:
    """Out of memory half-way back: all that was grown is given up, nothing is lost."""

    class Taken(devices.Cpu):
        """Has no memory left for the second of its copies back, the first time."""

        is_taken = True

        def copy_all(
            self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]], *, fresh: bool = False
        ) -> None:
            if fresh and self.is_taken:
                self.is_taken = False
                super().copy_all(pairs[:1], fresh=True)
                raise torch.cuda.OutOfMemoryError
            super().copy_all(pairs, fresh=fresh)

    tensors = [torch.full((1000,), value) for value in range(4)]
    parking, device = Parking(), Taken()
    parking.empty(device)
    assert not parking.fill(device)
    assert all(not one.untyped_storage().nbytes() for one in tensors)
    assert parking.fill(device)
    for value, tensor in enumerate(tensors):
        assert torch.equal(tensor, torch.full((1000,), value))


def test_without_room_on_the_host_it_keeps_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job must not be killed for what we do to help others: it stands still and says so."""
    tensor = torch.ones(1000)
    monkeypatch.setattr(host_memory, "room_bytes", lambda: 1 << 20)
    notes = Notes("")
    told: list[bool] = []
    Memory(notes).park(told.append)
    assert told == [False]
    assert notes.counts == {"not parked": 1}
    assert torch.equal(tensor, torch.ones(1000))
    with pytest.raises(HostMemoryError, match="4 MiB wanted, 1 MiB free"):
        Area(4 << 20, pin=devices.Cpu().pin)


def test_a_torch_that_is_not_as_we_know_it_keeps_its_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is raised: it stands still and says so, and can still be asked to go on."""

    def unknown(*_: object) -> None:
        raise AttributeError("no such thing")

    monkeypatch.setattr(storages, "alive", unknown)
    notes, stood = Notes(""), list[bool]()
    Memory(notes).park(stood.append)
    assert (stood, notes.counts) == ([False], {"not parked": 1})


def test_a_torch_that_does_not_say_what_can_be_resized_is_tried() -> None:
    """It refuses what others look at, and leaves all as it was."""

    class Old:
        def __init__(self, tensor: torch.Tensor) -> None:
            self._storage = tensor.untyped_storage()
            self.nbytes = self._storage.nbytes
            self.resize_ = self._storage.resize_
            self.is_cuda = False
            self.is_shared = self._storage.is_shared

    own = torch.arange(4.0)
    assert storages.is_movable(Old(own))  # type: ignore[arg-type]  # as torch 2.1 has them
    assert torch.equal(own, torch.arange(4.0))
    assert not storages.is_movable(Old(torch.from_numpy(np.ones(4))))  # type: ignore[arg-type]


def test_a_device_that_comes_back_later_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """No room at first: it stands still on, and tries again."""

    class Full(devices.Cpu):
        """Has room at the third try."""

        tries = 0

        def come_back(self, nbytes: int, begins: Callable[[], None] = lambda: None) -> bool:
            self.tries += 1
            return self.tries == 3 and super().come_back(nbytes, begins)

    tensor = torch.arange(10)
    monkeypatch.setattr(devices, "current", Full)
    told: list[bool] = []
    Memory(Notes("")).park(told.append, lambda: told.append(False))
    assert told == [True, True, True, False], "and says when there is room"
    assert torch.equal(tensor, torch.arange(10))


def test_the_rooms_of_all_groups_above_count() -> None:
    """What is left on the host bounds it; more than nothing, less than the machine."""
    with mmap.mmap(-1, 4096):
        assert any(  # others may take some between the two looks
            0 < host_memory.room_bytes() <= host_memory._free_on_host()  # noqa: SLF001 (the bound itself)
            for _ in range(100)
        )


def resident_kib() -> int:
    """What the kernel counts as this process's own memory."""
    told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(told["RssAnon"].split()[0])
