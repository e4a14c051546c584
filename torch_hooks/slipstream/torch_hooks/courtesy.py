# SPDX-License-Identifier: Apache-2.0
"""An opportunistic guest yields the processor as it yields the GPU: others have a core first.

Where cores are few its import of torch alone, a second or more of one, would be felt by the owner
beside it. It costs nothing where nobody else wants the core, and does nothing where Slurm gives
each job cores of its own.

The kernel weighs sessions against each other before processes (`autogroup`), so both are told.
A process cannot take its priority back, so only the class that stays a guest for good gives it up.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from slipstream.wire.control_block import Role

if TYPE_CHECKING:
    from slipstream.torch_hooks.block import Block

NICE = 10
"""A tenth of what others have, where all want the core at once."""
CLASS = "opportunistic"
SESSION = "/proc/self/autogroup"
_TOLD = re.compile(r"nice (-?\d+)")
_STEP = "slurmstepd"


def yield_processor(block: Block) -> None:
    """Before torch is imported; nothing for a job of another class or role."""
    told = block.identity
    if told.role != Role.GUEST or told.class_name != CLASS:
        return
    try:
        if os.getpriority(os.PRIO_PROCESS, 0) < NICE:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        if is_ours(os.getsid(0)):
            lower_session(SESSION)
    except (OSError, ValueError):
        pass  # another kernel, or a group of processes of its own: then Slurm's shares count


def lower_session(path: str) -> None:
    """Unless it has yielded more than that already."""
    with open(path, encoding="ascii") as file:  # noqa: PTH123 (no pathlib in a user's process)
        found = _TOLD.search(file.read())
    if found and int(found[1]) < NICE:
        with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 (the same)
            file.write(str(NICE))


def is_ours(session: int) -> bool:
    """Whether Slurm began it, for this step alone, and not a shell or a daemon."""
    try:
        with open(f"/proc/{session}/comm", encoding="utf-8") as file:  # noqa: PTH123 (the same)
            return file.read().strip() == _STEP
    except FileNotFoundError:
        return session > 1  # who began it has ended, as Slurm's does
