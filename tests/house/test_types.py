# SPDX-License-Identifier: Apache-2.0
"""mypy really looks at every file: a forgotten root would pass in silence."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.house, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]


def test_mypy_sees_as_many_files_as_there_are() -> None:
    """The number mypy reports is the number of Python files git knows."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py", "*.pyi"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    files = [line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    done = subprocess.run(
        [sys.executable, "-m", "mypy"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    seen = re.search(r"no issues found in (\d+) source files", done.stdout)
    assert seen, done.stdout + done.stderr
    assert int(seen.group(1)) == len(files)
