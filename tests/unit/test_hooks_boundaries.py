# SPDX-License-Identifier: Apache-2.0
"""Where mini-batches end, with torch's real optimizers."""

from __future__ import annotations

import importlib
import shutil
import sys
import threading
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

from slipstream.torch_hooks import dynamo
from slipstream.torch_hooks.boundaries import Boundaries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.unit


@pytest.fixture
def seen() -> Iterator[list[int]]:
    """One entry for each mini-batch."""
    found: list[int] = []
    boundaries = Boundaries(
        lambda: found.append(len(found)),
        sys.modules["torch.autograd.profiler"],
        lambda missed: found.extend([len(found)] * missed),
    )
    dynamo.keep_out(
        boundaries.before_step,
        boundaries.after_step,
        on_error=lambda error: pytest.fail(str(error)),
    )
    optimizer = importlib.import_module("torch.optim.optimizer")
    handles = [
        optimizer.register_optimizer_step_pre_hook(boundaries.before_step),
        optimizer.register_optimizer_step_post_hook(boundaries.after_step),
    ]
    yield found
    for handle in handles:
        handle.remove()


def parameter() -> torch.nn.Parameter:
    """Something to learn, with a gradient."""
    made = torch.nn.Parameter(torch.ones(3))
    made.grad = torch.ones(3)
    return made


class Nested(torch.optim.SGD):
    """As many people write theirs."""

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401 (torch's own signature)
        """Call the step of the class above."""
        return super().step(closure)


class Holder(torch.optim.SGD):
    """An optimizer that holds another, as ZeroRedundancyOptimizer does."""

    def __init__(self) -> None:
        super().__init__([parameter()], lr=0.1)
        self.inner = torch.optim.Adam([parameter()])

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401 (torch's own signature)
        """Step both."""
        self.inner.step()
        return super().step(closure)


class Failing(torch.optim.SGD):
    """Raises when told to."""

    fails = False

    def step(self, closure: Any = None) -> Any:  # noqa: ANN401 (torch's own signature)
        """Raise or step."""
        if self.fails:
            raise RuntimeError("out of memory")
        return super().step(closure)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.optim.SGD([parameter()], lr=0.1),
        lambda: torch.optim.Adam([parameter()]),
        lambda: Nested([parameter()], lr=0.1),
        Holder,
    ],
)
def test_each_step_is_one_boundary(make: Callable[[], Any], seen: list[int]) -> None:
    """However many steps are inside it."""
    optimizer = make()
    for _ in range(5):
        optimizer.step()
    assert len(seen) == 5


def test_lbfgs_with_its_closure_is_one_boundary(seen: list[int]) -> None:
    """It evaluates the closure many times and steps once."""
    learned = parameter()
    optimizer = torch.optim.LBFGS([learned], max_iter=4)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (learned**2).sum()
        loss.backward()  # type: ignore[no-untyped-call]  # torch does not type it
        return float(loss.detach())

    optimizer.step(closure)  # type: ignore[no-untyped-call]  # torch does not type it
    assert len(seen) == 1


def test_of_two_optimizers_the_first_leads(seen: list[int]) -> None:
    """A generator and a discriminator: one boundary for each round."""
    first, second = (torch.optim.SGD([parameter()], lr=0.1) for _ in range(2))
    for _ in range(6):
        first.step()
        second.step()
    assert len(seen) == 6


def test_another_leads_when_the_leader_is_gone(seen: list[int]) -> None:
    """A second training in the same process."""
    first = torch.optim.SGD([parameter()], lr=0.1)
    first.step()
    del first
    second = torch.optim.SGD([parameter()], lr=0.1)
    second.step()
    assert len(seen) == 2


def test_another_leads_when_the_leader_no_longer_steps(seen: list[int]) -> None:
    """A warm-up optimizer that is kept but not used: passed sixteen times, it is left.

    The steps that the next one had until then are counted.
    """
    first, second = (torch.optim.SGD([parameter()], lr=0.1) for _ in range(2))
    first.step()
    for _ in range(20):
        second.step()
    assert len(seen) == 1 + 20


def test_of_two_that_follow_a_leader_only_the_next_leader_is_counted(seen: list[int]) -> None:
    """A second pair of generator and discriminator, while the first pair is kept."""
    first, second, third, fourth = (torch.optim.SGD([parameter()], lr=0.1) for _ in range(4))
    for one, other in ((first, second), (third, fourth)):
        for _ in range(30):
            one.step()
            other.step()
    assert len(seen) == 30 + 30


def test_an_optimizer_in_the_place_of_another_has_not_stepped_before(seen: list[int]) -> None:
    """Python gives the number of an object that is gone to the next one."""
    leader = torch.optim.SGD([parameter()], lr=0.1)
    for _ in range(6):
        leader.step()
        passing = torch.optim.SGD([parameter()], lr=0.1)
        passing.step()
        del passing
    del leader
    torch.optim.SGD([parameter()], lr=0.1).step()
    assert len(seen) == 6 + 1


@pytest.mark.parametrize("depth", [1, 3])
def test_a_step_that_raises_is_forgotten(seen: list[int], depth: int) -> None:
    """The boundaries after it are counted as before, however often it happens."""
    optimizer = Failing([parameter()], lr=0.1)
    optimizer.step()
    for _ in range(depth):
        optimizer.fails = True
        with pytest.raises(RuntimeError, match="out of memory"):
            optimizer.step()
        optimizer.fails = False
        optimizer.step()
    assert len(seen) == 1 + depth


def test_a_nested_step_after_one_that_raised_is_one_boundary(seen: list[int]) -> None:
    """The stale step is not taken for the outer one."""
    failing = Failing([parameter()], lr=0.1)
    failing.fails = True
    for _ in range(3):
        with pytest.raises(RuntimeError, match="out of memory"):
            failing.step()
    holder = Holder()
    holder.step()
    holder.step()
    assert len(seen) == 2


def test_threads_do_not_disturb_each_others_depth(seen: list[int]) -> None:
    """Each thread that steps counts for itself."""
    barrier = threading.Barrier(2)

    def train() -> None:
        optimizer = Nested([parameter()], lr=0.1)
        barrier.wait()
        for _ in range(50):
            optimizer.step()

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 100


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, within itself
def test_a_compiled_step_is_a_boundary(seen: list[int]) -> None:
    """torch.compile around the whole step, without a compiler behind it."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    step = torch.compile(optimizer.step, backend="eager")
    for _ in range(3):
        step()
    assert len(seen) == 3


def model_and_data() -> tuple[torch.nn.Module, torch.Tensor]:
    """A small model and a mini-batch for it."""
    return torch.nn.Linear(8, 4), torch.randn(16, 8)


def test_accumulated_gradients_are_one_mini_batch(seen: list[int]) -> None:
    """Four backward passes and one step: one boundary."""
    model, data = model_and_data()
    optimizer = torch.optim.AdamW(model.parameters())
    for number in range(12):
        (model(data).square().mean() / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    assert len(seen) == 3


def test_a_step_that_a_scaler_skips_is_no_boundary(seen: list[int]) -> None:
    """Gradients overflowed: the parameters are as they were, and so is the count."""
    model, data = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    stepped = []
    for infinite in (False, True, False, True, True, False):
        optimizer.zero_grad()
        before = [one.detach().clone() for one in model.parameters()]
        loss = model(data).square().mean() * (float("inf") if infinite else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        after = list(model.parameters())
        stepped.append(not all(map(torch.equal, before, after)))
    assert stepped == [True, False, True, False, False, True]
    assert len(seen) == sum(stepped)


def test_of_a_scaler_with_two_optimizers_one_leads(seen: list[int]) -> None:
    """As with two optimizers without it, also if the leader's step is skipped."""
    first, second = parameter(), parameter()
    optimizers = [torch.optim.SGD([one], lr=0.1) for one in (first, second)]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for overflows in (False, True, False):
        loss = first.sum() * (float("inf") if overflows else 1.0) + second.sum()
        for optimizer in optimizers:
            optimizer.zero_grad()
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch does not type it
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    assert len(seen) == 2


def test_a_learning_rate_scheduler_is_no_step(seen: list[int]) -> None:
    """It wraps the optimizer's step, which still is one."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    assert len(seen) == 5


def test_three_optimizers_that_step_at_different_rates_have_one_leader(seen: list[int]) -> None:
    """A discriminator that steps five times for each step of its generator, which came first."""
    leader, other, third = (torch.optim.SGD([parameter()], lr=0.1) for _ in range(3))
    for _ in range(4):
        leader.step()
        for _ in range(5):
            other.step()
        third.step()
    assert len(seen) == 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, within itself
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_training_compiled_to_machine_code_counts_right(seen: list[int]) -> None:
    """torch.compile with its real compiler around the model and around the step."""
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler")
    model, data = model_and_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled, step = torch.compile(model), torch.compile(optimizer.step)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = compiled(data).square().mean()
        loss.backward()
        step()
        losses.append(float(loss.detach()))
    assert len(seen) == 6
    assert losses == sorted(losses, reverse=True)


def test_a_profile_shows_what_a_boundary_costs(seen: list[int]) -> None:
    """A label for each boundary while a profile is taken, and at no other time."""
    optimizer = torch.optim.SGD([parameter()], lr=0.1)
    optimizer.step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(3):
            optimizer.step()
    optimizer.step()
    labels = {one.key: one.count for one in profile.key_averages() if "slipstream" in one.key}
    assert labels == {"slipstream: boundary": 3}
    assert len(seen) == 5


def test_a_torch_whose_profiler_cannot_be_asked_has_no_labels() -> None:
    """An older one, or a later one that calls it otherwise: boundaries are counted all the same."""
    found: list[int] = []
    boundaries = Boundaries(lambda: found.append(1), types.ModuleType("profiler"))
    boundaries.before_step(None, None, None)
    boundaries.after_step(boundaries, None, None)
    assert found == [1]
