# SPDX-License-Identifier: Apache-2.0
"""The environment in which Slurm's commands and daemons find a sandbox and nothing else."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.sandbox.daemons import SBIN
from slipstream.sandbox.layout import MARKER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slipstream.sandbox.layout import Layout

# A sandbox may be started from inside a job of a real cluster, whose settings must not leak in.
_FOREIGN = ("SLURM", "SBATCH_", "SALLOC_", "SRUN_", "SQUEUE_", "SINFO_", "SCANCEL_", "CUDA_VISIBLE")


def slurm_environment(layout: Layout, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with the sandbox's Slurm in place of any other; our Python comes first on PATH."""
    kept = {name: value for name, value in base.items() if not name.startswith(_FOREIGN)}
    path = os.pathsep.join([str(Path(sys.executable).parent), base.get("PATH", os.defpath), SBIN])
    return {
        **kept,
        "PATH": path,
        "SLURM_CONF": str(layout.slurm_conf),
        "SLIPSTREAM_RUN_DIR": str(layout.run),
        "SLIPSTREAM_DISABLE_FILE": str(layout.disable_file),
        MARKER_VARIABLE: str(layout.root),
    }
