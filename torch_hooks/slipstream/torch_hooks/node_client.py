# SPDX-License-Identifier: Apache-2.0
"""Asking the node's coordinator for a page of one's own, when the task's page has another writer.

That is so for every rank but one when a single task starts several: torchrun, spawn, fork.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from slipstream.wire.control_block import ENVIRONMENT_VARIABLE

if TYPE_CHECKING:
    from slipstream.wire.control_block import Identity

_DEADLINE_S = 2.0  # once in a process, and a rank without a page can be asked for nothing
_ANSWER_BYTES = 65536


def ask_for_block(task_block: str, identity: Identity) -> str:
    """The path of a new page for this process; raises OSError when there is none to be had."""
    run_dir = os.path.dirname(os.path.dirname(os.path.dirname(task_block)))  # noqa: PTH120 (no pathlib in a user's process)
    request = (
        f"v=1 op=block job={identity.job_id} step={identity.step} uid={os.getuid()} "
        f"task={identity.task} token={identity.token}\n"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_DEADLINE_S)
        connection.connect(f"{run_dir}/node.sock")
        connection.sendall(request.encode())
        answer = b""
        while not answer.endswith(b"ok\n") and len(answer) < _ANSWER_BYTES:
            received = connection.recv(4096)
            if not received:
                break
            answer += received
    start = f"env {ENVIRONMENT_VARIABLE}="
    for line in answer.decode(errors="replace").splitlines():
        if line.startswith(start):
            return line[len(start) :]
    raise OSError(f"the coordinator gave no page but {answer[:200]!r}")
