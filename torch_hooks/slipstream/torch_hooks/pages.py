# SPDX-License-Identifier: Apache-2.0
"""Which control block is this process's: its task's, or one of its own."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from slipstream.torch_hooks import block as blocks
from slipstream.torch_hooks import node_client
from slipstream.wire import control_block
from slipstream.wire.control_block import ENVIRONMENT_VARIABLE, ControlBlockError

if TYPE_CHECKING:
    from slipstream.torch_hooks import notes


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


def claim(path: str, log: notes.Notes) -> blocks.Block | None:
    """The page at this path, unless another process has it or it is none."""
    try:
        return blocks.claim(path)
    except (OSError, ControlBlockError) as error:
        log.problem("control block", f"{path}: {error}; training goes on without it")
        return None


def own(log: notes.Notes) -> blocks.Block | None:
    """A page of this process's own, asked for in the name of its task."""
    task_block = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if not task_block:
        return None
    try:
        # Read, not opened for writing: its writer is another process.
        with open(task_block, "rb") as page:  # noqa: PTH123 (no pathlib in a user's process)
            identity = control_block.read_identity(page.read(control_block.PAGE_BYTES + 1))
        return blocks.claim(node_client.ask_for_block(task_block, identity))
    except (OSError, ControlBlockError) as error:
        log.problem("control block", f"none for this process: {error}")
        return None
