# SPDX-License-Identifier: Apache-2.0
"""What a loader remembers from one epoch to the next, beside the random state of its process.

That is the generators which its dataset, its samplers and its collate function hold, found by
looking through their attributes, and the numbers and lists of numbers that a sampler of the user's
changes (an epoch counter, an order that is shuffled in place). Other variables of a dataset are the
user's own: nobody can tell a counter that matters from the number of an open file.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import types
from array import array
from collections import deque
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.checkpoint import randomness
from slipstream.torch_hooks.checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch
else:
    from slipstream.torch_hooks.lazy_torch import torch

_PARTS = ("generator", "synchronized_generator", "dataset", "collate_fn", "base_dataloader")
_SAMPLERS = ("sampler", "batch_sampler")
_DEEP = 6
_MANY_SAMPLERS = 32
_MANY_ITEMS = 256
_MANY_OBJECTS = 5000
_TORCHS_OWN = "torch.utils.data"


class LoaderState:
    """The memory of some loaders, from when this object is made.

    Args:
        loaders: they.
        everything: whether values that have not changed since then are saved, too: another process
            may have them otherwise, because it passes over what changed them before.
    """

    def __init__(self, loaders: Iterable[object], *, everything: bool = False) -> None:
        self._loaders = tuple(loaders)
        self._everything = everything
        self._at_first = {path: _copied(one) for path, (_, _, one) in self._values()}
        self._marks = {path: _mark(one) for path, one in self._at_first.items()}

    def state(self) -> dict[str, Any]:
        """The states of all generators, and the samplers' values that changed since the start."""
        generators = {
            path: randomness.generator_state(one) for path, one in generators_of(self._loaders)
        }
        values = {}
        for path, (_, _, value) in self._values():
            if _mark(value) != self._marks.get(path):
                values[path] = _to_save(path, value)
            elif self._everything:
                with contextlib.suppress(CheckpointError):  # no numbers, and it stays as it is
                    values[path] = _to_save(path, value)
        return {"generators": generators, "values": values}

    def restore(self, then: dict[str, Any]) -> None:
        """Give all of it back, in place."""
        for path, generator in generators_of(self._loaders):
            if path in then["generators"]:
                randomness.restore_generator(generator, then["generators"][path])
        for path, (owner, name, value) in list(self._values()):
            wanted = then["values"].get(path, self._at_first.get(path))
            if path in then["values"] or _mark(value) != self._marks.get(path):
                _give_back(owner, name, value, wanted)

    def _values(self) -> Iterator[tuple[str, tuple[Any, str, Any]]]:
        """Values that may change: those of samplers, and the public numbers of a loader."""
        for at, loader in enumerate(self._loaders):
            for name, value in _attributes(loader):
                if type(value) is int and not name.startswith("_"):
                    yield f"{at}.{name}", (loader, name, value)
            for path, sampler in samplers_of(loader):
                for name, value in _attributes(sampler):
                    if isinstance(value, (int, float, str, type(None))) or _is_list(value):
                        yield f"{at}.{path}.{name}", (sampler, name, value)


def generators_of(roots: Iterable[object]) -> list[tuple[str, Any]]:
    """Each generator that the loaders (or a worker's dataset) hold, once, with its path."""
    found: list[tuple[str, Any]] = []
    seen: dict[int, object] = {}  # the objects, too: an id is only unique while its object lives
    waiting: list[tuple[str, object, int]] = []
    for at, root in enumerate(roots):
        if _is_loader(root):
            inner = {name: getattr(root, name, None) for name in _PARTS}
            inner |= dict(samplers_of(root))
            waiting += [(f"{at}.{name}", one, 0) for name, one in inner.items()]
        else:
            waiting.append((f"{at}", root, 0))
    while waiting and len(seen) < _MANY_OBJECTS:
        path, one, depth = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen[id(one)] = one
        if randomness.is_generator(one):
            found.append((path, one))
        elif depth < _DEEP:
            waiting += [(f"{path}.{name}", inner, depth + 1) for name, inner in _inside(one)]
    return sorted(found, key=lambda pair: pair[0])


def samplers_of(loader: object) -> Iterator[tuple[str, Any]]:
    """The samplers of a loader, from the outermost to the innermost, by their paths."""
    waiting: list[tuple[str, Any]] = [("", loader)]
    seen: list[object] = []
    while waiting:
        path, one = waiting.pop()
        for name in _SAMPLERS:
            inner = getattr(one, name, None)
            is_new = inner is not None and all(inner is not other for other in seen)
            if is_new and len(seen) < _MANY_SAMPLERS:
                seen.append(inner)
                yield f"{path}{name}", inner
                waiting.append((f"{path}{name}.", inner))


def is_torchs_own(sampler: object) -> bool:
    """Torch's samplers draw what they need for an epoch at its first index, or from their own."""
    return type(sampler).__module__.startswith(_TORCHS_OWN)


def _is_loader(one: object) -> bool:
    return hasattr(one, "dataset") and hasattr(one, "sampler")


def _attributes(one: object) -> list[tuple[str, Any]]:
    return list(getattr(one, "__dict__", {}).items())


def _inside(one: object) -> Iterator[tuple[str, object]]:
    """What an object holds, as far as a person would say that it is a part of it."""
    if isinstance(one, (str, bytes, int, float, types.ModuleType, type)) or _is_tensor(one):
        return
    if isinstance(one, (dict, list, tuple, deque)):
        if len(one) <= _MANY_ITEMS:
            pairs = one.items() if isinstance(one, dict) else enumerate(one)
            yield from ((str(key), value) for key, value in pairs)
    elif isinstance(one, functools.partial):
        yield from (("function", one.func), ("arguments", one.args), ("named", one.keywords))
    elif isinstance(one, types.MethodType):
        yield from (("self", one.__self__), ("function", one.__func__))
    elif isinstance(one, types.FunctionType):
        yield from _closed_over(one)
    elif isinstance(one, types.BuiltinMethodType):
        yield "self", one.__self__  # such as random.Random(3).shuffle
    else:
        yield from _attributes(one)


def _closed_over(function: types.FunctionType) -> Iterator[tuple[str, object]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or ()):  # noqa: B905 (Python 3.9)
        try:
            yield name, cell.cell_contents
        except ValueError:
            continue  # not filled yet
    yield "defaults", function.__defaults__


def _is_tensor(value: object) -> bool:
    return "torch" in sys.modules and isinstance(value, torch.Tensor)


def _is_list(value: object) -> bool:
    return isinstance(value, list) or type(value).__name__ == "ndarray" or _is_tensor(value)


def _copied(value: Any) -> Any:  # noqa: ANN401 (a number, or many)
    return value.clone() if _is_tensor(value) else copy.copy(value)


def _mark(value: Any) -> Any:  # noqa: ANN401 (a number, or many)
    """Something that is another one when the value is."""
    if not _is_list(value):
        return value
    numbers = _numbers(value)
    return None if numbers is None else (numbers.typecode, len(numbers), hash(numbers.tobytes()))


def _numbers(value: Any) -> array[Any] | None:  # noqa: ANN401 (a list, an array, a tensor)
    """All numbers of a value; None if it has others, which nobody can compare cheaply."""
    if not isinstance(value, list):
        value = value.ravel().tolist()
    for typecode in ("q", "d"):
        try:
            return array(typecode, value)
        except (TypeError, OverflowError):
            continue
    return None


def _to_save(path: str, value: Any) -> Any:  # noqa: ANN401 (a number, or many)
    if not isinstance(value, list):
        return _copied(value)  # a sampler may change it in place before it is written
    numbers = _numbers(value)
    if numbers is None:
        raise CheckpointError(f"{path} of a sampler changes, and is no list of numbers")
    kind = torch.int64 if numbers.typecode == "q" else torch.float64
    return torch.tensor(value, dtype=kind)


def _give_back(owner: Any, name: str, value: Any, then: Any) -> None:  # noqa: ANN401 (see LoaderState)
    if isinstance(value, list) and (isinstance(then, list) or _is_tensor(then)):
        value[:] = then if isinstance(then, list) else then.tolist()  # an iterator may hold it
    elif _is_list(value) and getattr(value, "shape", None) == getattr(then, "shape", None):
        value[...] = then
    else:
        setattr(owner, name, then)
