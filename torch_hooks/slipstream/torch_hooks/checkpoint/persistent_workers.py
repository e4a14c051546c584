# SPDX-License-Identifier: Apache-2.0
"""Loaders whose worker processes outlive an epoch: begun again in another process as they were.

An iterator with persistent workers draws one seed when it is made and none at a reset; its workers
draw on from epoch to epoch. In a restored process the iterator has to be made at first, which must
not draw anything from the training's random states, and the workers are given theirs.
"""

from __future__ import annotations

import functools
import sys
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import watching
from slipstream.torch_hooks.checkpoint import randomness
from slipstream.torch_hooks.checkpoint.errors import CheckpointError
from slipstream.torch_hooks.checkpoint.loader_state import LoaderState
from slipstream.torch_hooks.checkpoint.worker_reports import WorkerReports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
else:
    from slipstream.torch_hooks.lazy_torch import torch

_MODULE = "torch.utils.data.dataloader"
_PATIENCE_S = 5.0
_LOOK_EVERY_S = 0.001


@dataclass
class _Begun:
    """A loader whose workers this process has begun."""

    loader: weakref.ref[Any]
    reports: WorkerReports | None
    """None: they were begun before anybody looked."""
    seed_drawn_from: torch.Tensor | None
    """The state of the generator that their seed was drawn from."""
    base_seed: int
    round: int = 0
    revived: bool = False
    is_late: bool = False
    """Made in the loop's body: another process would not have it when it goes on."""


class PersistentWorkers:
    """Stands in `DataLoader.__iter__` from `follow` to `leave`.

    Args:
        on_iterator: told of each iterator of a DataLoader of torch's, persistent or not.
        on_problem: told what could not be brought back.
    """

    def __init__(
        self,
        on_iterator: Callable[[Any, Any], None],
        on_problem: Callable[[str], None],
    ) -> None:
        self._on_iterator = on_iterator
        self._on_problem = on_problem
        self._original: Any = None
        self._begun: list[_Begun] = []
        self._to_revive: list[dict[str, Any]] = []
        self._early: list[weakref.ref[Any]] | None = None

    def follow(self) -> None:
        """Be there when a loader is iterated over."""
        module = sys.modules.get(_MODULE)
        if module is None or self._original is not None:
            return
        kind: Any = module.DataLoader
        self._original = original = kind.__iter__

        @functools.wraps(original)
        def iterate(loader: Any) -> Any:  # noqa: ANN401 (torch's)
            iterator = self._iterator_of(loader, original)
            try:
                self._on_iterator(loader, iterator)
            except Exception as error:  # noqa: BLE001 (attributes of the user's may do anything)
                self._on_problem(f"a loader cannot be looked into: {error!r}")
            return iterator

        kind.__iter__ = iterate

    def leave(self) -> None:
        """Loaders are as torch made them."""
        if self._original is not None:
            sys.modules[_MODULE].DataLoader.__iter__ = self._original
            self._original = None
        self._begun = []

    def resting(self) -> None:
        """The loop is at its first rest in this process: what is made from now on is made anew."""
        if self._early is None:
            loaders = watching.alive(_loader_class()) if _MODULE in sys.modules else []
            self._early = [weakref.ref(one) for one in loaders if _is_persistent(one)]

    def why_not(self) -> str:
        """Why what there is now could not be brought back; empty if it could."""
        for begun in self._begun:
            loader = begun.loader()
            if loader is None or loader._iterator is None:  # noqa: SLF001 (torch's)
                continue
            if begun.reports is None:
                return "the persistent workers of a DataLoader were begun before session(…)"
            if begun.is_late:
                return (
                    "a DataLoader with persistent workers was made inside the loop: make it before"
                )
        return ""

    def state(self, replayed: Iterable[object]) -> list[dict[str, Any]]:
        """What another process needs to go on with them.

        Of those that are `replayed` from the beginning of their epoch on, the states of then.
        """
        again = list(replayed)
        states = []
        alive = [one for one in self._begun if one.loader() is not None]
        self._begun = alive
        for begun in alive:
            loader = begun.loader()
            is_replayed = any(loader is one for one in again)
            if begun.reports is None or (is_replayed and not begun.round):
                continue  # it draws its seed again, as it did
            key = _key(loader)
            states.append(
                {
                    "key": key,
                    "number": self._number(loader, key),
                    "seed_drawn_from": begun.seed_drawn_from,
                    "base_seed": begun.base_seed,
                    "workers": _workers(begun, loader, is_replayed=is_replayed),
                }
            )
        return states

    def restore(self, states: list[dict[str, Any]]) -> None:
        """Have these begun again as they were, each when it is iterated over for the first time."""
        self._to_revive = list(states)

    def _iterator_of(self, loader: Any, original: Callable[[Any], Any]) -> Any:  # noqa: ANN401 (torch's)
        try:
            if not _is_persistent(loader):
                return original(loader)
            begun = next((one for one in self._begun if one.loader() is loader), None)
            has_iterator = loader._iterator is not None  # noqa: SLF001 (torch's)
        except AttributeError:  # another torch, or a heir that has less
            return original(loader)
        if has_iterator:
            vars(loader._iterator).pop("_next_index", None)  # noqa: SLF001 (watched in the last epoch)
        if begun is not None and has_iterator:
            begun.round += 1
            return original(loader)
        if has_iterator:
            self._begun.append(_Begun(weakref.ref(loader), None, None, 0))
            return original(loader)
        return self._first(loader, original)

    def _first(self, loader: Any, original: Callable[[Any], Any]) -> Any:  # noqa: ANN401 (torch's)
        try:
            saved = self._saved(loader)
            state = LoaderState([loader])
            before = randomness.state(), state.state()
            given = [_as_read(one) for one in saved["workers"]] if saved else None
            reports = WorkerReports(loader.worker_init_fn, loader.num_workers, given)
        except Exception as error:  # noqa: BLE001 (no shared memory is left; a user's attribute raises)
            self._on_problem(f"a loader's workers cannot report: {error}")
            self._begun.append(_Begun(weakref.ref(loader), None, None, 0))
            return original(loader)
        drawn_from = _seeds(loader).get_state()
        if saved:
            drawn_from = saved["seed_drawn_from"]
            _seeds(loader).set_state(drawn_from)
        inner, loader.worker_init_fn = loader.worker_init_fn, reports
        try:
            iterator = original(loader)
        finally:
            loader.worker_init_fn = inner
        seed = iterator._base_seed  # noqa: SLF001 (torch's)
        begun = _Begun(
            weakref.ref(loader), reports, drawn_from, seed, is_late=self._is_late(loader)
        )
        self._begun = [one for one in self._begun if one.loader() not in (None, loader)]
        self._begun.append(begun)
        if saved is None:
            return iterator
        randomness.restore(before[0])
        state.restore(before[1])
        if seed != saved["base_seed"]:
            self._on_problem("a loader's workers could not be given the seed that they had")
        begun.round, begun.revived = 1, True
        return original(loader)  # a reset, as the loader's iterator would have had it

    def _saved(self, loader: Any) -> dict[str, Any] | None:  # noqa: ANN401 (torch's)
        """What is known of this loader from another process."""
        if not self._to_revive or self._is_late(loader):
            return None
        key = _key(loader)
        same = [one for one in self._to_revive if one["key"] == key]
        number = self._number(loader, key)
        found = next((one for one in same if one["number"] == number), None)
        if found is not None:
            self._to_revive.remove(found)
        return found

    def _is_late(self, loader: object) -> bool:
        return self._early is not None and all(one() is not loader for one in self._early)

    def _number(self, loader: object, key: str) -> int:
        """Which of those of one kind it is, in the order in which they were made."""
        alike = [one for one in watching.alive(_loader_class()) if _is_persistent(one)]
        alike = [one for one in alike if _key(one) == key]
        return next((at for at, one in enumerate(alike) if one is loader), len(alike))


def _workers(begun: _Begun, loader: Any, *, is_replayed: bool) -> list[dict[str, Any]]:  # noqa: ANN401 (torch's)
    assert begun.reports is not None  # noqa: S101 (the caller looked)
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        iterator = loader._iterator  # noqa: SLF001 (torch's)
        # Of a stream that has ended nothing more is loaded, whatever was asked for.
        ended = not any(getattr(iterator, "_workers_status", [True]))
        sent = None if ended else getattr(iterator, "_send_idx", 0)
        found = (
            begun.reports.at_beginning(begun.round)
            if is_replayed
            else begun.reports.after(begun.round, sent)
        )
        if found is not None:
            return [_as_saved(one) for one in found]
        if time.monotonic() > deadline_s:
            raise CheckpointError("a DataLoader's persistent workers do not come to rest")
        time.sleep(_LOOK_EVERY_S)


def _as_saved(state: dict[str, Any]) -> dict[str, Any]:
    return {"process": state["process"], "generators": state["generators"]}


def _as_read(state: dict[str, Any]) -> dict[str, Any]:
    return {"process": dict(state["process"]), "generators": dict(state["generators"])}


def _seeds(loader: Any) -> torch.Generator:  # noqa: ANN401 (torch's)
    """What a loader draws its workers' seed from."""
    generator: torch.Generator = loader.generator or torch.default_generator
    return generator


def _is_persistent(loader: Any) -> bool:  # noqa: ANN401 (torch's)
    return bool(loader.persistent_workers and loader.num_workers > 0)


def _key(loader: Any) -> str:  # noqa: ANN401 (torch's)
    """By what a loader is known in another process of the same program."""
    try:
        samples = len(loader.dataset)
    except TypeError:
        samples = -1
    named = type(loader.dataset).__qualname__
    return f"{named} of {samples}, {loader.batch_size} a batch, {loader.num_workers} workers"


def _loader_class() -> Any:  # noqa: ANN401 (torch's)
    return sys.modules[_MODULE].DataLoader
