# SPDX-License-Identifier: Apache-2.0
"""What a site pastes into its own files: it loads, and the site's own rules stay in force."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from lua.conftest import VERSIONS
from slipstream.sandbox import plugins

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.lua

MODULES = plugins.lua_modules()
PLAY = """
slurm = { SUCCESS = 0, ERROR = -1 }
SITE
package.path = arg[1] .. "/?.lua;" .. package.path
dofile(arg[2])
CALLS
"""
JOB_SUBMIT = """
local job = { spank_job_env_size = 0, script = "x" }
print(slurm_job_submit(job, {}, 1), slurm_job_modify(job, {}, {}, 1))
"""
CLI_FILTER = """
print(slurm_cli_setup_defaults({}), slurm_cli_pre_submit({ type = "sbatch" }, 0),
  slurm_cli_post_submit(0, 1, 2))
"""


@pytest.fixture(params=VERSIONS)
def interpreter_path(request: pytest.FixtureRequest) -> str:
    """The interpreter itself."""
    found = shutil.which(f"lua{request.param}")
    if found is None:
        pytest.skip(f"lua{request.param} is not installed")
    return found


def played(interpreter: str, folder: Path, example: str, site: str, calls: str) -> list[str]:
    """Run an example after a site's own lines; what it printed."""
    script = folder / "play.lua"
    script.write_text(PLAY.replace("SITE", site).replace("CALLS", calls))
    argv = [interpreter, str(script), str(MODULES), str(MODULES / "examples" / example)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_every_module_loads(interpreter_path: str) -> None:
    """In the common subset of all versions; loading does nothing."""
    names = sorted(
        str(path.relative_to(MODULES).with_suffix("")).replace("/", ".")
        for path in (*MODULES.glob("*.lua"), *MODULES.glob("slipstream/*.lua"))
    )
    assert len(names) >= 9
    program = f'package.path = "{MODULES}/?.lua"; ' + "".join(f'require "{one}"; ' for one in names)
    done = subprocess.run(
        [interpreter_path, "-e", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_site_without_rules_needs_only_our_lines(interpreter_path: str, tmp_path: Path) -> None:
    """Every function that Slurm asks for is there."""
    assert played(interpreter_path, tmp_path, "job_submit.lua", "", JOB_SUBMIT) == ["0", "0"]
    assert played(interpreter_path, tmp_path, "cli_filter.lua", "", CLI_FILTER) == ["0"] * 3


def test_a_sites_own_rules_stay_in_force(interpreter_path: str, tmp_path: Path) -> None:
    """What it refuses stays refused, with its own code."""
    site = "function slurm_job_submit() return 7 end function slurm_job_modify() return 8 end"
    assert played(interpreter_path, tmp_path, "job_submit.lua", site, JOB_SUBMIT) == ["7", "8"]
    site = "function slurm_cli_pre_submit() return 9 end"
    played_filter = played(interpreter_path, tmp_path, "cli_filter.lua", site, CLI_FILTER)
    assert played_filter == ["0", "9", "0"]
