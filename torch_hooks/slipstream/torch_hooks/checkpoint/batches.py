# SPDX-License-Identifier: Apache-2.0
"""The batches of one epoch: in all but their iteration the loader itself.

    len(batches.dataset), batches.batch_size, isinstance(batches, DataLoader)
    batches.sampler.set_epoch(3)

Attributes are read from and written to the loader; what `len`, `[]` and the like do is what the
loader does.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_OWN = frozenset(
    f"__{name}__"
    for name in (
        "class",
        "class_getitem",
        "del",
        "delattr",
        "dict",
        "getattr",
        "getattribute",
        "init",
        "init_subclass",
        "iter",
        "new",
        "next",
        "setattr",
        "slots",
        "subclasshook",
        "weakref",
    )
)


class Batches:
    """Stands for a loader during one epoch; begun when it is asked for, after `set_epoch`."""

    @staticmethod
    def of(loader: Iterable[Any], begin: Callable[[], Iterator[Any]]) -> Any:  # noqa: ANN401 (as its loader)
        """The loader with another iterator."""
        stand_in = object.__new__(_kind(type(loader)))
        object.__setattr__(stand_in, "_slipstream", (loader, begin))
        return stand_in

    def __iter__(self) -> Iterator[Any]:
        begin: Callable[[], Iterator[Any]] = object.__getattribute__(self, "_slipstream")[1]
        return begin()

    def __getattr__(self, name: str) -> object:
        return getattr(_loader(self), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(_loader(self), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(_loader(self), name)

    def __dir__(self) -> list[str]:
        return dir(_loader(self))

    @property
    def __class__(self) -> Any:  # noqa: ANN401 (as the loader says)
        return _loader(self).__class__

    @__class__.setter
    def __class__(self, kind: Any) -> None:  # noqa: ANN401 (as the loader lets)
        _loader(self).__class__ = kind


def _loader(stand_in: Batches) -> Any:  # noqa: ANN401 (the user's)
    return object.__getattribute__(stand_in, "_slipstream")[0]


@functools.lru_cache(maxsize=64)
def _kind(of: type[Any]) -> type[Batches]:
    """The class of the stand-in for a class: Python looks for `__len__` and the like there."""
    special = {
        name: _passing_on(name)
        for name in dir(of)
        if name.startswith("__") and name not in _OWN and callable(getattr(of, name, None))
    }
    if hasattr(of, "__next__"):
        special["__next__"] = _next
    return type("Batches", (Batches,), special)


def _passing_on(name: str) -> Callable[..., Any]:
    def special(self: Batches, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401 (the loader's own)
        return getattr(_loader(self), name)(*arguments, **named)

    return special


def _next(self: Batches) -> Any:  # noqa: ANN401 (a batch)
    """Of a loader that is an iterator itself: through ours, which counts."""
    loader, begin = object.__getattribute__(self, "_slipstream")
    iterator = begin()
    object.__setattr__(self, "_slipstream", (loader, lambda: iterator))
    return next(iterator)
