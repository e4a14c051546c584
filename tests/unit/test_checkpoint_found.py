# SPDX-License-Identifier: Apache-2.0
"""What a program has made is found without its doing anything, or it is said why not."""

from __future__ import annotations

import gc
import inspect
from typing import TYPE_CHECKING

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import (
    LRScheduler,
    ReduceLROnPlateau,
    SequentialLR,
    StepLR,
)

from slipstream.torch_hooks import watching
from slipstream.torch_hooks.checkpoint import found
from slipstream.torch_hooks.checkpoint.errors import CheckpointError
from slipstream.torch_hooks.watching import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def watch() -> Iterator[Watch]:
    """As attached; what other tests have made is gone."""
    gc.collect()
    one = Watch()
    yield one
    one.remove()


def test_optimizers_schedulers_and_scalers_of_a_model_are_found() -> None:
    """Also a scheduler that does not call its parent's constructor."""
    model = torch.nn.Linear(2, 2)
    optimizer = Adam(model.parameters())
    scheduler, plateau = StepLR(optimizer, 3), ReduceLROnPlateau(optimizer)
    scaler = torch.amp.GradScaler("cpu")
    assert found.complete({"model": model}) == {
        "model": model,
        "Adam": optimizer,
        "StepLR of Adam": scheduler,
        "ReduceLROnPlateau of Adam": plateau,
        "GradScaler": scaler,
    }


def test_what_was_named_keeps_its_name() -> None:
    """It is not found a second time."""
    model = torch.nn.Linear(2, 2)
    optimizer = Adam(model.parameters())
    scheduler = StepLR(optimizer, 3)
    parts = found.complete({"net": model, "opt": optimizer})
    assert parts == {"net": model, "opt": optimizer, "StepLR of opt": scheduler}


def test_another_models_optimizer_is_not_ours() -> None:
    """A critic that is trained elsewhere."""
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    mine, others = SGD(model.parameters()), SGD(other.parameters())
    assert found.complete({"model": model}) == {"model": model, "SGD": mine}
    assert others.param_groups


def test_two_of_a_kind_have_to_be_named() -> None:
    """In another process nobody could tell which is which."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    first, second = (SGD(part.parameters()) for part in model)
    with pytest.raises(CheckpointError, match=r"several of the kind SGD, .* give them names"):
        found.complete({"model": model})
    parts = found.complete({"model": model, "first": first, "second": second})
    assert set(parts) == {"model", "first", "second"}


def test_schedulers_inside_another_are_part_of_it() -> None:
    """Its state has theirs."""
    model = torch.nn.Linear(2, 2)
    optimizer = SGD(model.parameters(), lr=0.1)
    inner: list[LRScheduler] = [StepLR(optimizer, 2), StepLR(optimizer, 5)]
    outer = SequentialLR(optimizer, inner, [3])
    assert found.complete({"model": model}) == {
        "model": model,
        "SGD": optimizer,
        "SequentialLR of SGD": outer,
    }


def test_a_scheduler_from_before_our_time_has_to_be_named(watch: Watch) -> None:
    """It cannot be found, but the optimizer shows that there is one."""
    watch.remove()
    model = torch.nn.Linear(2, 2)
    optimizer = SGD(model.parameters())
    scheduler = StepLR(optimizer, 3)
    with pytest.raises(CheckpointError, match="opt has a scheduler, which is not named"):
        found.complete({"model": model, "opt": optimizer})
    parts = found.complete({"model": model, "opt": optimizer, "when": scheduler})
    assert set(parts) == {"model", "opt", "when"}


def test_what_is_gone_is_gone() -> None:
    """Nothing is kept alive for being watched."""
    model = torch.nn.Linear(2, 2)
    optimizer = SGD(model.parameters())
    assert watching.alive(SGD) == [optimizer]
    del optimizer
    gc.collect()
    assert watching.alive(SGD) == []


def test_constructors_look_as_they_did(watch: Watch) -> None:
    """To whoever inspects them, and exactly as before once we are gone."""
    during = inspect.signature(Optimizer)
    watch.remove()
    assert inspect.signature(Optimizer) == during
    assert Optimizer.__init__.__module__ == "torch.optim.optimizer"
    assert not hasattr(Optimizer.__init__, "__wrapped__")


def test_a_constructor_that_raises_leaves_nothing_behind() -> None:
    """What it raises is the program's."""
    with pytest.raises(ValueError, match="empty parameter list"):
        SGD([])
    assert watching.alive(SGD) == []


def test_a_model_without_a_replica_is_not_replicated() -> None:
    """Ranks that hold different parts of a pipeline must not be given the first one's."""
    assert not found.is_replicated({"model": torch.nn.Linear(2, 2)})


def test_parts_without_names_have_those_of_their_kinds() -> None:
    """In their order, which is the same in another process; a name that was given is not taken."""
    first, second, third = (torch.nn.Linear(2, 2) for _ in range(3))
    optimizer = SGD(first.parameters())
    scheduler, scaler = StepLR(optimizer, 3), torch.amp.GradScaler("cpu")
    other = Counted()
    given = [first, optimizer, scheduler, scaler, second, other, other]
    assert found.named(given, {"model": third}) == {
        "model": third,
        "model 2": first,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "model 3": second,
        "Counted": other,
        "Counted 2": other,
    }


class Counted:
    """Something of the user's with a state."""

    def state_dict(self) -> dict[str, int]:
        """Nothing to speak of."""
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The same."""


def test_a_training_of_which_nothing_is_named_is_refused() -> None:
    """It would begin anew elsewhere and nobody would know."""
    with pytest.raises(CheckpointError, match="nothing is named in session"):
        found.check_learned({})


def test_what_an_optimizer_learns_has_to_be_saved() -> None:
    """Its own state is not enough, nor is a part of its parameters."""
    model, extra = torch.nn.Linear(2, 2), torch.nn.Parameter(torch.ones(1))
    optimizer = SGD([*model.parameters(), extra])
    with pytest.raises(CheckpointError, match="3 of the 3 parameters that optimizer learns are of"):
        found.check_learned({"optimizer": optimizer})
    with pytest.raises(CheckpointError, match="1 of the 3 parameters that SGD learns are of no"):
        found.check_learned(found.complete({"model": model}))
    found.check_learned({"model": model, "SGD": SGD(model.parameters())})
    found.check_learned({"model": model, "SGD": optimizer, "extra": Counted()})


def test_an_optimizer_that_steps_has_to_be_known() -> None:
    """One that was made before the hooks came is found by nobody, but it is seen at its steps."""
    model = torch.nn.Linear(2, 2)
    found.check_learned({"model": model})
    optimizer = SGD(model.parameters())
    watching.leads(lambda: optimizer)
    try:
        with pytest.raises(CheckpointError, match="SGD steps, and is no part of session"):
            found.check_learned({"model": model})
        found.check_learned({"model": model, "optimizer": optimizer})
    finally:
        watching.leads(lambda: None)
