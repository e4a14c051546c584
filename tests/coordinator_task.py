# SPDX-License-Identifier: Apache-2.0
"""What the SPANK plugin does for a task, for sandboxes without it: ask the node, then run on.

    coordinator_task.py RUN_DIRS ROLE PROGRAM [ARGUMENT]...

The run directory of a node is RUN_DIRS/<name of the node>.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import coordinator_rig


def main() -> None:
    """Ask, take what is told into the environment, and become the program."""
    run_dirs, role, *argv = sys.argv[1:]
    answer = coordinator_rig.ask(
        Path(run_dirs) / os.environ["SLURMD_NODENAME"],
        job=os.environ["SLURM_JOB_ID"],
        step="batch",
        role=role,
        pythonpath="",
    )
    environment = {**os.environ, **coordinator_rig.told(answer)}
    os.execve(argv[0], argv, environment)  # noqa: S606 (that is the point)


if __name__ == "__main__":
    main()
