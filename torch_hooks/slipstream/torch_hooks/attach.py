# SPDX-License-Identifier: Apache-2.0
"""Attaching Slipstream to a training: by the import hook, or by hand.

    from slipstream.torch_hooks.attach import attach, boundary, detach

Nothing in here raises into the user's program or ends it: what cannot be done is noted (see
`notes`) and training goes on without it. Torch is used only if the program has imported it.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import sys
from dataclasses import dataclass
from threading import get_ident
from typing import TYPE_CHECKING, TypeVar

from slipstream.torch_hooks import block as blocks
from slipstream.torch_hooks import dynamo, node_client, notes
from slipstream.torch_hooks.boundaries import Boundaries
from slipstream.torch_hooks.session import Session
from slipstream.torch_hooks.watching import Watch
from slipstream.wire import control_block
from slipstream.wire.control_block import (
    ENVIRONMENT_VARIABLE,
    ControlBlockError,
    Phase,
    Request,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SWITCH_VARIABLE = "SLIPSTREAM_HOOKS"
"""0: the hooks do nothing at all."""
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
        self.requests: dict[int, Callable[[], None]] = {}
        self.block: blocks.Block | None = None
        self.session: Session | None = None
        self.tried_for_own_page = False
        self.dynamo_told = False
        self.frameworks_met = False
        self.trainer = 0
        """The thread that trains: boundaries of others are not ours."""

    def claim(self) -> None:
        """Take the task's page if nobody has it yet."""
        path = os.environ.get(ENVIRONMENT_VARIABLE, "")
        if path and self.block is None:
            self.block = _claim(path, self.notes)

    def begin(self) -> None:
        if self.session is None and self.block is not None:
            self.session = Session(self.block, self.notes, self.requests)

    def boundary(self) -> None:
        """A boundary of a thread that is not known to train, or of a process without a page."""
        if self.session is None and not self.tried_for_own_page:
            # A process without a page that trains after all: a rank of torchrun's, a forked child.
            self.tried_for_own_page = True
            self.block = _own_block(self.notes)
            self.begin()
        self.trainer = self.trainer or get_ident()
        if self.session is not None and self.trainer == get_ident():
            self.session.boundary()

    def end(self) -> None:
        session, self.session, self.block = self.session, None, None
        if session:
            session.end()


_process = _Process()


@_harmless
def torch_is_coming() -> None:
    """For the import hook: torch is about to be imported."""
    if not switched_off():
        _process.claim()
        if _process.block and not _process.session:
            _process.block.write(phase=Phase.IMPORTING)


@_harmless
def attach() -> None:
    """Mark boundaries at optimizer steps from now on; a second time does nothing."""
    if switched_off() or _process.handles:
        return
    _process.claim()
    _process.begin()
    _meet_frameworks()
    if "torch" not in sys.modules:
        return  # hand-written loops call boundary() themselves
    # torch.optim deletes its attribute `optimizer`, so it cannot be reached through torch.
    optimizer = importlib.import_module("torch.optim.optimizer")
    boundaries = Boundaries(boundary)
    if not _process.dynamo_told:
        _process.dynamo_told = True  # it remembers functions: once is enough
        _keep_dynamo_out(boundaries)
    _process.handles = [
        optimizer.register_optimizer_step_pre_hook(boundaries.before_step),
        optimizer.register_optimizer_step_post_hook(boundaries.after_step),
        Watch(),
    ]


@_harmless
def detach() -> None:
    """Take the hooks away again; the page says that this training has ended."""
    handles, _process.handles = _process.handles, []
    for handle in handles:
        handle.remove()  # type: ignore[attr-defined]  # torch's RemovableHandle
    _process.end()


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
        _process.session = None


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
    """For parts of the hooks: count and tell what could not be done."""
    _process.notes.problem(kind, sentence, always=True)


def tell(sentence: str) -> None:
    """For parts of the hooks: a line in the log."""
    _process.notes.say(sentence)


def _keep_dynamo_out(boundaries: Boundaries) -> None:
    def complain(error: Exception) -> None:
        _process.notes.problem("torch.compile", f"{error}; compiled steps may warn about our hooks")

    dynamo.keep_out(boundaries.before_step, boundaries.after_step, on_error=complain)


def _meet_frameworks() -> None:
    """Only where there is something to ask them for, and only once: they stay wrapped."""
    if not _process.frameworks_met and any(os.environ.get(one) for one in FOLDER_VARIABLES):
        _process.frameworks_met = True
        from slipstream.torch_hooks import frameworks  # noqa: PLC0415 (it needs this module)

        frameworks.meet()


def switched_off() -> bool:
    """Whether the user wants none of it."""
    return os.environ.get(SWITCH_VARIABLE) == "0"


def _claim(path: str, log: notes.Notes) -> blocks.Block | None:
    try:
        return blocks.claim(path)
    except (OSError, ControlBlockError) as error:
        log.problem("control block", f"{path}: {error}; training goes on without it")
        return None


def _own_block(log: notes.Notes) -> blocks.Block | None:
    """A page of this process's own, asked for in the name of its task."""
    task_block = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if not task_block or switched_off():
        return None
    try:
        # Read, not opened for writing: its writer is another process.
        with open(task_block, "rb") as page:  # noqa: PTH123 (no pathlib in a user's process)
            identity = control_block.read_identity(page.read(control_block.PAGE_BYTES + 1))
        return blocks.claim(node_client.ask_for_block(task_block, identity))
    except (OSError, ControlBlockError) as error:
        log.problem("control block", f"none for this process: {error}")
        return None


@_harmless
def _at_exit() -> None:
    _process.end()


def _forget_in_child() -> None:
    """A forked child has neither its parent's page nor its batons; it may ask for its own."""
    _process.session, session = None, _process.session
    _process.block, block = None, _process.block
    _process.tried_for_own_page = False
    _process.trainer = 0
    if session:
        session.abandon()
    elif block:
        block.close()


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_at_exit)
