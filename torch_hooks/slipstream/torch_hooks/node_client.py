# SPDX-License-Identifier: Apache-2.0
"""Asking the node's coordinator for a page of one's own, when the task's page has another writer.

That is so for every rank but one when a single task starts several: torchrun, spawn, fork. Or when
the task has none, because nobody was there to give it one.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from slipstream.wire.control_block import ENVIRONMENT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.wire.control_block import Identity

_DEADLINE_S = 2.0  # the first time in a process: a rank without a page can be asked for nothing
_LATE_DEADLINE_S = 0.5  # now and then, while one trains
_ANSWER_BYTES = 65536
_NAMED = {number % 2**32: name for number, name in ((-5, "batch"), (-6, "interactive"))}
"""Steps that Slurm knows by name, and tells their tasks as numbers: 22.05 not at all or without a
sign, 26.05 with one."""


def ask_for_block(task_block: str, identity: Identity, *, again: bool = False) -> str:
    """The path of a new page for this process; raises OSError when there is none to be had."""
    run_dir = os.path.dirname(os.path.dirname(os.path.dirname(task_block)))  # noqa: PTH120 (no pathlib in a user's process)
    words = f"job={identity.job_id} step={identity.step} task={identity.task}"
    deadline_s = _LATE_DEADLINE_S if again else _DEADLINE_S
    return _ask(run_dir, f"{words} token={identity.token}", deadline_s)


def ask_late(run_dir: str, environment: Mapping[str, str]) -> str:
    """The same for a task that nobody answered when it was started, by what Slurm told it."""
    job, step = environment.get("SLURM_JOB_ID", ""), _step(environment.get("SLURM_STEP_ID", "-5"))
    task = environment.get("SLURM_LOCALID", "0")
    return _ask(run_dir, f"job={job} step={step} task={task}", _LATE_DEADLINE_S)


def _step(told: str) -> str:
    """As the title of its slurmstepd has it."""
    try:
        return _NAMED.get(int(told) % 2**32, told)
    except ValueError:
        return told


def _ask(run_dir: str, words: str, deadline_s: float) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(deadline_s)
        connection.connect(f"{run_dir}/node.sock")
        connection.sendall(f"v=1 op=block uid={os.getuid()} {words}\n".encode())
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
