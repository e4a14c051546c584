# SPDX-License-Identifier: Apache-2.0
"""Where a training is in its epochs and batches, and how it gets there again.

A loader goes on to the bit when the random state at the epoch's beginning is set, as many batches
as were used are passed over, and the random state of the moment is set. Without worker processes
only the sampler is asked to pass over; workers have random states of their own, so they load again
what was used, and it is thrown away.

What cannot be brought back that way is found out while it trains (`why_not`), and the training is
then not restorable.
"""

from __future__ import annotations

import copy
import itertools
import sys
import weakref
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.checkpoint import randomness
from slipstream.torch_hooks.checkpoint.batches import Batches
from slipstream.torch_hooks.checkpoint.loader_state import (
    LoaderState,
    generators_of,
    is_torchs_own,
    samplers_of,
)
from slipstream.torch_hooks.checkpoint.persistent_workers import PersistentWorkers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MAP_STYLE = 0  # torch's _DatasetKind.Map
_ITERABLE = 1
_IN_ORDER = (range, list, tuple)
_DRAWS = (
    "{what} draws from the process's random state while it goes on, as the training does: give it "
    "a generator of its own (an attribute of it), or let worker processes load it"
)


class Loops:
    """The epochs of one run.

    Args:
        at_rest: called between any two batches.
        on_resume: called when a restored loop has reached the place where it was.
        on_problem: told what could not be brought back.
    """

    def __init__(
        self,
        at_rest: Callable[[], None],
        on_resume: Callable[[], None] = lambda: None,
        on_problem: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.minibatches = 0
        """How many were begun, in this process and in those before it."""
        self.is_plain = False
        """Nobody will ask where this loop is: it is only counted."""
        self._at_rest = at_rest
        self._on_resume = on_resume
        self._on_problem = on_problem
        self._why_not = ""
        self._loops = 0
        self._is_inside = False
        self._loop = 0
        self._epoch = 0
        self._pass = 0
        self._batches = 0
        self._epoch_began: dict[str, Any] | None = None
        self._first_asked: dict[str, Any] | None = None
        self._last_asked: dict[str, Any] | None = None
        self._loaders: tuple[Any, ...] = ()
        self._memory = LoaderState(())
        self._stateful: Any = None
        self._current: object = None
        self._resume: dict[str, Any] | None = None
        self._workers = PersistentWorkers(self._on_iterator, on_problem)

    @property
    def batch(self) -> int:
        """The number of the present batch in its epoch, from 0; also where a loop went on."""
        return self._batches - 1

    @property
    def why_not(self) -> str:
        """Why this loop could not go on in another process as it is; empty if it could."""
        return self._why_not or self._workers.why_not()

    def follow(self) -> None:
        """Watch loaders from now on: this process may be asked to save, or goes on from a state."""
        self._workers.follow()

    def leave(self) -> None:
        """The opposite; loaders are not kept, since their end is their workers' end."""
        self._workers.leave()
        self._loaders, self._memory, self._stateful = (), LoaderState(()), None

    def position(self) -> dict[str, Any]:
        """How far the loops are: the same on all ranks."""
        return {
            "loop": self._loop,
            "epoch": self._epoch,
            "pass": self._pass,
            "batches": self._batches,
            "minibatches": self.minibatches,
        }

    def random_states(self) -> dict[str, Any]:
        """This rank's, now and at the beginning of the epoch; and what its loaders remember."""
        return {
            "now": self._random_state(),
            "epoch_began": self._epoch_began,
            "first_asked": self._first_asked,
            "last_asked": self._last_asked,
            "workers": self._workers.state(_with_bases(self._loaders)),
            "loader": self._stateful.state_dict() if self._stateful and self._batches else None,
        }

    def restore(self, position: dict[str, Any], random_states: dict[str, Any] | None) -> None:
        """Have the loops begin at a position; a rank that was not there keeps its random state."""
        self.minibatches = position["minibatches"]
        self._resume = {"now": None, "epoch_began": None, **position, **(random_states or {})}
        then = self._resume["now"]
        if then is not None and isinstance(then["loader"], list) and then["loader"]:
            self._on_problem(
                "the loader's own generators were saved by earlier hooks: not restored"
            )
        self._workers.restore(self._resume.get("workers") or [])
        self._set_random_state(self._resume["now"])

    def epochs(
        self, loader: Iterable[Any], count: int | Iterable[int] | None, first: int = 0
    ) -> Iterator[tuple[int, Any]]:
        """Epochs by number, each with its batches.

        Args:
            loader: what gives the batches, anew for each epoch.
            count: how many, or their numbers; None is without an end.
            first: the number of the first.
        """
        numbers: Iterable[int]
        if count is None:
            numbers = itertools.count(first)
        else:
            numbers = range(first, first + count) if isinstance(count, int) else count
        if self._is_inside:  # a loop inside the loop, such as a validation: part of its body
            yield from ((number, loader) for number in numbers)
            return
        self._loops += 1
        resume = self._resume
        if resume is not None and resume["loop"] > self._loops:
            return  # it was over when the state was saved
        begin = 0
        self._enter(self._loops, (loader,))
        if resume is not None and resume["loop"] == self._loops:
            begin = resume["epoch"]
            self._set_random_state(resume["now"])
        try:
            for at, number in itertools.islice(enumerate(numbers), begin, None):
                self._epoch, self._pass, self._batches, self._epoch_began = at, 0, 0, None
                yield number, Batches.of(loader, lambda: self._iterate(loader))
                self._resume = None  # an epoch without batches: nothing was passed over
        finally:
            self._is_inside = False

    # For trainers with a loop of their own.

    @property
    def resumes(self) -> bool:
        """Whether there is a place to go to before anything is trained."""
        return self._resume is not None

    def refuse(self, why_not: str) -> None:
        """What it does cannot be brought back."""
        self._why_not = why_not

    def begin_epoch(self, epoch: int, loaders: Iterable[Any]) -> None:
        """An iterator over these is about to be made."""
        self._enter(1, tuple(loaders))
        self._epoch, self._pass, self._batches, self._first_asked = epoch, 0, 0, None
        if self._resume is not None:
            self._set_random_state(self._resume["epoch_began"])
        self._epoch_began = self._random_state()

    def ask_first(self) -> int:
        """Its first batch is about to be asked for; how many have to be passed over then."""
        if self._resume is not None:
            self._set_random_state(self._resume.get("first_asked"))
        self._first_asked = self._random_state()
        return self._resume["batches"] if self._resume is not None else 0

    def passed_over(self) -> None:
        """They were: go on from here."""
        resume, self._resume = self._resume, None
        if resume is not None:
            self._batches = resume["batches"]
            self._set_random_state(resume["now"])

    def rest(self, minibatches: int, batches: int) -> None:
        """Between two batches, with so many begun in all and in this epoch."""
        self.minibatches, self._batches = minibatches, batches
        self._workers.resting()
        self._at_rest()

    def _enter(self, loop: int, loaders: tuple[Any, ...]) -> None:
        self._loop, self._is_inside = loop, True
        known = self._loaders
        if [id(one) for one in loaders] != [id(one) for one in known]:
            self._loaders, self._why_not = loaders, ""
            self._memory, self._stateful = LoaderState(()), None
            if self.is_plain:
                return
            try:
                self._memory = LoaderState(_with_bases(loaders), everything=loop > 1)
            except Exception as error:  # noqa: BLE001 (attributes of the user's may do anything)
                self._why_not = f"the loader cannot be looked into: {error!r}"
            if len(loaders) == 1 and _is_stateful(loaders[0]):
                self._stateful = loaders[0]

    def _iterate(self, loader: Iterable[Any]) -> Iterator[Any]:
        resume = self._resume
        if resume is not None:
            if resume.get("pass", 0) > self._pass:
                self._pass += 1
                return  # these batches were used, all that the loop wanted
            self._resume = None
            self._set_random_state(resume["epoch_began"])
        mine = self._current = object()
        self._batches, self._last_asked = 0, None
        self._epoch_began = self._random_state()
        try:
            iterator = self._begun(loader, resume)
            ask = iterator.__next__ if _is_watched_inside(loader) else self._watched(iterator)
            looks_ahead = _may_look_ahead(loader)
            while True:
                if self._current is mine:
                    self._workers.resting()
                    self._at_rest()
                else:
                    self._why_not = "an epoch's batches are gone through twice at the same time"
                if looks_ahead and not self.is_plain:
                    self._last_asked = randomness.state()
                try:
                    batch = ask()
                except StopIteration:
                    return
                self._batches += 1
                self.minibatches += 1
                yield batch
        finally:
            if self._current is mine:
                self._current = None
                self._pass += 1

    def _begun(self, loader: Any, resume: dict[str, Any] | None) -> Iterator[Any]:  # noqa: ANN401 (any iterable)
        """The iterator of an epoch; in a restored process where it was."""
        if resume is None:
            return iter(loader)
        iterator: Iterator[Any]
        given = resume.get("loader")
        if given is not None and self._stateful is not None:
            loader.load_state_dict(copy.deepcopy(given))
            self._batches = resume["batches"]
            iterator = iter(loader)
        else:
            iterator = iter(loader)
            last = resume.get("last_asked")
            self._batches = _passed_over(iterator, loader, resume["batches"] - bool(last))
            if last:
                # What it looks ahead for is drawn now, as it was then.
                randomness.restore(last)
                self._last_asked = last
                self._batches += _passed_over(iterator, loader, 1)
        self._set_random_state(resume["now"])
        self._on_resume()
        return iterator

    def _watched(self, iterator: Iterator[Any]) -> Callable[[], Any]:
        """The next batch of something that may draw from the random states as it goes."""
        if self.is_plain:
            return iterator.__next__
        return _Watched(iterator.__next__, self._draws, "what gives the batches").next

    def _on_iterator(self, loader: Any, iterator: Any) -> None:  # noqa: ANN401 (torch's)
        """An iterator of torch's was begun: its sampler may be one of the user's."""
        if not any(loader is one for one in _with_bases(self._loaders)):
            return
        kind = getattr(iterator, "_dataset_kind", _MAP_STYLE)
        if kind == _ITERABLE and getattr(loader, "num_workers", 0) == 0:
            watched = _Watched(_weakly(iterator, "_next_data"), self._draws, "the dataset")
            iterator._next_data = watched.next  # noqa: SLF001 (torch's)
        elif kind == _MAP_STYLE and not all(is_torchs_own(one) for _, one in samplers_of(loader)):
            ask = _weakly(iterator, "_next_index")
            watched = _Watched(ask, self._draws, "the sampler", already=_asked_for(iterator))
            iterator._next_index = watched.next  # noqa: SLF001 (torch's)

    def _draws(self, what: str) -> None:
        self._why_not = _DRAWS.format(what=what)

    def _random_state(self) -> dict[str, Any] | None:
        if self.is_plain:
            return None
        try:
            return {"process": randomness.state(), "loader": self._memory.state()}
        except Exception as error:  # noqa: BLE001 (generators of the user's may do anything)
            self._why_not = f"a random state cannot be read: {error!r}"
            return None

    def _set_random_state(self, state: dict[str, Any] | None) -> None:
        if state is None:
            return
        try:
            randomness.restore(state["process"])
            if isinstance(state["loader"], dict):
                self._memory.restore(state["loader"])
        except Exception as error:  # noqa: BLE001 (as above)
            self._on_problem(f"a random state is not as it was: {error!r}")


class _Watched:
    """Asks for one thing after the other, and looks whether random numbers are drawn for them.

    For the first they may be: the random state of then is known.
    """

    def __init__(
        self,
        ask: Callable[[], Any],
        on_draw: Callable[[str], None],
        what: str,
        *,
        already: bool = False,
    ) -> None:
        self._ask = ask
        self._on_draw = on_draw
        self._what = what
        self._asked = already

    def next(self) -> Any:  # noqa: ANN401 (whatever it is)
        if not self._asked:
            self._asked = True
            return self._ask()
        before = randomness.state()
        try:
            return self._ask()
        finally:
            if randomness.differs(before, randomness.state()):
                self._on_draw(self._what)


def _weakly(iterator: Any, name: str) -> Callable[[], Any]:  # noqa: ANN401 (torch's)
    """A method of the iterator's class, that does not keep it: its end is its workers' end."""
    method, reference = getattr(type(iterator), name), weakref.ref(iterator)
    return lambda: method(reference())


def _asked_for(iterator: Any) -> bool:  # noqa: ANN401 (torch's)
    """Whether indices have been asked for already, as workers are given some ahead."""
    return bool(getattr(iterator, "_send_idx", 0))


def _may_look_ahead(loader: Any) -> bool:  # noqa: ANN401 (any iterable)
    """Accelerate's loaders have the next batch loaded, in this process, before they give this."""
    inner = getattr(loader, "base_dataloader", None)
    return inner is not None and not getattr(inner, "num_workers", 0)


def _with_bases(loaders: Iterable[Any]) -> list[Any]:
    """Loaders, and those that they stand for."""
    found = []
    for loader in loaders:
        found.append(loader)
        if (base := getattr(loader, "base_dataloader", None)) is not None:
            found.append(base)
    return found


def _is_watched_inside(loader: object) -> bool:
    """Whether no harm can come from this, or an iterator of torch's inside is watched."""
    if isinstance(loader, _IN_ORDER):
        return True
    data = sys.modules.get("torch.utils.data")
    return data is not None and isinstance(loader, data.DataLoader)


def _is_stateful(loader: Any) -> bool:  # noqa: ANN401 (any iterable)
    """Whether a loader tells and takes its own place."""
    if not callable(getattr(loader, "load_state_dict", None)):
        return False
    try:
        return isinstance(loader.state_dict(), dict)
    except Exception:  # noqa: BLE001 (accelerate's have the function, and only some can)
        return False


def _passed_over(iterator: Any, loader: Any, count: int) -> int:  # noqa: ANN401 (any iterable)
    only_sampler = (
        getattr(loader, "num_workers", None) == 0
        and getattr(iterator, "_dataset_kind", None) == _MAP_STYLE
        and hasattr(iterator, "_next_index")
        # A sampler of the user's may share a generator with the dataset.
        and (
            all(is_torchs_own(one) for _, one in samplers_of(loader)) or not generators_of([loader])
        )
    )
    step = iterator._next_index if only_sampler else iterator.__next__  # noqa: SLF001 (torch offers no public way)
    for done in range(count):
        try:
            step()
        except StopIteration:
            return done
    return count
