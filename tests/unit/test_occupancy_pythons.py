# SPDX-License-Identifier: Apache-2.0
"""What a user's process loads runs on the oldest Python it may meet, without any other package."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from occupancy_rig import simulated_node
from slipstream.torch_hooks import occupancy
from slipstream.wire import gpu_state

pytestmark = pytest.mark.unit

OLDEST = "3.9"
HOOKS = Path(occupancy.__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYENV_VERSION": OLDEST}  # where several are kept side by side
PROGRAM = """
import sys
from slipstream.torch_hooks import occupancy
with occupancy.open_gpu() as gpu, gpu.allocate(1 << 20):
    gpu.copy(1000)
    start_ns, end_ns = gpu.launch(duration_us=200).times_ns()
    gpu.synchronize()
    assert (end_ns - start_ns, gpu.usage().busy_ns) == (200_000, 200_000)
assert "torch" not in sys.modules
print("used")
"""


def pythons() -> list[str]:
    """This one, and the oldest one supported where a machine has it."""
    found = shutil.which(f"python{OLDEST}")
    works = found and subprocess.run([found, "-V"], env=ENVIRONMENT, check=False).returncode == 0
    return [sys.executable, *([found] if found and works else [])]


@pytest.mark.parametrize("python", pythons())
def test_a_bare_python_can_use_a_gpu(python: str) -> None:
    """Isolated from whatever is installed beside it."""
    with simulated_node() as path:
        environment = {
            **ENVIRONMENT,
            gpu_state.ENVIRONMENT_VARIABLE: str(path),
            "PYTHONPATH": str(HOOKS),
        }
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        done = subprocess.run(
            [python, "-S", "-c", PROGRAM],
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
    assert (done.stdout, done.stderr) == ("used\n", "")


def test_every_file_is_in_the_oldest_pythons_grammar() -> None:
    """Also where no such Python is at hand; annotations must not be evaluated there."""
    files = list(HOOKS.glob("slipstream/**/*.py"))
    assert len(files) > 8
    for file in files:
        text = file.read_text()
        ast.parse(text, file.name, feature_version=(3, 9))
        assert "->" not in text or "from __future__ import annotations" in text, file
