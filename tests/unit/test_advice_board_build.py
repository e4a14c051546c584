# SPDX-License-Identifier: Apache-2.0
"""The build of the select wrapper: for exactly the installed Slurm, or not at all, and why."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

BUILD = Path(__file__).parents[2] / "deploy/setup/select_plugin.sh"
DPKG_QUERY = """#!/bin/sh
case "$*" in
  *source:Package*) echo "installed slurm-wlm" ;;
  *source:Version*) echo "installed 22.05.8-4" ;;
  *basic-plugins*) echo "installed {plugins}" ;;
  *) echo "installed 22.05.8-4" ;;
esac
"""


def build(folder: Path, out: Path, **programs: str) -> subprocess.CompletedProcess[str]:
    """Run it with these programs in place of the machine's."""
    tools = folder / "bin"
    tools.mkdir()
    for name, text in programs.items():
        program = tools / name.replace("_", "-")
        program.write_text(text)
        program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "SLIPSTREAM_CACHE": str(folder / "cache"),
    }
    return subprocess.run(
        [str(BUILD), str(out)], env=environment, capture_output=True, text=True, check=False
    )


def machine(
    folder: Path, *, plugins: str = "22.05.8-4", running: str = "22.05.8"
) -> dict[str, str]:
    """Programs of a machine with Slurm 22.05.8, as dpkg and slurmctld tell it."""
    stock = folder / "stock" / "select_cons_tres.so"
    stock.parent.mkdir()
    stock.touch()
    return {
        "dpkg_query": DPKG_QUERY.format(plugins=plugins),
        "dpkg": f"#!/bin/sh\necho {stock}\n",
        "slurmctld": f"#!/bin/sh\necho slurm-wlm {running}\n",
        "apt_cache": "#!/bin/sh\nexit 0\n",
        "readelf": "#!/bin/sh\necho '    Build ID: 00ff'\n",
    }


def test_another_slurmctld_than_the_packages_is_not_built_for(tmp_path: Path) -> None:
    """One from /usr/local, say: its structures are not those of the package's source."""
    done = build(tmp_path, tmp_path / "out", **machine(tmp_path, running="24.11.5"))
    assert done.returncode == 1
    assert "says it is '24.11.5', its package is 22.05.8-4" in done.stderr
    assert "Slipstream works without it" in done.stderr
    assert not (tmp_path / "out").exists()


def test_plugins_of_another_version_are_not_wrapped(tmp_path: Path) -> None:
    """Half an upgrade: the sentence names both versions."""
    done = build(tmp_path, tmp_path / "out", **machine(tmp_path, plugins="22.05.9-1"))
    assert done.returncode == 1
    assert "slurmctld is of 22.05.8-4, the stock plugins are of 22.05.9-1" in done.stderr


@pytest.mark.skipif(not shutil.which("dpkg-source"), reason="dpkg-dev is not installed")
def test_a_version_no_archive_carries_any_more_is_said(tmp_path: Path) -> None:
    """There is no source to build from, and no other one is taken in its place."""
    done = build(tmp_path, tmp_path / "out", **machine(tmp_path))
    assert done.returncode == 1
    assert "apt knows no archive with slurmctld 22.05.8-4 any more" in done.stderr
    assert not list(tmp_path.glob("out/*"))


def test_a_machine_without_slurm_is_told_so(tmp_path: Path) -> None:
    """Nothing is fetched for a Slurm that is not there."""
    done = build(tmp_path, tmp_path / "out", dpkg_query="#!/bin/sh\nexit 1\n")
    assert done.returncode == 1
    assert "the package slurmctld is not installed" in done.stderr
