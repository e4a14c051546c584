# SPDX-License-Identifier: Apache-2.0
"""A cap that changes while a training runs: memory follows it, and no bit of the result does."""

from __future__ import annotations

import copy
import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from occupancy_rig import MIB, simulated_node, workers
from parking_rig import page_in, started
from slipstream.torch_hooks import device as devices
from slipstream.torch_hooks import occupancy, saved_hooks, storages
from slipstream.torch_hooks.memory import Memory
from slipstream.torch_hooks.notes import Notes
from slipstream.wire.control_block import Directive, Phase, Request
from slipstream.wire.gpu_state import ENVIRONMENT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.unit

TRAIN = """
import hashlib, sys, torch
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 256))
optimizer = torch.optim.Adam(model.parameters())
inputs = torch.randn(256, 256)
for _ in range(12):
    optimizer.zero_grad()
    model(inputs).square().mean().backward()
    optimizer.step()
digest = hashlib.sha256()
for one in model.parameters():
    digest.update(one.detach().numpy().tobytes())
print(digest.hexdigest())
"""


class Training:
    """Parameters of 1 MiB, with gradients and Adam's moments 4 MiB; all on a device of its own."""

    def __init__(self) -> None:
        torch.manual_seed(5)
        self.model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.inputs = torch.randn(64, 256)
        self.minibatch()

    def minibatch(self) -> None:
        """One more."""
        self.optimizer.zero_grad()
        self.model(self.inputs).square().mean().backward()
        self.optimizer.step()

    def tensors(self) -> list[torch.Tensor]:
        """What lives from one mini-batch to the next."""
        parameters = list(self.model.parameters())
        state = [one for each in self.optimizer.state.values() for one in each.values()]
        return [*parameters, *(one.grad for one in parameters if one.grad is not None), *state]

    def held_bytes(self) -> int:
        """What of that is on the device, not in host memory."""
        device = devices.Cpu()
        found = {storages.number(one.untyped_storage()): one for one in self.tensors()}
        return sum(one.nbytes for one in found.values() if device.holds(one.untyped_storage()))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in one order, so that bits can be compared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def memory() -> Iterator[Memory]:
    """Closed at the end: its hooks are this thread's."""
    made = Memory(Notes(""))
    yield made
    made.close()
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None  # noqa: SLF001 (nothing public tells)


def elsewhere_bytes(training: Training) -> int:
    """What other tests and this process have on the stand-in: it counts against the cap, too."""
    gc.collect()  # else rubbish of theirs may go later, and leave more room than was meant
    found = storages.alive(devices.Cpu().holds)
    total = found.stuck_bytes + sum(one.nbytes() for one in found.movable)
    return total - training.held_bytes()


def test_a_training_under_changing_caps_learns_the_same(memory: Memory) -> None:
    """Down to almost nothing and up again, every mini-batch another; then without."""
    training = Training()
    never_capped = copy.deepcopy(training)
    for cap in (1 << 40, 3 * MIB, 1, 2 * MIB, 5 * MIB, 1 << 40, 1, 0):
        memory.cap(cap)
        training.minibatch()
        never_capped.minibatch()
        for one, other in zip(training.tensors(), never_capped.tensors(), strict=True):
            assert torch.equal(one, other)


def test_state_goes_first_then_parameters_and_they_come_back(memory: Memory) -> None:
    """What is held follows the cap; objects, views and addresses of objects do not change."""
    training = Training()
    views = [one.view(-1)[:10] for one in training.model.parameters()]
    before = [view.clone() for view in views]
    whole = training.held_bytes()
    rest = elsewhere_bytes(training)
    moments = {
        storages.number(one.untyped_storage())
        for each in training.optimizer.state.values()
        for one in each.values()
    }

    memory.cap(rest + whole - MIB)
    assert rest + training.held_bytes() <= rest + whole - MIB
    device = devices.Cpu()
    for one in training.model.parameters():
        assert device.holds(one.untyped_storage())

    memory.cap(rest + MIB)  # gradients stay: they are about to be written
    assert not any(
        device.holds(one.untyped_storage())
        for one in training.tensors()
        if storages.number(one.untyped_storage()) in moments and one.nbytes > 1000
    )
    assert not all(device.holds(one.untyped_storage()) for one in training.model.parameters())
    assert all(torch.equal(one, other) for one, other in zip(views, before, strict=True))

    memory.cap(1 << 40)
    assert training.held_bytes() == whole
    assert all(torch.equal(one, other) for one, other in zip(views, before, strict=True))


def test_a_checkpoint_taken_under_a_cap_is_whole(memory: Memory, tmp_path: Path) -> None:
    """The user saves and loads whenever they like: what is away can be read where it is."""
    training = Training()
    expected = copy.deepcopy(training.optimizer.state_dict())
    memory.cap(1)
    torch.save(training.optimizer.state_dict(), tmp_path / "optimizer")
    loaded = torch.load(tmp_path / "optimizer", weights_only=True)
    for number, state in expected["state"].items():
        for name, one in state.items():
            assert torch.equal(one, loaded["state"][number][name])


def test_a_forked_child_has_its_own_of_what_is_away(memory: Memory) -> None:
    """A worker of a loader's reads the model and may write it: the parent's stays as it was."""
    training = Training()
    expected = [one.detach().clone() for one in training.model.parameters()]
    memory.cap(1)
    child = os.fork()
    if child == 0:
        same = all(map(torch.equal, training.model.parameters(), expected))
        with torch.no_grad():
            for one in training.model.parameters():
                one.zero_()
        training.minibatch()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(map(torch.equal, training.model.parameters(), expected))


def test_a_cap_below_what_must_stay_is_said(memory: Memory) -> None:
    """A tensor of the user's that is nobody's state cannot be moved by a cap."""
    kept = torch.ones(1000)
    memory.cap(1)
    assert memory._notes.counts["cap too small"] == 1  # noqa: SLF001 (who hears it is another matter)
    assert devices.Cpu().holds(kept.untyped_storage())


def test_parking_under_a_cap_moves_what_is_left(memory: Memory) -> None:
    """What was in host memory stays there; all of it is as it was."""
    training = Training()
    expected = [one.clone() for one in training.tensors()]
    memory.cap(1)
    held: list[int] = []

    def stand_still(emptied: bool) -> None:  # noqa: FBT001 (the callback's signature)
        assert emptied
        held.append(
            sum(
                one.untyped_storage().nbytes()
                for one in training.tensors()
                if devices.Cpu().holds(one.untyped_storage())
            )
        )

    memory.park(stand_still)
    assert held == [0]
    for one, other in zip(training.tensors(), expected, strict=True):
        assert torch.equal(one, other)


def test_hooks_of_the_users_that_are_open_are_left_alone() -> None:
    """Torch's stack of hooks has no names: popped out of order, theirs would end ours."""
    memory = Memory(Notes(""))
    seen: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        memory.cap(1)
        torch.ones(100, 100, requires_grad=True).exp().sum()
        memory.cap(0)
    assert seen == [10_000]
    assert torch._C._autograd._top_saved_tensors_default_hooks(False) is None  # noqa: SLF001 (nothing public tells)


def test_transforms_that_refuse_all_hooks_work_on(memory: Memory) -> None:
    """They would raise into the program; ours are switched off while they run, and on again."""
    values = torch.randn(3, 100, 100)

    def summed(one: torch.Tensor) -> torch.Tensor:
        return one.exp().sum()

    def derived() -> torch.Tensor:
        result: torch.Tensor = torch.func.vmap(torch.func.grad(summed))(values)
        return result

    expected = derived()
    memory.cap(1)
    assert torch.equal(derived(), expected)
    weight = torch.ones(100, 100, requires_grad=True)
    weight.exp().sum().backward()  # type: ignore[no-untyped-call]  # torch's
    assert memory._scaling  # noqa: SLF001 (that ours are on again is the point)
    assert memory._scaling._spill.spilled == 1  # noqa: SLF001 (as above)
    memory.cap(0)
    with (
        torch.autograd.graph.save_on_cpu(),
        pytest.raises(RuntimeError, match="support saved tensor hooks"),
    ):
        derived()  # the user's own: refused as ever


def test_in_an_older_torch_ours_leave_for_such_transforms(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses as long as any are there; they are back at the next boundary."""
    monkeypatch.setattr(saved_hooks, "_knows_how_to_go_on", lambda: False)
    memory.cap(1)
    ones = torch.ones(100, 100)
    assert torch.equal(torch.func.grad(lambda one: one.square().sum())(ones), 2 * ones)
    memory.cap(1)
    ones.requires_grad_().exp().sum().backward()  # type: ignore[no-untyped-call]  # torch's
    assert memory._scaling  # noqa: SLF001 (that ours are on again is the point)
    assert memory._scaling._spill.spilled == 1  # noqa: SLF001 (as above)


def test_a_user_that_opens_hooks_inside_ours_keeps_them(memory: Memory) -> None:
    """Theirs are on top while they are open; ours again after that."""
    memory.cap(1)
    with torch.autograd.graph.save_on_cpu():
        weight = torch.ones(100, 100, requires_grad=True)
        weight.exp().sum().backward()  # type: ignore[no-untyped-call]  # torch's
    weight.exp().sum().backward()  # type: ignore[no-untyped-call]  # torch's
    assert weight.grad is not None


def test_a_cap_comes_through_the_page_and_changes_nothing_but_memory(tmp_path: Path) -> None:
    """An unchanged program, capped from its third mini-batch on, then parked, then free."""
    with started(page_in(tmp_path / "plain"), TRAIN) as job:
        expected = job.output()
    page = page_in(tmp_path / "capped")
    page.direct(Directive(1, cap_bytes=MIB, armed_for_minibatch=3))
    with started(page, TRAIN) as job:
        job.until(lambda: page.progress.minibatches >= 4)
        page.direct(Directive(2, cap_bytes=MIB, request=Request.PARK))
        job.until(lambda: page.progress.phase in (Phase.PARKED, Phase.ENDED))
        page.direct(Directive(3))
        assert job.output() == expected


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[occupancy.Gpu]:
    """A simulated GPU of 100 MiB that copies 10 GB in a second."""
    with simulated_node(memory_mib=100, copy_bytes_per_s=10_000_000_000) as path:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        with occupancy.open_gpu() as opened:
            yield opened


def test_a_capped_job_on_a_simulated_gpu_makes_room_for_others(
    gpu: occupancy.Gpu, memory: Memory
) -> None:
    """Its books go down to the cap; what does not fit is away, comes by in copies, and returns."""
    with gpu.allocate(80 * MIB):
        memory.cap(30 * MIB)
        assert gpu.usage().memory_bytes == 30 * MIB
        copied_ns = gpu.usage().copying_ns
        memory.cap(30 * MIB)
        assert gpu.usage().copying_ns - copied_ns == pytest.approx(
            2 * 50 * MIB / 10, rel=0.01
        )  # in and out, at ten bytes in a nanosecond
        memory.cap(0)
        assert gpu.usage().memory_bytes == 80 * MIB
    assert gpu.usage().memory_bytes == 0


def test_a_surge_of_a_capped_job_spills_instead_of_dying(
    gpu: occupancy.Gpu, memory: Memory
) -> None:
    """More than its cap, even more than the GPU has; and all is given back in any order."""
    first = gpu.allocate(20 * MIB)
    memory.cap(30 * MIB)
    surge = gpu.allocate(150 * MIB)
    assert gpu.usage().memory_bytes == 30 * MIB
    first.free()
    surge.free()
    assert gpu.usage().memory_bytes == 0
    memory.cap(0)
    with pytest.raises(occupancy.OutOfMemoryError):
        gpu.allocate(150 * MIB)


def test_memory_that_returns_waits_for_room(gpu: occupancy.Gpu, memory: Memory) -> None:
    """No cap any more, but a neighbour is there: it stays away until a boundary finds room."""
    with gpu.allocate(80 * MIB), workers(Path(os.environ[ENVIRONMENT_VARIABLE]), 0) as (neighbour,):
        assert not memory.cap(20 * MIB)
        neighbour.ask("allocate", nbytes=60 * MIB)
        assert not memory.cap(0)
        assert gpu.usage().memory_bytes == 20 * MIB
        neighbour.ask("free")
        assert memory.cap(0)
        assert gpu.usage().memory_bytes == 80 * MIB


def test_a_wide_cap_is_not_paid_for_at_each_boundary(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An owner's is there for a surge: tensors are counted when it is tight, and not before."""
    training = Training()
    looks = []

    def counted(on_device: Callable[[torch.UntypedStorage], bool]) -> storages.Found:
        looks.append(1)
        return alive(on_device)

    alive = storages.alive
    monkeypatch.setattr(storages, "alive", counted)
    for cap_bytes in (1 << 40, 1 << 40, 1 << 39, 1 << 41):
        memory.cap(cap_bytes)
        training.minibatch()
    assert looks == []
    memory.cap(training.held_bytes() // 2)
    assert looks == [1]
    assert memory.away_bytes > 0
    memory.cap(1 << 40)
    assert memory.away_bytes == 0
