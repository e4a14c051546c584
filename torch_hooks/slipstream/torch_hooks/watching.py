# SPDX-License-Identifier: Apache-2.0
"""Which optimizers, schedulers, scalers, replicas and loaders a program has made.

Their constructors take a note; the objects themselves are not kept alive by it.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_WATCHED = (
    ("torch.optim.optimizer", "Optimizer"),
    ("torch.optim.lr_scheduler", "LRScheduler"),
    # These three do not call their parent's constructor.
    ("torch.optim.lr_scheduler", "ReduceLROnPlateau"),
    ("torch.optim.lr_scheduler", "SequentialLR"),
    ("torch.optim.lr_scheduler", "ChainedScheduler"),
    ("torch.amp.grad_scaler", "GradScaler"),
    ("torch.cuda.amp.grad_scaler", "GradScaler"),  # before torch 2.3; after, a child of the other
    ("torch.nn.parallel.distributed", "DistributedDataParallel"),
    ("torch.utils.data.dataloader", "DataLoader"),
)
_made: list[weakref.ref[Any]] = []
_leader: list[Callable[[], object]] = []


class Watch:
    """The constructors' own functions, for as long as ours stand in their place."""

    def __init__(self) -> None:
        self._before: list[tuple[type[Any], Callable[..., None]]] = []
        watched = set()
        for module, name in _WATCHED:
            kind = getattr(sys.modules.get(module), name, None)
            if kind is not None and name not in watched:  # an old torch, or half a one
                watched.add(name)
                self._before.append((kind, kind.__init__))
                kind.__init__ = _noting(kind.__init__)

    def remove(self) -> None:
        """Put them back."""
        for kind, constructor in self._before:
            kind.__init__ = constructor


def alive(kind: type[Any]) -> list[Any]:
    """All objects of a kind that are in use, in the order in which they were made."""
    found: list[Any] = []
    for reference in _made:
        one = reference()
        if isinstance(one, kind) and all(one is not other for other in found):
            found.append(one)
    return found


def leads(optimizer: Callable[[], object]) -> None:
    """Its steps are boundaries from now on; as a reference, which may come to refer to nothing."""
    _leader[:] = [optimizer]


def leader() -> object:
    """The optimizer whose steps are boundaries; None: there is none, or no more."""
    return _leader[0]() if _leader else None


def _noting(constructor: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(constructor)
    def noting(self: Any, *arguments: Any, **named: Any) -> None:  # noqa: ANN401 (as it comes)
        constructor(self, *arguments, **named)
        _made[:] = [reference for reference in _made if reference() is not None]
        _made.append(weakref.ref(self))

    return noting
