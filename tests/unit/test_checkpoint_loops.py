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
from slipstream.torch_hooks.checkpoint.loader_state import generators_of
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


@pytest.mark.parametrize(
    ("numbers", "first", "expected"),
    [
        (3, 1, [1, 2, 3]),
        (range(1, 4), 0, [1, 2, 3]),
        (range(9, 0, -4), 0, [9, 5, 1]),
        ([7, 8, 9], 0, [7, 8, 9]),
    ],
)
def test_epochs_have_the_numbers_that_they_are_given(
    numbers: int | list[int], first: int, expected: list[int]
) -> None:
    """As in range(1, epochs + 1); a loop that goes on goes on with the right one."""
    loops = Loops(lambda: None)
    whole = [(number, list(batches)) for number, batches in loops.epochs(range(3), numbers, first)]
    assert whole == [(number, [0, 1, 2]) for number in expected]
    again = Loops(lambda: None)
    again.restore({"loop": 1, "epoch": 1, "batches": 2, "minibatches": 5}, None)
    rest = [(number, list(batches)) for number, batches in again.epochs(range(3), numbers, first)]
    assert rest == [(expected[1], [2]), (expected[2], [0, 1, 2])]


def _run_until(
    stop: int, body: Callable[[Loops, list[Any]], None], seen: list[Any], saved: list[Any]
) -> None:
    def at_rest() -> None:
        saved.append((loops.position(), loops.random_states()))
        if len(saved) > stop:
            raise Stopped

    loops = Loops(at_rest)
    with pytest.raises(Stopped):
        body(loops, seen)


def gone_on_at_each_rest(body: Callable[[Loops, list[Any]], None]) -> None:
    """Stop a program at each of its rests, go on, and compare with the whole."""
    seed(1)
    whole: list[Any] = []
    rests: list[int] = []
    body(Loops(lambda: rests.append(len(whole))), whole)
    for stop in range(len(rests)):
        seed(1)
        seen: list[Any] = []
        saved: list[Any] = []

        _run_until(stop, body, seen, saved)
        seed(99)
        again = Loops(lambda: None)
        again.restore(*saved[-1])
        body(again, seen)
        assert seen == whole, f"stopped at rest {stop}"


def test_an_epochs_batches_may_be_gone_through_twice() -> None:
    """Each pass has its own order; a loop that goes on in the second leaves out the first."""

    def body(loops: Loops, seen: list[Any]) -> None:
        for epoch, batches in loops.epochs(plain(), 2):
            for turn in ("first", "second"):
                seen.extend((epoch, turn, batch.tolist()) for batch in batches)

    gone_on_at_each_rest(body)


def test_an_epoch_may_be_left_early_or_have_no_batches() -> None:
    """By `break`, by `continue`, and by one batch alone."""

    def body(loops: Loops, seen: list[Any]) -> None:
        for epoch, batches in loops.epochs(plain(), 4):
            if epoch == 1:
                continue
            if epoch == 2:
                seen.append((epoch, next(iter(batches)).tolist()))
                continue
            for batch in batches:
                seen.append((epoch, batch.tolist(), torch.rand(1).item()))
                if loops.batch == 3:
                    break

    gone_on_at_each_rest(body)


def test_what_breaks_off_goes_on_in_its_epoch_and_the_next() -> None:
    """The loop's count of its batches is restored; `enumerate` would begin at 0."""

    def body(loops: Loops, seen: list[Any]) -> None:
        for epoch, batches in loops.epochs(plain(), 3):
            for batch in batches:
                seen.append((epoch, loops.batch, batch.tolist(), torch.rand(1).item()))
                if loops.batch == 3:
                    break

    gone_on_at_each_rest(body)


def test_a_loop_inside_the_loop_is_part_of_its_body() -> None:
    """A validation that goes through `epochs`, too: the outer loop's place is the place."""

    def body(loops: Loops, seen: list[Any]) -> None:
        validation = DataLoader(Augmented(), 12)
        for epoch, batches in loops.epochs(plain(), 2):
            seen.extend((epoch, batch.tolist()) for batch in batches)
            for _, checked in loops.epochs(validation, 1):
                seen.append(("validated", [one.tolist() for one in checked]))

    gone_on_at_each_rest(body)


def test_batches_gone_through_twice_at_the_same_time_are_refused() -> None:
    """Nobody could say which of the two was where."""
    reasons: list[str] = []
    loops = Loops(lambda: reasons.append(loops.why_not))
    for _, batches in loops.epochs(range(4), 1):
        assert list(zip(batches, batches)) == [(0, 0), (1, 1), (2, 2), (3, 3)]  # noqa: B905 (Python 3.9)
    assert "twice at the same time" in reasons[-1]


def test_batches_are_their_loader_in_all_but_their_iteration() -> None:
    """Attributes read and written, its length, its class: PyTorch's own mnist asks for these."""
    loader: Any = plain()
    ((_, batches),) = Loops(lambda: None).epochs(loader, 1)
    assert len(batches) == 6
    assert len(batches.dataset) == 24
    assert (batches.batch_size, batches.sampler, batches.drop_last) == (4, loader.sampler, False)
    assert isinstance(batches, DataLoader)
    batches.timeout = 3
    assert loader.timeout == 3
    with pytest.raises(ValueError, match="batch_size"):
        batches.batch_size = 5
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        getattr(batches, "nothing_of_the_kind")  # noqa: B009 (its type knows better)
    assert dir(batches) == dir(loader)


def test_batches_of_other_iterables_are_as_these_are() -> None:
    """A list can be indexed, a stream has no length, a generator has a next."""
    ((_, batches),) = Loops(lambda: None).epochs([5, 6], 1)
    assert (batches[1], len(batches), 6 in batches, bool(batches)) == (6, 2, True, True)
    ((_, batches),) = Loops(lambda: None).epochs(streamed(), 1)
    with pytest.raises(TypeError):
        len(batches)
    assert len(list(batches)) == 6
    loops = Loops(lambda: None)
    for _, batches in loops.epochs((one for one in "abc"), 1):
        assert next(batches) == "a"
        assert list(batches) == ["b", "c"]
    assert loops.minibatches == 3


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
    assert [one for _, one in generators_of([loader])] == [loader.generator]
    assert generators_of([range(3)]) == []


def test_random_states_come_back() -> None:
    """Of torch, Python and numpy."""

    def drawn() -> tuple[float, float, float]:
        return torch.rand(1).item(), random.random(), float(np.random.rand())  # noqa: NPY002, S311 (the global states are the point)

    then = randomness.state()
    first = drawn()
    assert drawn() != first
    randomness.restore(then)
    assert drawn() == first
