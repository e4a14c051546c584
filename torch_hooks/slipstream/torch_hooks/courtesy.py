# SPDX-License-Identifier: Apache-2.0
"""An opportunistic guest beside an owner yields the processor as it yields the GPU.

Where cores are few its import of torch alone, a second or more of one, would be felt by the owner.
It costs nothing where nobody else wants the core, and does nothing where Slurm gives each job cores
of its own.

The kernel weighs sessions against each other before processes (`autogroup`), so both are told.
A process cannot take its priority back, so only the class that stays a guest for good gives it up.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from slipstream.wire import owner_phase
from slipstream.wire.control_block import Role

if TYPE_CHECKING:
    from slipstream.torch_hooks.block import Block

NICE = 5
"""A third of what others have, where all want the core at once: it must not starve either."""
CLASS = "opportunistic"
SESSION = "/proc/self/autogroup"
_TOLD = re.compile(r"nice (-?\d+)")
_STEP = "slurmstepd"


def yield_processor(block: Block) -> None:
    """Before torch is imported, and when a gate is put there; nothing where nobody owns the GPU."""
    told = block.identity
    if told.role != Role.GUEST or told.class_name != CLASS:
        return
    try:
        if not any(has_owner(block.run_dir, uuid) for uuid in told.gpu_uuids):
            return
        if os.getpriority(os.PRIO_PROCESS, 0) < NICE:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
        if is_ours(os.getsid(0)):
            lower_session(SESSION)
    except (OSError, ValueError):
        pass  # another kernel, or a group of processes of its own: then Slurm's shares count


def has_owner(run_dir: str, gpu_uuid: str) -> bool:
    """Whether somebody who owns the GPU says when it waits: its hooks are there."""
    try:
        with open(owner_phase.path(run_dir, gpu_uuid), "rb") as file:  # noqa: PTH123 (no pathlib in a user's process)
            content = file.read(owner_phase.FILE_BYTES + 1)
    except OSError:
        return False
    if not owner_phase.is_whole(content):
        return False
    return owner_phase.OwnerPhase.from_buffer_copy(content).pid != 0


def lower_session(path: str) -> None:
    """Unless it has yielded more than that already."""
    with open(path, encoding="ascii") as file:  # noqa: PTH123 (the same)
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
