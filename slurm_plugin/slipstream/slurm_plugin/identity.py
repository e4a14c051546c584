# SPDX-License-Identifier: Apache-2.0
"""How a job is named to Slurm: a number, or a task of an array."""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeAlias

from slipstream.slurm_plugin.errors import SlurmParseError

_JOB_REF: Final = re.compile(r"([0-9]{1,10})(?:_([0-9]{1,10}))?")


class TaskId(NamedTuple):
    """One task of a job array, written 12_3.

    The only safe name of a task. Each task that has started has a number of its own as well, but
    the last one keeps the array's number, and by that number Slurm means all tasks.
    """

    array_job_id: int
    task_id: int

    def __str__(self) -> str:
        return f"{self.array_job_id}_{self.task_id}"


JobRef: TypeAlias = int | TaskId
"""What operations take: `Job.ref` gives the right one. An array's number means all its tasks."""


def parse_job_ref(text: str) -> JobRef:
    """`12` or `12_3` as a user or a file names it."""
    if match := _JOB_REF.fullmatch(text):
        job_id, task_id = match.groups()
        return int(job_id) if task_id is None else TaskId(int(job_id), int(task_id))
    raise SlurmParseError("job id", text, "a number, or ARRAY_TASK such as 12_3")
