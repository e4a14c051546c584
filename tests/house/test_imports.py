# SPDX-License-Identifier: Apache-2.0
"""The import contracts bite: each is broken once, in a copy, and must be reported."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.house

ROOT = Path(__file__).parents[2]


def linted(tree: Path) -> subprocess.CompletedProcess[str]:
    """Run import-linter over a copy of the rooms."""
    roots = os.pathsep.join(str(path.parent) for path in tree.glob("*/slipstream"))
    program = (
        "import sys; sys.path[:0] = sys.argv[1].split(':'); "
        "from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    )
    # -S keeps the editable installation's own paths out: only the copy may be seen.
    environment = {**os.environ, "PYTHONPATH": str(Path(pytest.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-S", "-c", program, roots],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """All rooms and the contracts, to break at will."""
    for room in ROOT.glob("*/slipstream"):
        if not room.parent.name.startswith("."):
            shutil.copytree(room, tmp_path / room.parent.name / "slipstream")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_house_keeps_its_contracts(copy: Path) -> None:
    """Untouched, all contracts hold."""
    done = linted(copy)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("core/slipstream/core/rogue.py", "import time", "core is pure"),
        ("core/slipstream/core/rogue.py", "import slipstream.slurm_plugin", "down only"),
        ("core/slipstream/core/rogue.py", "import slipstream.estimator", "down only"),
        ("estimator/slipstream/estimator/rogue.py", "import slipstream.scheduler", "down only"),
        ("slurm_plugin/slipstream/slurm_plugin/rogue.py", "import slipstream.sandbox", "down only"),
        ("deploy/slipstream/sandbox/rogue.py", "import slipstream.torch_hooks", "Nobody imports"),
        ("torch_hooks/slipstream/torch_hooks/rogue.py", "import slipstream.core", "only wire"),
    ],
)
def test_a_rogue_import_is_reported(copy: Path, file: str, line: str, contract: str) -> None:
    """One forbidden line, one broken contract with its name."""
    (copy / file).write_text(f'"""Rogue."""\n{line}\n')
    done = linted(copy)
    assert done.returncode != 0
    assert contract in done.stdout.split("Broken contracts")[-1]
