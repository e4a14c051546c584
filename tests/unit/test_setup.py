# SPDX-License-Identifier: Apache-2.0
"""The set-up script: quick when nothing is missing, clear where it cannot help."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

SETUP = Path(__file__).parents[2] / "deploy/setup"


def run_setup(
    folder: Path, *programs: str, missing: str = "", as_nobody: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a copy of the script on a machine that has just these programs on its PATH."""
    copy = folder / "setup"
    shutil.copytree(SETUP, copy)
    if missing:
        (copy / "packages.txt").write_text(f"# test\n{missing}\n")
    path = folder / "bin"
    path.mkdir()
    for program in ("bash", "cat", "dirname", "grep", "id", *programs):
        (path / program).symlink_to(shutil.which(program) or "/nonexistent")
    argv = ["bash", str(copy / "apt.sh")]
    if as_nobody:
        argv = ["setpriv", "--reuid=65534", "--clear-groups", *argv]
    return subprocess.run(
        argv, env={"PATH": str(path)}, capture_output=True, text=True, check=False
    )


def test_nothing_missing_is_nothing_done(tmp_path: Path) -> None:
    """With all packages there, the script says nothing and succeeds."""
    done = run_setup(tmp_path, "apt-get", "dpkg-query", missing="bash")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_system_without_apt_is_told_what_is_supported(tmp_path: Path) -> None:
    """The sentence names the supported systems, the packages and the way round."""
    done = run_setup(tmp_path)
    assert done.returncode == 1
    assert "Debian 12 or later and Ubuntu 22.04 or later" in done.stderr
    assert "SKIP_APT=1" in done.stderr
    assert "slurmctld" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody without rights")
def test_without_root_or_sudo_the_command_to_run_is_printed() -> None:
    """Somebody else can then paste it."""
    # pytest's own temporary folders are closed to other users.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        done = run_setup(
            Path(folder),
            *("apt-get", "dpkg-query", "setpriv"),
            missing="no-such-package-anywhere",
            as_nobody=True,
        )
    assert done.returncode == 1
    assert "neither root nor sudo" in done.stderr
    assert "apt-get install --no-install-recommends no-such-package-anywhere" in done.stderr
