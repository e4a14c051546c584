# SPDX-License-Identifier: Apache-2.0
"""The house itself: rooms are where ARCHITECTURE says, and nothing breaks the namespace."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.house

ROOT = Path(__file__).parents[2]
ROOMS = sorted(
    path.parent.name
    for path in ROOT.glob("*/slipstream")
    if not path.parent.name.startswith((".", "build"))
)
SOURCE_SUFFIXES = {".py", ".c", ".h", ".sh", ".lua", ".js", ".css", ".html"}


def tracked_files() -> list[Path]:
    """The files of the repository, as git knows them (new ones too, ignored ones not)."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [path for line in listed.stdout.splitlines() if (path := ROOT / line).is_file()]


def test_no_room_closes_the_namespace() -> None:
    """One slipstream/__init__.py would make every other room unimportable."""
    stray = [path for path in ROOT.glob("*/slipstream/__init__.py") if ".venv" not in path.parts]
    assert stray == []


def test_every_package_of_every_room_can_be_imported() -> None:
    """All rooms share one namespace, in one interpreter."""
    packages = [path.parent.name for path in ROOT.glob("*/slipstream/*/__init__.py")]
    assert len(packages) >= 6
    for package in packages:
        importlib.import_module(f"slipstream.{package}")


def test_the_wheels_between_them_ship_every_room() -> None:
    """A new room that is in no wheel would work here and fail at every user's."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["sources"])
    assert shipped | {"torch_hooks"} == set(ROOMS)
    assert set(project["tool"]["hatch"]["build"]["dev-mode-dirs"]) == shipped


def test_both_wheels_carry_one_version() -> None:
    """The main wheel pins the hooks to exactly its own version."""
    main = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    hooks = tomllib.loads((ROOT / "torch_hooks/pyproject.toml").read_text())["project"]
    assert main["version"] == hooks["version"]
    assert f"slurm-slipstream-hooks=={main['version']}" in main["dependencies"]
    assert hooks["dependencies"] == []


def test_every_source_file_states_its_licence() -> None:
    """An SPDX line within the first three lines of each source file."""
    sources = [path for path in tracked_files() if path.suffix in SOURCE_SUFFIXES]
    assert len(sources) > 50
    silent = [
        str(path.relative_to(ROOT))
        for path in sources
        if "SPDX-License-Identifier:" not in "".join(path.read_text().splitlines(keepends=True)[:3])
    ]
    assert silent == []


def test_files_with_slurm_internals_are_gpl() -> None:
    """What includes Slurm's internal headers carries Slurm's licence, and nothing else does."""
    for path in (one for one in tracked_files() if one.suffix in {".c", ".h"}):
        text = path.read_text()
        licence = "GPL-2.0-or-later" if '#include "src/' in text else "Apache-2.0"
        assert f"SPDX-License-Identifier: {licence}" in text, path


def test_importing_the_rooms_does_not_import_torch() -> None:
    """Torch is the user's: neither the command nor the daemons may pull it in."""
    program = (
        "import sys, slipstream.cli, slipstream.sandbox, slipstream.slurm_plugin, "
        "slipstream.core, slipstream.wire, slipstream.torch_hooks; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
