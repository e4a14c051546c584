# SPDX-License-Identifier: Apache-2.0
"""Attaching Slipstream to a training: by the import hook, or by hand.

    from slipstream.torch_hooks.attach import attach, boundary, detach

Nothing in here raises into the user's program or ends it: what cannot be done is noted (see
`notes`) and training goes on without it. Torch is used only if the program has imported it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import sys
from dataclasses import dataclass
from threading import Lock, get_ident
from time import monotonic_ns
from typing import TYPE_CHECKING, TypeVar

from slipstream.torch_hooks import (
    courtesy,
    dynamo,
    first_use,
    image,
    launch_line,
    native,
    native_step,
    notes,
    pages,
    read_ahead,
    rebind,
)
from slipstream.torch_hooks.boundaries import Boundaries
from slipstream.torch_hooks.launch import process_started_ns
from slipstream.torch_hooks.pages import switched_off
from slipstream.torch_hooks.saving import Saving
from slipstream.torch_hooks.session import Session
from slipstream.torch_hooks.watching import Watch
from slipstream.wire.control_block import ENVIRONMENT_VARIABLE, Phase, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slipstream.torch_hooks.block import Block
    from slipstream.torch_hooks.loader_waits import LoaderWaits

CHECKPOINT_VARIABLE = "SLIPSTREAM_CHECKPOINT_DIR"
"""The folder, on a ramdisk, that a training is saved to."""
RESTORE_VARIABLE = "SLIPSTREAM_RESTORE"
"""The folder that it goes on from."""
FOLDER_VARIABLES = (CHECKPOINT_VARIABLE, RESTORE_VARIABLE)

F = TypeVar("F", bound="Callable[..., None]")


@dataclass(frozen=True)
class Status:
    """What the hooks of this process are doing."""

    attached: bool
    control_block: str
    """The path of its page; empty without one."""
    minibatches: int
    problems: dict[str, int]


def _harmless(function: F) -> F:
    """Whatever goes wrong in here is ours to note, not the user's to catch."""

    @functools.wraps(function)
    def guarded(*arguments: object, **named: object) -> None:
        try:
            function(*arguments, **named)
        except Exception as error:  # noqa: BLE001 (the promise of this room)
            _process.notes.problem(type(error).__name__, f"{function.__name__}: {error}")

    return guarded  # type: ignore[return-value]  # the same signature, which mypy cannot see


class _Process:
    """The hooks of this process."""

    def __init__(self) -> None:
        self.notes = notes.from_environment()
        self.handles: list[object] = []
        self.boundaries: Boundaries | None = None
        self.requests: dict[int, Callable[[], None]] = {}
        self.block: Block | None = None
        self.session: Session | None = None
        self.loader_waits: LoaderWaits | None = None
        self.asked = 0
        """How often it has asked for a page of its own."""
        self.asks_at_ns = 0
        """When it may ask (again)."""
        self.unreported = 0
        """Mini-batches before it had a page; they count."""
        self.dynamo_told = False
        self.frameworks_met = False
        self.trainer = 0
        """The thread that trains, while it lives: boundaries of others are not ours."""
        self.leading = Lock()
        self.launch: dict[str, int] = {}
        """When it started, attached and had imported torch."""
        self.reader: read_ahead.ReadAhead | None = None
        self.rebound_ns = 0
        """When this program was begun anew in its process; 0: it was not."""

    def begin_early(self) -> None:
        """Torch is about to be imported: what has to be known of before, and what is long over."""
        image.remember()
        self.rebound_ns = rebind.rebound_ns()
        if self.rebound_ns:
            self.launch["started_ns"] = self.rebound_ns

    def claim(self) -> None:
        """Take the task's page if nobody has it yet; torchrun itself has that of its ranks."""
        path = os.environ.get(ENVIRONMENT_VARIABLE, "")
        if path and self.block is None:
            self.block = pages.claim(path, self.notes)
        if self.block is None and (pages.is_rank_of_torchrun() or pages.came_alone()):
            self.block = pages.own(self.notes)
        if self.block is not None and self.session is None:
            rebind.arrive(self.block, self.rebound_ns)
            self.rebound_ns = 0

    def tell_launch(self) -> None:
        """When what happened, also to a page that comes late."""
        self.launch.setdefault("started_ns", process_started_ns())
        self.launch.setdefault("attached_ns", monotonic_ns())
        if self.block is not None:
            self.block.write(**self.launch)

    def begin(self) -> None:
        if self.session is None and self.block is not None:
            self.tell_launch()
            waited_ns = self.launch.get("gated_ns", 0)
            self.session = Session(self.block, self.notes, self.requests, waited_ns=waited_ns)
            self.session.course.minibatches, self.unreported = self.unreported, 0
            _end_with_multiprocessing()
            self.session.heed_holds(_before_first_use)
            if self.session.waits and self.loader_waits is None and "torch" in sys.modules:
                self.loader_waits = _watch_loaders()

    def stand_back(self) -> None:
        """A job that was started ahead of its turn loads as far as it can without a device."""
        if self.session is not None and not self.session.may_begin():
            first_use.hold(_before_first_use)

    def boundary(self) -> None:
        """A boundary of a thread that is not known to train, or of a process without a page."""
        if not self.leads():
            return
        if self.session is None and (now_ns := monotonic_ns()) >= self.asks_at_ns:
            # A process without a page that trains after all: a spawned or forked child.
            self.asks_at_ns = pages.try_again_ns(now_ns, self.asked)
            self.block = pages.own(self.notes, again=self.asked > 0)
            self.asked += 1
            self.begin()
        if self.session is not None:
            self.session.boundary()
            self.take_shortcuts(self.session)
        elif self.asks_at_ns != pages.NEVER_NS:
            self.unreported += 1
            self.launch.setdefault("first_boundary_ns", monotonic_ns())

    def missed(self, minibatches: int) -> None:
        """Mini-batches that were not told as boundaries when they ended."""
        if self.leads():
            if self.session is not None:
                self.session.course.minibatches += minibatches
            elif self.asks_at_ns != pages.NEVER_NS:
                self.unreported += minibatches

    def leads(self) -> bool:
        """Whether this thread is the one that trains; the next one is when that has ended."""
        if self.trainer != get_ident():
            with self.leading:
                if self.trainer and self.trainer in sys._current_frames():  # noqa: SLF001 (all threads, also those that Python did not start)
                    return False
                self.trainer = get_ident()
            self.stop_reading_ahead()
        return True

    def take_shortcuts(self, session: Session) -> None:
        """From here on, boundaries of this thread at which nothing happens cost next to nothing."""
        steps = self.boundaries.steps_of_this_thread() if self.boundaries else None
        if self.boundaries is None or steps is None:
            return  # it calls boundary() itself
        course, pace, block = session.course, session.pace.numbers, session.block
        try:
            self.boundaries.use(native_step.shortcuts())
        except native.NativeError:
            return  # it works without, some microseconds slower
        native_step.follow(get_ident(), steps, course, pace, block.up_address, block.down_address)

    def read_ahead(self) -> None:
        """While torch is imported there is time for the data."""
        if self.block is not None and self.reader is None:
            self.reader = read_ahead.from_environment(os.environ, self.notes.problem)

    def stop_reading_ahead(self) -> None:
        if self.reader is not None:
            self.reader.stop()

    def saved(self, spent_ns: int) -> None:
        if self.session is not None:
            self.session.saved(spent_ns, by_trainer=self.trainer in (0, get_ident()))

    def end(self) -> None:
        native_step.forget()
        self.stop_reading_ahead()
        first_use.forget()
        session, self.session, self.block = self.session, None, None
        self.trainer = 0
        if session:
            session.end()


_process = _Process()


@_harmless
def torch_is_coming() -> None:
    """For the import hook: torch is about to be imported."""
    if not switched_off():
        _process.begin_early()
        _process.claim()
        if _process.block and not _process.session and "gated_ns" not in _process.launch:
            _process.block.write(phase=Phase.IMPORTING)
            _process.read_ahead()
            courtesy.yield_processor(_process.block)
            _process.launch["gated_ns"] = launch_line.wait(_process.block)
            _process.tell_launch()


@_harmless
def attach() -> None:
    """Mark boundaries at optimizer steps from now on; a second time does nothing."""
    if switched_off() or _process.handles:
        return
    _process.asks_at_ns = 0
    _process.claim()
    if "torch" in sys.modules:
        _process.launch.setdefault("imported_ns", monotonic_ns())
    _process.begin()
    _meet_frameworks()
    if "torch" not in sys.modules:
        _process.stand_back()
        return  # hand-written loops call boundary() themselves
    # torch.optim deletes its attribute `optimizer`, so it cannot be reached through torch.
    optimizer = importlib.import_module("torch.optim.optimizer")
    boundaries = Boundaries(boundary, sys.modules.get("torch.autograd.profiler"), _missed)
    _process.boundaries = boundaries
    if not _process.dynamo_told:
        _process.dynamo_told = True  # it remembers functions: once is enough
        _keep_dynamo_out(boundaries)
    _process.handles = [
        optimizer.register_optimizer_step_pre_hook(boundaries.before_step),
        optimizer.register_optimizer_step_post_hook(boundaries.after_step),
        Saving(_saved),
        Watch(),
    ]
    _process.stand_back()


@_harmless
def detach() -> None:
    """Take the hooks away again; the page says that this training has ended."""
    handles, _process.handles = _process.handles, []
    for handle in handles:
        handle.remove()  # type: ignore[attr-defined]  # torch's RemovableHandle
    if _process.session:
        _process.session.let_go()
    loader_waits, _process.loader_waits = _process.loader_waits, None
    if loader_waits:
        loader_waits.remove()
    _process.end()
    _process.asks_at_ns = pages.NEVER_NS


@_harmless
def _before_first_use() -> None:
    if _process.session is not None:
        _process.session.begin()


@_harmless
def _missed(minibatches: int) -> None:
    _process.missed(minibatches)


@_harmless
def _saved(spent_ns: int) -> None:
    _process.saved(spent_ns)


def boundary() -> None:
    """A mini-batch has ended: for loops that update parameters without an optimizer of torch's."""
    process = _process
    try:
        if process.session is not None and process.trainer == get_ident():
            process.session.boundary()
        else:
            process.boundary()
    except Exception as error:  # noqa: BLE001 (the promise of this room)
        _process.notes.problem(type(error).__name__, f"boundary: {error}")
        _give_up()


@_harmless
def _give_up() -> None:
    """A session that fails once is not asked again: its page says that it is over."""
    session, _process.asks_at_ns = _process.session, pages.NEVER_NS
    _process.end()
    if session:
        session.let_go()  # else what was capped would spill for ever


@contextlib.contextmanager
def waiting(place: str) -> Iterator[None]:
    """Around a wait in which the GPU is idle, for guests to use it; `place` is where it is.

    Waits of a DataLoader are seen without this.
    """
    began = _wait_begins(place)
    try:
        yield
    finally:
        if began:
            _wait_ends(place)


def _wait_begins(place: object) -> bool:
    """Whether somebody was told: waits of a thread that does not train are nobody's business."""
    try:
        session = _process.session
        waits = session.waits if session and _process.trainer == get_ident() else None
        return waits is not None and waits.begin(place)
    except Exception as error:  # noqa: BLE001 (the promise of this room)
        _process.notes.problem(type(error).__name__, f"waiting: {error}")
        return False


@_harmless
def _wait_ends(place: object) -> None:
    session = _process.session
    if session and session.waits:
        session.waits.end(place)


def status() -> Status:
    """What the hooks of this process are doing."""
    session = _process.session
    return Status(
        attached=bool(_process.handles) or session is not None,
        control_block=session.block.path if session else "",
        minibatches=session.minibatches if session else 0,
        problems=_process.notes.counts,
    )


def serve(request: Request, carry_out: Callable[[], None]) -> None:
    """For parts of the hooks: have this called at the boundary that such a request is armed for."""
    _process.requests[request] = carry_out


def serve_no_longer(request: Request) -> None:
    """The opposite."""
    _process.requests.pop(request, None)


def current() -> Session | None:
    """For parts of the hooks: the session of this process, once it has a page."""
    return _process.session


def complain(kind: str, sentence: str) -> None:
    """For parts of the hooks: count and tell what could not be done; in a job, also its user."""
    _process.notes.complain(kind, sentence, to_user=_process.block is not None)


def tell(sentence: str) -> None:
    """For parts of the hooks: a line in the log."""
    _process.notes.say(sentence)


def _keep_dynamo_out(boundaries: Boundaries) -> None:
    def complain(error: Exception) -> None:
        _process.notes.problem("torch.compile", f"{error}; compiled steps may warn about our hooks")

    dynamo.keep_out(*boundaries.both, on_error=complain)


def _watch_loaders() -> LoaderWaits:
    from slipstream.torch_hooks.loader_waits import LoaderWaits  # noqa: PLC0415 (for owners alone)

    def complain(error: Exception) -> None:
        _process.notes.problem("loader", f"{error}; waits for data are not seen")

    return LoaderWaits(_wait_begins, _wait_ends, complain)


def _meet_frameworks() -> None:
    """Only where there is something to ask them for, and only once: they stay wrapped."""
    if not _process.frameworks_met and any(os.environ.get(one) for one in FOLDER_VARIABLES):
        _process.frameworks_met = True
        from slipstream.torch_hooks import frameworks  # noqa: PLC0415 (it needs this module)

        frameworks.meet()


@_harmless
def framework_is_there(module: str) -> None:
    """For the import hook: a module with a Trainer has been imported, maybe before torch was."""
    if _process.frameworks_met:
        from slipstream.torch_hooks import frameworks  # noqa: PLC0415 (it needs this module)

        frameworks.is_there(module)


@_harmless
def _at_exit() -> None:
    _process.end()


def _end_with_multiprocessing() -> None:
    """A child of multiprocessing's ends without `atexit`, which would leave its page training."""
    process, util = (sys.modules.get(f"multiprocessing.{name}") for name in ("process", "util"))
    if process is not None and util is not None and process.parent_process() is not None:
        util.Finalize(None, _at_exit, exitpriority=0)


@_harmless
def _before_fork() -> None:
    if _process.session:
        _process.session.before_fork()


@_harmless
def _after_fork() -> None:
    if _process.session:
        _process.session.after_fork()


def _forget_in_child() -> None:
    """A forked child has neither its parent's page nor its batons; it may ask for its own."""
    native_step.forget()
    _process.session, session = None, _process.session
    _process.block, block = None, _process.block
    _process.asked = _process.asks_at_ns = 0
    _process.unreported = 0
    _process.trainer = 0
    _process.leading = Lock()
    if _process.boundaries:
        _process.boundaries.forget()
    _process.launch = {}
    _process.reader = None
    first_use.forget_in_child()
    if session:
        session.abandon()
    elif block:
        block.close()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork, after_in_child=_forget_in_child
)
atexit.register(_at_exit)
