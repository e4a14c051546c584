# SPDX-License-Identifier: Apache-2.0
"""Where a training first uses a device: there a job that was started ahead of its turn waits.

Its imports and its loading are behind it by then, and nothing is on the GPU yet. Held are: the
occupancy GPU being opened; CUDA being initialized [never run on a GPU]; and, for a training on the
CPU, the first call of a module or step of an optimizer. All of that is let go at the first of them.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_HELD_AT = ("torch.nn.modules.module", "torch.optim.optimizer")
_before: Callable[[], None] | None = None
_lock = threading.RLock()
_let_go: list[Callable[[], object]] = []


def hold(before: Callable[[], None]) -> None:
    """Have `before` called once, when a device is first used; every thread waits for its end."""
    global _before  # noqa: PLW0603 (a process has one first use)
    _before = before
    if "torch" in sys.modules:
        modules, optimizer = map(importlib.import_module, _HELD_AT)
        _let_go.append(modules.register_module_forward_pre_hook(device_is_wanted).remove)
        _let_go.append(optimizer.register_optimizer_step_pre_hook(device_is_wanted).remove)
    if "torch.cuda" in sys.modules:
        _hold_cuda(sys.modules["torch.cuda"])


def hold_later(before: Callable[[], None]) -> None:
    """The same while the program goes on in another thread; nothing if that is seen to already."""
    # Called in a thread of ours: an import there could meet the program's own half-way.
    if _before is None and all(map(_is_imported, _HELD_AT)):
        hold(before)


def _is_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def device_is_wanted(*_: object) -> None:
    """A device is about to be used; also a hook of torch's, hence the arguments."""
    if _before is None:
        return
    with _lock:
        before = _before
        if before is not None:
            _remove_hooks()
            before()
            forget()


def forget() -> None:
    """Hold nothing any more."""
    global _before  # noqa: PLW0603 (see above)
    _before = None
    _remove_hooks()


def forget_in_child() -> None:
    """In a forked child: another thread of the parent may have had the lock."""
    global _lock  # noqa: PLW0603 (see above)
    _lock = threading.RLock()
    forget()


def _remove_hooks() -> None:
    while _let_go:
        _let_go.pop()()


def _hold_cuda(cuda: ModuleType) -> None:
    """Every way to CUDA leads through this function, which several modules have by name."""
    initialize = cuda._lazy_init  # noqa: SLF001 (C++ calls it by this name, too)

    @functools.wraps(initialize)
    def held() -> None:
        device_is_wanted()
        initialize()

    for name, module in list(sys.modules.items()):
        if name.startswith("torch.") and vars(module).get("_lazy_init") is initialize:
            vars(module)["_lazy_init"] = held
            _let_go.append(functools.partial(vars(module).__setitem__, "_lazy_init", initialize))
