# SPDX-License-Identifier: Apache-2.0
"""The hooks run on the oldest Python they may meet, without any other package."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire.control_block import Identity, Phase, Role

pytestmark = pytest.mark.unit

OLDEST = "3.9"
PROGRAM = """
import sys, torch
from slipstream.torch_hooks.attach import boundary, status
for _ in range(20):
    boundary()
print(sys.version_info[:2], status().attached, status().minibatches, status().problems)
"""


def test_the_oldest_python_can_train(tmp_path: Path) -> None:
    """Import hook, page, boundaries and a lost lease; an empty torch stands for one that is old."""
    python = shutil.which(f"python{OLDEST}")
    environment = {**os.environ, "PYENV_VERSION": OLDEST}  # where several are kept side by side
    if python is None or subprocess.run([python, "-V"], env=environment, check=False).returncode:
        pytest.skip(f"there is no python{OLDEST} here")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    identity = Identity(
        *(7, "0", 0, os.getuid(), Role.GUEST, "shared", "token", ("GPU-a",), os.getpid(), 1)
    )
    page = blocks.create(tmp_path / "run/blocks", identity, lease_until_ns=1)
    environment["PYTHONPATH"] = f"{Path(hook_blocks.__file__).with_name('inject')}:{tmp_path}"
    environment["SLIPSTREAM_CONTROL"] = str(page.path)
    done = subprocess.run(
        [python, "-c", PROGRAM], env=environment, check=False, capture_output=True, text=True
    )
    page.refresh()

    problems = {"ModuleNotFoundError": 1, "lease lost": 1, "no baton": 1}
    assert (done.stdout, done.stderr) == (f"(3, 9) True 20 {problems}\n", "")
    assert (page.progress.minibatches, page.progress.phase) == (20, Phase.ENDED)
