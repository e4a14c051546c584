# SPDX-License-Identifier: Apache-2.0
"""What a user's process loads runs on the oldest Python it may meet, without any other package."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from occupancy_rig import simulated_node
from slipstream.torch_hooks import occupancy
from slipstream.wire import gpu_state

pytestmark = pytest.mark.unit

OLDEST = "3.9"
PROGRAM = """
import sys
from slipstream.torch_hooks import occupancy
with occupancy.open_gpu() as gpu, gpu.allocate(1 << 20):
    gpu.copy(1000)
    start_ns, end_ns = gpu.launch(duration_us=200).times_ns()
    gpu.synchronize()
    assert (end_ns - start_ns, gpu.usage().busy_ns) == (200_000, 200_000)
assert "torch" not in sys.modules
print(sys.version_info[:2])
"""


def test_the_oldest_python_can_use_a_gpu() -> None:
    """A real one, isolated from what is installed for this one."""
    python = shutil.which(f"python{OLDEST}")
    environment = {**os.environ, "PYENV_VERSION": OLDEST}  # where several are kept side by side
    if python is None or subprocess.run([python, "-V"], env=environment, check=False).returncode:
        pytest.skip(f"there is no python{OLDEST} here")
    with simulated_node() as path:
        environment[gpu_state.ENVIRONMENT_VARIABLE] = str(path)
        environment["PYTHONPATH"] = str(Path(occupancy.__file__).parents[2])
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        done = subprocess.run(
            [python, "-S", "-c", PROGRAM],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )

    assert (done.stdout, done.stderr) == ("(3, 9)\n", "")
