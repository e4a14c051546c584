# SPDX-License-Identifier: Apache-2.0
"""Whether this process could use other GPUs than it does: asked before it lets go of its own.

A process of its own asks CUDA, since one that uses CUDA sees only what it saw at first; it has the
same rights and is in the same cgroup. That has never run on a GPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

from slipstream.torch_hooks import visible_devices, which_device
from slipstream.wire.gpu_state import ENVIRONMENT_VARIABLE as STATE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

_PATIENCE_S = 30.0
_LOOK = """
import ctypes, sys
cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
sys.exit(f"CUDA says {error} and sees {count.value}" if error or count.value != WANTED else 0)
"""


def why_not(gpu_uuids: Sequence[str]) -> str:
    """What is wrong with these GPUs; empty if nothing is, or if no device is used here."""
    if which_device.occupancy():
        return _on_occupancy(gpu_uuids)
    return on_cuda(gpu_uuids) if which_device.cuda() else ""


def _on_occupancy(gpu_uuids: Sequence[str]) -> str:
    gpus = which_device.occupancy().open_node(os.environ[STATE_VARIABLE]).gpus
    well = {gpu.uuid.decode() for gpu in gpus if not gpu.health & 1}
    missing = [uuid for uuid in gpu_uuids if uuid not in well]
    return f"there is no GPU {missing[0]} here that works" if missing else ""


def on_cuda(gpu_uuids: Sequence[str]) -> str:
    """What CUDA has against these GPUs, in a process of its own."""
    environment = {**os.environ, visible_devices.ENVIRONMENT_VARIABLE: ",".join(gpu_uuids)}
    look = _LOOK.replace("WANTED", str(len(gpu_uuids)))
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", look],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{','.join(gpu_uuids)}: {error}"
    return f"{','.join(gpu_uuids)}: {done.stderr.strip()[-200:]}" if done.returncode else ""
