# SPDX-License-Identifier: Apache-2.0
"""What the README tells a newcomer to type, typed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from documents import ROOT, commands

pytestmark = pytest.mark.sandbox


def test_the_first_commands_of_the_readme_do_what_it_says(tmp_path: Path) -> None:
    """A cluster comes up, two jobs are submitted, one GPU shows both roles, nothing stays."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    typed = [line for line in commands(ROOT / "README.md") if "sandbox" in line]
    assert [line.split()[2] for line in typed] == ["up", "run", "run", "run", "down"]
    said = [_type(line, tmp_path) for line in typed]
    assert said[1].startswith("Submitted batch job")
    assert "Submitted batch job" in said[2]
    assert "n1" in said[3]
    assert not list((tmp_path / "home").glob("*/slurm.conf"))


def _type(line: str, folder: Path) -> str:
    program = str(Path(sys.executable).with_name("slipstream"))
    ran = subprocess.run(
        ["bash", "-c", line.replace(".venv/bin/slipstream", program)],
        cwd=folder,
        env={**os.environ, "SLIPSTREAM_SANDBOX_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"
    return ran.stdout
