# SPDX-License-Identifier: Apache-2.0
"""Where a training is in its epochs and batches, and how it gets there again.

A loader goes on to the bit when the random state at the epoch's beginning is set, as many batches
as were used are passed over, and the random state of the moment is set. Without worker processes
only the sampler is asked to pass over; workers have random states of their own, so they load again
what was used, and it is thrown away.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.checkpoint import randomness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MAP_STYLE = 0  # torch's _DatasetKind.Map


class Loops:
    """The epochs of one run; `at_rest` is called between any two batches."""

    def __init__(self, at_rest: Callable[[], None]) -> None:
        self.minibatches = 0
        """How many were begun, in this process and in those before it."""
        self._at_rest = at_rest
        self._loops = 0
        self._loop = 0
        self._epoch = 0
        self._batches = 0
        self._epoch_began: dict[str, Any] | None = None
        self._loader: object = None
        self._resume: dict[str, Any] | None = None

    def position(self) -> dict[str, Any]:
        """How far the loops are: the same on all ranks."""
        return {
            "loop": self._loop,
            "epoch": self._epoch,
            "batches": self._batches,
            "minibatches": self.minibatches,
        }

    def random_states(self) -> dict[str, Any]:
        """This rank's, now and at the beginning of the epoch."""
        return {"now": self._random_state(), "epoch_began": self._epoch_began}

    def restore(self, position: dict[str, Any], random_states: dict[str, Any] | None) -> None:
        """Have the loops begin at a position; a rank that was not there keeps its random state."""
        self.minibatches = position["minibatches"]
        self._resume = {**position, **(random_states or {"now": None, "epoch_began": None})}
        self._set_random_state(self._resume["now"])

    def epochs(
        self, loader: Iterable[Any], count: int | None
    ) -> Iterator[tuple[int, Iterable[Any]]]:
        """Epochs by number, each with its batches."""
        self._loops += 1
        resume = self._resume
        if resume is not None and resume["loop"] > self._loops:
            return  # it was over when the state was saved
        self._loop = self._loops
        first = resume["epoch"] if resume is not None and resume["loop"] == self._loops else 0
        for epoch in itertools.count(first) if count is None else range(first, count):
            self._epoch, self._batches, self._epoch_began = epoch, 0, None
            yield epoch, _Batches(lambda: self._iterate(loader), loader)

    def _iterate(self, loader: Iterable[Any]) -> Iterator[Any]:
        resume, self._resume = self._resume, None
        self._loader = loader
        if resume is not None:
            self._set_random_state(resume["epoch_began"])
        self._epoch_began = self._random_state()
        iterator = iter(loader)
        if resume is not None:
            self._batches = _passed_over(iterator, loader, resume["batches"])
            self._set_random_state(resume["now"])
        while True:
            self._at_rest()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._batches += 1
            self.minibatches += 1
            yield batch

    def _random_state(self) -> dict[str, Any]:
        generators = randomness.generators(self._loader)
        return {
            "process": randomness.state(),
            "loader": [generator.get_state() for generator in generators],
        }

    def _set_random_state(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        randomness.restore(state["process"])
        for generator, then in zip(randomness.generators(self._loader), state["loader"]):  # noqa: B905 (Python 3.9)
            generator.set_state(then)


class _Batches:
    """The batches of an epoch, begun when they are asked for: after `set_epoch` and the like."""

    def __init__(self, begin: Callable[[], Iterator[Any]], loader: Iterable[Any]) -> None:
        self._begin = begin
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return self._begin()

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # raises as the loader's own would


def _passed_over(iterator: Any, loader: Any, count: int) -> int:  # noqa: ANN401 (any iterable)
    only_sampler = (
        getattr(loader, "num_workers", None) == 0
        and getattr(iterator, "_dataset_kind", None) == _MAP_STYLE
        and hasattr(iterator, "_next_index")
    )
    step = iterator._next_index if only_sampler else iterator.__next__  # noqa: SLF001 (torch offers no public way)
    for done in range(count):
        try:
            step()
        except StopIteration:
            return done
    return count
