# SPDX-License-Identifier: Apache-2.0
"""Where a mini-batch ends: after the outermost step of the optimizer that leads.

Torch calls global hooks before and after each `step` of each optimizer. One call of the user's can
be several of those: an optimizer that calls `super().step()`, or one that holds another. So steps
are counted in depth. Of several optimizers one leads: the first that steps. Another takes over when
the leader is gone or has been passed sixteen times.

A step that raises never reaches the hook after it. Therefore a step that seems to be inside another
looks whether that other one is still on the stack, and forgets it otherwise.
"""

from __future__ import annotations

import weakref
from sys import _getframe  # the only cheap way to see who called
from threading import get_ident
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks.labels import label

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType

_PASSED_BY = 16


class _Thread:
    """How deep a thread is in steps, and whose steps it follows."""

    __slots__ = ("depth", "leader", "outermost", "passed")

    def __init__(self) -> None:
        self.depth = 0
        self.outermost = 0
        self.leader: Callable[[], object] = _nobody
        self.passed = 0


class _NeverOn:
    """For a torch whose profiler cannot be asked cheaply."""

    _is_profiler_enabled = False


class Boundaries:
    """The hooks of this process; each thread that steps has its own depth and leader."""

    __slots__ = ("_at_boundary", "_profiler", "_threads")

    def __init__(self, at_boundary: Callable[[], None], profiler: ModuleType | None = None) -> None:
        """`profiler` is torch's: looking whether it is on costs some ten nanoseconds."""
        self._at_boundary = at_boundary
        can_be_asked = profiler is not None and hasattr(profiler, "_is_profiler_enabled")
        self._profiler: Any = profiler if can_be_asked else _NeverOn
        self._threads: dict[int, _Thread] = {}

    def before_step(self, _optimizer: object, _args: object, _kwargs: object) -> None:
        """Torch's hook before each step."""
        thread = self._threads.get(get_ident())
        if thread is None:
            thread = self._threads[get_ident()] = _Thread()
        caller = _getframe(1)
        if thread.depth and _is_below(caller, thread.outermost):
            thread.depth += 1
        else:
            thread.depth = 1
            thread.outermost = id(caller)

    def after_step(self, optimizer: object, _args: object, _kwargs: object) -> None:
        """Torch's hook after each step."""
        thread = self._threads.get(get_ident())
        if thread is None:
            return  # attached in the middle of a step
        thread.depth -= 1
        if thread.depth > 0:
            return
        if thread.leader() is optimizer or _takes_the_lead(thread, optimizer):
            thread.passed = 0
            if self._profiler._is_profiler_enabled:  # noqa: SLF001 (asking torch takes 60 ns)
                with label("boundary"):
                    self._at_boundary()
            else:
                self._at_boundary()


def _takes_the_lead(thread: _Thread, optimizer: object) -> bool:
    thread.passed += 1
    if thread.leader() is not None and thread.passed < _PASSED_BY:
        return False
    try:
        thread.leader = weakref.ref(optimizer)
    except TypeError:  # a class of the user's that allows no weak references
        thread.leader = lambda: optimizer
    return True


def _nobody() -> None:
    return None


def _is_below(caller: FrameType, outermost: int) -> bool:
    """Whether the step called from `caller` runs inside the one called from `outermost`.

    The frame of a step that raised is gone and its number may be that of the caller itself: hence
    the search begins one further up.
    """
    frame = caller.f_back
    while frame is not None:
        if id(frame) == outermost:
            return True
        frame = frame.f_back
    return False
