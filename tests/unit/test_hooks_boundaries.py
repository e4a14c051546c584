# SPDX-License-Identifier: Apache-2.0
"""Where mini-batches end, with torch's real optimizers."""

from __future__ import annotations

import importlib
import threading
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
    """One entry for each boundary."""
    found: list[int] = []
    boundaries = Boundaries(lambda: found.append(len(found)))
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
    """A warm-up optimizer that is kept but not used: passed sixteen times, it is left."""
    first, second = (torch.optim.SGD([parameter()], lr=0.1) for _ in range(2))
    first.step()
    for _ in range(20):
        second.step()
    assert len(seen) == 1 + 5


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
