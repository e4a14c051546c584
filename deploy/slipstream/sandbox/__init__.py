# SPDX-License-Identifier: Apache-2.0
"""A real Slurm cluster on one machine, with simulated GPUs, that leaves nothing behind.

Everything a sandbox starts hangs below one process, its *keeper*: when the keeper is told to end,
or dies, or the command that started it is killed half-way, the whole cluster goes with it.
Nothing here stands in for Slurm: munged, slurmctld and slurmd are the installed ones.
"""

from slipstream.sandbox.errors import SandboxError
from slipstream.sandbox.sandbox import Sandbox
from slipstream.sandbox.shape import Shape

__all__ = ["Sandbox", "SandboxError", "Shape"]
