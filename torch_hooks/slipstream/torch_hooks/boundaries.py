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

import sys
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

_PASSED_BY = 16


class Boundaries(threading.local):
    """The hooks of this process; each thread that steps has its own depth and leader."""

    def __init__(self, at_boundary: Callable[[], None]) -> None:
        self._at_boundary = at_boundary
        self._depth = 0
        self._outermost = 0
        self._leader: Callable[[], object] = _nobody
        self._passed = 0

    def before_step(self, _optimizer: object, _args: object, _kwargs: object) -> None:
        """Torch's hook before each step."""
        if self._depth:
            caller = sys._getframe(1)  # noqa: SLF001 (the only cheap way to see who called)
            if not _is_below(caller, self._outermost):
                self._depth = 0
        if not self._depth:
            self._outermost = id(sys._getframe(1))  # noqa: SLF001 (as above)
        self._depth += 1

    def after_step(self, optimizer: object, _args: object, _kwargs: object) -> None:
        """Torch's hook after each step."""
        if self._depth > 1:
            self._depth -= 1
            return
        self._depth = 0
        if self._leader() is not optimizer and not self._follow(optimizer):
            return
        self._passed = 0
        self._at_boundary()

    def _follow(self, optimizer: object) -> bool:
        """Whether this optimizer leads from now on."""
        self._passed += 1
        if self._leader() is not None and self._passed < _PASSED_BY:
            return False
        try:
            self._leader = weakref.ref(optimizer)
        except TypeError:  # a class of the user's that allows no weak references
            self._leader = lambda: optimizer
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
