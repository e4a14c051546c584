# SPDX-License-Identifier: Apache-2.0
"""Where a mini-batch ends: after the outermost step of the optimizer that leads.

Torch calls global hooks before and after each `step` of each optimizer. One call of the user's can
be several of those: an optimizer that calls `super().step()`, or one that holds another. So steps
are counted in depth. Of several optimizers one leads: the first that steps. Another takes over when
the leader is gone or has been passed sixteen times; then its earlier steps are counted, too.

A step that raises never reaches the hook after it. Therefore a step that seems to be inside another
looks whether there is another one on the stack, and forgets it otherwise.

The plain case has a shortcut in native code (`native_step`).
"""

from __future__ import annotations

import weakref
from sys import _getframe  # the only cheap way to see who called
from threading import get_ident
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import watching
from slipstream.torch_hooks.labels import label
from slipstream.torch_hooks.native_step import Steps, never

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType

    from slipstream.torch_hooks.native_step import Shortcuts

_PASSED_BY = 16


class _Thread:
    """How deep a thread is in steps, and whose steps it follows."""

    __slots__ = ("leader", "passed_by", "steps")

    def __init__(self) -> None:
        self.steps = Steps()
        self.leader: Callable[[], object] = _nobody
        self.passed_by: dict[int, tuple[Callable[[], object], int]] = {}
        """By its `id`: each other optimizer and how often it has stepped since the leader did."""


class _NeverOn:
    """For a torch whose profiler cannot be asked cheaply."""

    _is_profiler_enabled = False


class Boundaries:
    """The hooks of this process; each thread that steps has its own depth and leader."""

    __slots__ = ("_at_boundary", "_missed", "_profiler", "_step_begins", "_step_ends", "_threads")

    def __init__(
        self,
        at_boundary: Callable[[], None],
        profiler: ModuleType | None = None,
        missed: Callable[[int], None] | None = None,
    ) -> None:
        """Call these at boundaries.

        Args:
            at_boundary: after each mini-batch.
            profiler: torch's; looking whether it is on costs some ten nanoseconds.
            missed: before that, how many mini-batches a new leader has had that were not told.
        """
        self._at_boundary = at_boundary
        self._missed = missed
        can_be_asked = profiler is not None and hasattr(profiler, "_is_profiler_enabled")
        self._profiler: Any = profiler if can_be_asked else _NeverOn
        self._threads: dict[int, _Thread] = {}
        self._step_begins: Callable[[], bool] = never
        self._step_ends: Callable[[object], bool] = never

    def use(self, shortcuts: Shortcuts) -> None:
        """Ask these first."""
        self._step_begins, self._step_ends = shortcuts

    def steps_of_this_thread(self) -> Steps | None:
        """Where it is, for the shortcuts; None if it never stepped."""
        thread = self._threads.get(get_ident())
        return thread.steps if thread else None

    def forget(self) -> None:
        """Nobody leads: for a forked child, which may make optimizers of its own."""
        self._step_begins = self._step_ends = never
        self._threads.clear()

    @property
    def both(self) -> tuple[Callable[..., None], Callable[..., None]]:
        """What torch calls before and after each step."""
        return self.before_step, self.after_step

    def before_step(self, _optimizer: object, _args: object, _kwargs: object) -> None:
        """Torch's hook before each step."""
        if self._step_begins():
            return
        thread = self._threads.get(get_ident())
        if thread is None:
            thread = self._threads[get_ident()] = _Thread()
        if thread.steps.depth and _is_inside_another(_getframe(1)):
            thread.steps.depth += 1
        else:
            thread.steps.depth = 1

    def after_step(self, optimizer: object, _args: object, _kwargs: object) -> None:
        """Torch's hook after each step."""
        is_profiled = self._profiler._is_profiler_enabled  # noqa: SLF001 (asking torch takes 60 ns)
        if not is_profiled and self._step_ends(optimizer):
            return
        thread = self._threads.get(get_ident())
        if thread is None or not thread.steps.depth:
            return  # attached in the middle of a step
        thread.steps.depth -= 1
        if thread.steps.depth:
            return
        if thread.leader() is optimizer or _takes_the_lead(thread, optimizer, self._missed):
            thread.steps.passed = 0
            if is_profiled:
                with label("boundary"):
                    self._at_boundary()
            else:
                self._at_boundary()


def _takes_the_lead(
    thread: _Thread, optimizer: object, missed: Callable[[int], None] | None
) -> bool:
    if not thread.steps.passed:
        thread.passed_by.clear()  # the leader has stepped since
    thread.steps.passed += 1
    refers, steps = thread.passed_by.get(id(optimizer), (_nobody, 0))
    if refers() is not optimizer:  # another one that is gone had the same id
        refers, steps = _reference(optimizer), 0
    if thread.leader() is not None and thread.steps.passed < _PASSED_BY:
        thread.passed_by[id(optimizer)] = refers, steps + 1
        return False
    if steps and missed is not None:
        missed(steps)
    thread.passed_by.clear()
    thread.steps.leader = id(optimizer)
    thread.leader = refers
    watching.leads(thread.leader)
    return True


def _reference(optimizer: object) -> Callable[[], object]:
    try:
        return weakref.ref(optimizer)
    except TypeError:  # a class of the user's that allows no weak references
        return lambda: optimizer


def _nobody() -> None:
    return None


def _is_inside_another(caller: FrameType) -> bool:
    """Whether the step that calls our hook from this frame of torch's runs inside another one.

    Torch wraps each step of each optimizer in the same function. What Dynamo makes of it has
    another name and other code, in the same place.
    """
    place = caller.f_code.co_filename, caller.f_code.co_firstlineno
    frame = caller.f_back
    while frame is not None:
        if (frame.f_code.co_filename, frame.f_code.co_firstlineno) == place:
            return True
        frame = frame.f_back
    return False
