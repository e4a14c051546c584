# SPDX-License-Identifier: Apache-2.0
"""The examples' data: learnable, shared out between ranks, and the same after any interruption."""

import time
from collections.abc import Callable
from itertools import chain, islice

import pytest
import torch
from torch.utils.data import TensorDataset

import data
from data import DataError, Minibatches

pytestmark = pytest.mark.unit

NUMBERED = TensorDataset(torch.arange(100), torch.arange(100))


def first_inputs(minibatches: Minibatches, *, after: int, count: int) -> list[list[int]]:
    """The samples of the mini-batches that follow."""
    return [inputs.tolist() for inputs, _ in islice(minibatches.after(after), count)]


def test_data_that_was_used_is_not_prepared_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run begins at once, however long each mini-batch takes to prepare."""
    prepared: list[float] = []
    monkeypatch.setattr(time, "sleep", prepared.append)
    minibatches = Minibatches(NUMBERED, batch_size=10, seed=1, host_s=7.0)
    assert len(first_inputs(minibatches, after=8, count=4)) == 4
    assert prepared == [7.0] * 4


@pytest.mark.parametrize("done", [0, 3, 10, 14, 25])
def test_data_goes_on_from_any_position(done: int) -> None:
    """Within an epoch, at its border and beyond it: what follows is what would have followed."""
    minibatches = Minibatches(NUMBERED, batch_size=10, seed=1)
    whole = first_inputs(minibatches, after=0, count=30)
    assert first_inputs(minibatches, after=done, count=30 - done) == whole[done:]


def test_an_epoch_has_every_sample_once_in_an_order_of_its_own() -> None:
    """Ten mini-batches of ten are the hundred samples; the next ten are too, but otherwise."""
    epochs = first_inputs(Minibatches(NUMBERED, batch_size=10, seed=1), after=0, count=20)
    one, two = list(chain(*epochs[:10])), list(chain(*epochs[10:]))
    assert sorted(one) == sorted(two) == list(range(100))
    assert one != two


def test_ranks_share_the_samples_out() -> None:
    """No sample is seen by two ranks of one epoch, and together they see all."""
    seen = [
        sample
        for rank in range(2)
        for inputs in first_inputs(
            Minibatches(NUMBERED, batch_size=10, seed=1, rank=rank, ranks=2), after=0, count=5
        )
        for sample in inputs
    ]
    assert sorted(seen) == list(range(100))


def test_the_seed_decides_the_order() -> None:
    """Two seeds give two orders, one seed gives one."""
    orders = [
        first_inputs(Minibatches(NUMBERED, batch_size=10, seed=seed), after=0, count=10)
        for seed in (1, 1, 2)
    ]
    assert orders[0] == orders[1] != orders[2]


def test_data_leaves_the_global_random_state_alone() -> None:
    """Else a resumed run, which skips data, would draw other dropout than an uninterrupted one."""
    before = torch.get_rng_state()
    for make in (data.points, data.images, data.text):
        first_inputs(
            Minibatches(make(torch.Generator().manual_seed(0)), batch_size=512, seed=0),
            after=2,
            count=4,
        )
    assert torch.equal(torch.get_rng_state(), before)


def test_a_batch_larger_than_a_ranks_part_is_refused() -> None:
    """An epoch without a single mini-batch would never end; the limit is named."""
    with pytest.raises(DataError, match=r"batch size of 51 .* 2 ranks .* the most is 50"):
        Minibatches(NUMBERED, batch_size=51, seed=0, ranks=2)


def test_text_asks_for_the_token_that_follows() -> None:
    """The answer at each place is the input at the next one."""
    inputs, targets = data.text(torch.Generator().manual_seed(0)).tensors
    assert torch.equal(inputs[:, 1:], targets[:, :-1])


@pytest.mark.parametrize("make", [data.points, data.images])
def test_no_class_is_common(make: Callable[[torch.Generator], TensorDataset]) -> None:
    """Else guessing one class would pass for learning."""
    labels = make(torch.Generator().manual_seed(0)).tensors[1]
    assert labels.bincount(minlength=data.CLASSES).max() < 1.5 * data.SAMPLES / data.CLASSES
