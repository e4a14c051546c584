# SPDX-License-Identifier: Apache-2.0
"""Loops that go on where they were: the same batches in the same order, the same random numbers."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    TensorDataset,
)

from slipstream.torch_hooks.checkpoint import randomness
from slipstream.torch_hooks.checkpoint.loops import Loops

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

pytestmark = pytest.mark.unit


class Augmented(Dataset[torch.Tensor]):
    """Samples with random changes, drawn from all three random states."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> torch.Tensor:
        """A sample."""
        noise = random.random() + np.random.rand()  # noqa: NPY002, S311 (the global states are the point)
        return torch.rand(1) + number + noise


class Stream(IterableDataset[int]):
    """Samples that come in one order."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(24))


def plain() -> Iterable[Any]:
    """Shuffled, in this process."""
    return DataLoader(Augmented(), 4, shuffle=True)


def with_workers() -> Iterable[Any]:
    """Two worker processes."""
    return DataLoader(Augmented(), 4, shuffle=True, num_workers=2)


def with_generator() -> Iterable[Any]:
    """A generator of its own."""
    return DataLoader(Augmented(), 4, shuffle=True, generator=torch.Generator().manual_seed(3))


def with_replacement() -> Iterable[Any]:
    """A sampler that draws as it goes."""
    sampler = RandomSampler(range(24), replacement=True, generator=torch.Generator().manual_seed(5))
    return DataLoader(Augmented(), 4, sampler=sampler)


def streamed() -> Iterable[Any]:
    """In one order only."""
    return DataLoader(Stream(), 4)


def unbatched() -> Iterable[Any]:
    """Samples one by one."""
    return DataLoader(Augmented(), None, shuffle=True)


def no_loader() -> Iterable[Any]:
    """Anything that can be gone through again."""
    return range(9)


def seed(number: int) -> None:
    """All random states."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 (the global state is the point)


def trained(loops: Loops, loader: Iterable[Any], seen: list[Any], *, epochs: int = 3) -> None:
    """A loop whose body draws random numbers of its own, as dropout does."""
    for epoch, batches in loops.epochs(loader, epochs):
        for batch in batches:
            values = batch.tolist() if isinstance(batch, torch.Tensor) else batch
            seen.append((epoch, values, torch.rand(1).item()))
        seen.append(("validated", torch.rand(1).item()))


class Stopped(Exception):  # noqa: N818 (it is no error)
    """Where the process would have been killed."""


@pytest.mark.parametrize(
    "make",
    [plain, with_workers, with_generator, with_replacement, streamed, unbatched, no_loader],
)
@pytest.mark.parametrize("after", [0, 4, 6, 11])
def test_the_rest_is_what_it_would_have_been(make: Callable[[], Iterable[Any]], after: int) -> None:
    """Stopped in an epoch, at the end of one, before the first batch."""
    seed(1)
    whole: list[Any] = []
    trained(Loops(lambda: None), make(), whole)

    seed(1)
    saved: list[tuple[dict[str, Any], dict[str, Any]]] = []
    first: list[Any] = []

    def at_rest() -> None:
        if loops.minibatches == after:
            saved.append((loops.position(), loops.random_states()))
            raise Stopped

    loops = Loops(at_rest)
    with pytest.raises(Stopped):
        trained(loops, make(), first)

    seed(99)
    again = Loops(lambda: None)
    again.restore(*saved[0])
    rest: list[Any] = []
    trained(again, make(), rest)
    assert first + rest == whole
    assert again.minibatches == sum(1 for one in whole if one[0] != "validated")


def test_a_loop_that_was_over_is_not_run_again() -> None:
    """A warm-up before the training."""
    seen: list[str] = []

    def both(loops: Loops) -> None:
        for name, count in (("warm-up", 2), ("training", 3)):
            for epoch, batches in loops.epochs(range(2), count):
                seen.extend(f"{name} {epoch}.{batch}" for batch in batches)

    positions: list[dict[str, Any]] = []
    loops = Loops(lambda: positions.append(loops.position()))
    both(loops)
    whole, seen[:] = list(seen), []
    again = Loops(lambda: None)
    (at,) = [one for one in positions if one["minibatches"] == 7 and one["batches"] == 1]
    again.restore(at, None)
    both(again)
    assert seen == whole[7:]


def test_a_sampler_is_told_its_epoch_before_it_is_asked() -> None:
    """Batches are begun when the loop begins, not before its body could call set_epoch."""
    samples = TensorDataset(torch.arange(12))
    sampler: DistributedSampler[Any] = DistributedSampler(samples, num_replicas=1, rank=0)
    loader = DataLoader(samples, 4, sampler=sampler)

    def run(loops: Loops) -> list[list[int]]:
        orders = []
        for epoch, batches in loops.epochs(loader, 3):
            sampler.set_epoch(epoch)
            orders.append([number for (batch,) in batches for number in batch.tolist()])
        return orders

    whole = run(Loops(lambda: None))
    assert whole[0] != whole[1]
    again = Loops(lambda: None)
    again.restore({"loop": 1, "epoch": 1, "batches": 2, "minibatches": 5}, None)
    assert run(again) == [whole[1][8:], whole[2]]


def test_without_a_count_epochs_never_end() -> None:
    """The loop's body says when."""
    loops = Loops(lambda: None)
    numbers = [epoch for epoch, _ in itertools.islice(loops.epochs(range(1), None), 5)]
    assert numbers == [0, 1, 2, 3, 4]


def test_a_loop_that_breaks_off_its_epochs_goes_on_with_the_next() -> None:
    """Half an epoch is as good as a whole one."""
    positions: list[tuple[int, int]] = []

    def at_rest() -> None:
        position = loops.position()
        positions.append((position["epoch"], position["batches"]))

    loops = Loops(at_rest)
    for _, batches in loops.epochs(range(10), 2):
        for batch in batches:
            if batch == 1:
                break
    assert positions == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert loops.minibatches == 4


def test_batches_have_the_length_of_their_loader() -> None:
    """Progress bars ask for it."""
    ((_, batches),) = Loops(lambda: None).epochs(plain(), 1)
    assert len(batches) == 6  # type: ignore[arg-type]  # an Iterable by its type


def test_a_loader_that_has_become_shorter_ends_its_epoch() -> None:
    """Nothing is raised; the epoch is over."""
    again = Loops(lambda: None)
    again.restore({"loop": 1, "epoch": 0, "batches": 7, "minibatches": 7}, None)
    rest = [list(batches) for _, batches in again.epochs(range(5), 2)]
    assert rest == [[], [0, 1, 2, 3, 4]]


def test_a_loaders_generators_are_found_once_each() -> None:
    """The sampler's is often the loader's own."""
    loader: Any = with_generator()
    assert loader.sampler.generator is loader.generator
    assert randomness.generators(loader) == [loader.generator]
    assert randomness.generators(range(3)) == []


def test_random_states_come_back() -> None:
    """Of torch, Python and numpy."""

    def drawn() -> tuple[float, float, float]:
        return torch.rand(1).item(), random.random(), float(np.random.rand())  # noqa: NPY002, S311 (the global states are the point)

    then = randomness.state()
    first = drawn()
    assert drawn() != first
    randomness.restore(then)
    assert drawn() == first
