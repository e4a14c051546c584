# SPDX-License-Identifier: Apache-2.0
"""Which control block is this process's: the task's, or one of its own that it asks for."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from slipstream.torch_hooks import block as blocks
from slipstream.torch_hooks import node_client
from slipstream.wire import control_block
from slipstream.wire.control_block import ENVIRONMENT_VARIABLE, ControlBlockError

if TYPE_CHECKING:
    from slipstream.torch_hooks.notes import Notes

SWITCH_VARIABLE = "SLIPSTREAM_HOOKS"
"""0: the hooks do nothing at all."""
NODE_VARIABLE = "SLIPSTREAM_NODE"
"""The node's run directory, for tasks that were bound by the static table."""
_FIRST_RETRY_NS = 5 * 10**9
_RETRY_NS = 60 * 10**9
NEVER_NS = 1 << 63


def switched_off() -> bool:
    """Whether the user wants none of it."""
    return os.environ.get(SWITCH_VARIABLE) == "0"


def is_rank_of_torchrun() -> bool:
    """And not a process that a rank has started, which inherits what torchrun told it."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return False
    process = sys.modules.get("multiprocessing.process")
    if process is None:
        return True
    # A spawned process imports its parent's main module, and torch, before it knows its parent.
    imports_main = getattr(process.current_process(), "_inheriting", False)
    return process.parent_process() is None and not imports_main


def claim(path: str, log: Notes) -> blocks.Block | None:
    """The task's page, unless another process has it."""
    try:
        return blocks.claim(path)
    except (OSError, ControlBlockError) as error:
        log.problem("control block", f"{path}: {error}; training goes on without it")
        return None


def came_alone() -> bool:
    """Whether nobody answered when this task was started, and nobody of it has a page yet."""
    return NODE_VARIABLE in os.environ and ENVIRONMENT_VARIABLE not in os.environ


def try_again_ns(now_ns: int, asked: int) -> int:
    """When to ask for a page the next time, after having asked so often without getting one.

    The coordinator may be restarting, or busy. Each time the wait is twice as long.
    """
    if not came_alone() and ENVIRONMENT_VARIABLE not in os.environ:
        return NEVER_NS  # not in a job
    return now_ns + min(_RETRY_NS, _FIRST_RETRY_NS << min(asked, 10))


def own(log: Notes, *, again: bool = False) -> blocks.Block | None:
    """A page of this process's own, asked for in the name of its task."""
    if switched_off():
        return None
    if came_alone():
        return _first(log)
    task_block = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if not task_block:
        return None
    try:
        # Read, not opened for writing: its writer is another process.
        with open(task_block, "rb") as page:  # noqa: PTH123 (no pathlib in a user's process)
            identity = control_block.read_identity(page.read(control_block.PAGE_BYTES + 1))
        return blocks.claim(node_client.ask_for_block(task_block, identity, again=again))
    except (OSError, ControlBlockError) as error:
        log.problem("control block", f"none for this process: {error}")
        return None


def _first(log: Notes) -> blocks.Block | None:
    """The page of a task that was started while there was no coordinator: it may be back."""
    try:
        path = node_client.ask_late(os.environ[NODE_VARIABLE], os.environ)
        block = blocks.claim(path)
    except (OSError, ControlBlockError) as error:
        log.problem("control block", f"none yet: {error}")
        return None
    os.environ[ENVIRONMENT_VARIABLE] = path  # whom this process starts asks in its name
    return block
