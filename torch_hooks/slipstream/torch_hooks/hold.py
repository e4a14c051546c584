# SPDX-License-Identifier: Apache-2.0
"""Holds: stopping a training that reaches no boundary at its next device operation.

A job that validates for long, or rests in a notebook, never comes to the place where it could read
what it is asked. So a thread of ours sleeps on its page (a futex: it costs nothing) and, when HOLD
is asked for, has every thread of the program stand still where it next uses its device, with its
memory in place, until that is asked no more, the lease is lost or a signal came (`native/hold.c`):

* before each operator of torch, once the program uses CUDA, or has trained on the CPU;
* where kernels are launched and memory is taken, on an occupancy GPU;
* at the first use of a device, before there was any: loading goes on until then.

Only for processes of jobs that take turns. A forked child has no such thread, and `fork` finds
none: it is stopped before and started again after.
"""

from __future__ import annotations

import _thread
import ctypes
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from slipstream.torch_hooks import first_use, native, native_gate, which_device
from slipstream.wire import futex
from slipstream.wire.control_block import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slipstream.torch_hooks.block import Block
    from slipstream.torch_hooks.notes import Notes

_LOOK_EVERY_NS = 10_000_000_000  # a coordinator that was killed before it woke us
_LOOK_WHEN_ASKED_NS = 250_000_000  # the lease, and which device it is
_WITHOUT_FUTEX_S = 0.5
_LOW = 0xFFFFFFFF
_JOIN_S = 1.0
_mapped: list[object] = []
"""Pages that native code knows stay mapped: a thread may look at them for a moment longer."""


def possible() -> bool:
    """Whether this process can be held: it takes native code, and a torch that is known."""
    try:
        _library()
        if "torch" in sys.modules:
            native_gate.check_version(sys.modules["torch"])
    except native.NativeError:
        return False
    return True


class Hold:
    """The hold of this process and the thread that puts it in force, from `start` to `stop`."""

    def __init__(self, block: Block, notes: Notes, before_first_use: Callable[[], None]) -> None:
        self._library = _library()
        self._block = block
        self._notes = notes
        self._before_first_use = before_first_use
        self._stopping = False
        self._pauses = 0
        """How many forks are under way: threads may fork at the same time."""
        self._in_force = False
        self._at_operators = False
        self._tried = False
        self._failed = False
        self._ended = threading.Lock()
        _mapped.append(block.keep_mapped())
        self._library.slip_hold_follow(block.down_address, block.held_address)

    @property
    def stood_ns(self) -> int:
        """How long threads of this process have stood still in holds."""
        return int(self._library.slip_hold_stood_ns())

    def start(self) -> None:
        """Watch the page. Not a thread of `threading`: nobody else's list has it."""
        self._pauses = max(0, self._pauses - 1)
        if self._pauses:
            return
        self._stopping = False
        if not self._ended.acquire(blocking=False):
            return  # the thread did not end in time, and goes on
        try:
            _thread.start_new_thread(self._watch, ())
        except RuntimeError as error:  # no more threads
            self._ended.release()
            self._notes.problem("no hold", f"{error}; it parks at boundaries only")

    def pause(self) -> None:
        """Have the thread end; a hold that is in force stays so."""
        self._pauses += 1
        self._stopping = True
        deadline_s = time.monotonic() + _JOIN_S
        while time.monotonic() < deadline_s:
            futex.wake(self._block.down_address)
            if self._ended.acquire(timeout=0.002):
                self._ended.release()
                return

    def stop(self) -> None:
        """Hold nothing any more."""
        self.pause()
        self._end()
        self._library.slip_hold_follow(None, None)

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """The hooks' own work in this thread is not held: the boundary has been reached."""
        self._library.slip_hold_exempt(1)
        try:
            yield
        finally:
            self._library.slip_hold_exempt(0)

    def _watch(self) -> None:
        try:
            self._library.slip_hold_exempt(1)
            while not self._stopping:
                self._wait(*self._look())
        except Exception as error:  # noqa: BLE001 (a page that is closed; nothing of it is the user's)
            if not self._stopping:
                self._notes.problem("no hold", f"{error!r}; it parks at boundaries only")
        finally:
            self._ended.release()

    def _look(self) -> tuple[int, int]:
        """Do as the page says; what was seen of it, and until when nothing else will be."""
        block = self._block
        sequence, now_ns = block.down_sequence, time.monotonic_ns()
        if block.asked_request() != Request.HOLD:
            self._end()
            return sequence, now_ns + _LOOK_EVERY_NS
        lease_ns = block.lease_until_ns
        if lease_ns >= now_ns and not self._failed:
            self._begin()
        else:
            self._end()
        until_ns = now_ns + _LOOK_WHEN_ASKED_NS
        return sequence, min(until_ns, lease_ns + 1) if lease_ns >= now_ns else until_ns

    def _wait(self, sequence: int, until_ns: int) -> None:
        if not futex.wait(self._block.down_address, sequence & _LOW, until_ns):
            time.sleep(_WITHOUT_FUTEX_S)

    def _begin(self) -> None:
        """Hold the device that the program uses by now; called again while it is asked for."""
        if which_device.occupancy() is None:
            if self._block.minibatches or which_device.cuda():
                self._hold_operators()
            else:
                first_use.hold_later(self._before_first_use)
        if not self._in_force and not self._failed:
            self._in_force = True
            native_gate.count_signals(self._library)
            _hold_occupancy(self._library.slip_hold_stand)
            self._library.slip_hold_begin()
            self._notes.say("begins no device operation: the node's coordinator asks for it")

    def _hold_operators(self) -> None:
        if self._at_operators or "torch" not in sys.modules:
            return
        try:
            self._hang_in(sys.modules["torch"])
        except native.NativeError as error:
            self._failed = True
            self._library.slip_hold_off_operators()
            self._notes.problem("no hold", f"{error}; it parks at boundaries only")
            return
        self._at_operators = True

    def _hang_in(self, torch: Any) -> None:  # noqa: ANN401 (whichever torch there is)
        """The first time it is tried with known operators, of this thread alone."""
        library = self._library
        native_gate.check_version(torch)
        missing = library.slip_hold_at_operators()
        if missing:
            raise native.NativeError(missing.decode())
        if not self._tried:
            native_gate.try_out(torch, library.slip_hold_count, library.slip_hold_counted)
            self._tried = True

    def _end(self) -> None:
        if not self._in_force:
            return
        self._in_force = self._at_operators = False
        self._library.slip_hold_end()
        self._library.slip_hold_off_operators()
        self._library.slip_signals_hear_no_more()
        _hold_occupancy(None)
        self._notes.say("goes on")


def _hold_occupancy(stand: Callable[[], int] | None) -> None:
    module = sys.modules.get("slipstream.torch_hooks.occupancy_context")
    if module is not None:
        module.stand_before_use(stand)


def _library() -> ctypes.CDLL:
    library = native.load()
    library.slip_hold_follow.argtypes = (ctypes.c_void_p, ctypes.c_void_p)
    library.slip_hold_stood_ns.restype = ctypes.c_uint64
    library.slip_hold_at_operators.restype = ctypes.c_char_p
    library.slip_hold_count.argtypes = (ctypes.c_char_p,)
    library.slip_hold_counted.restype = ctypes.c_uint64
    library.slip_hold_python.argtypes = 4 * (ctypes.c_void_p,)
    library.slip_hold_python(
        _of_python("PyThreadState_GetUnchecked") or _of_python("_PyThreadState_UncheckedGet"),
        _of_python("PyGILState_GetThisThreadState"),
        _of_python("PyEval_SaveThread"),
        _of_python("PyEval_RestoreThread"),
    )
    return library


def _of_python(name: str) -> int | None:
    """The address of a function of Python's own, if this one has it."""
    function = getattr(ctypes.pythonapi, name, None)
    return ctypes.cast(function, ctypes.c_void_p).value if function else None
