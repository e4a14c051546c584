# SPDX-License-Identifier: Apache-2.0
"""The select wrapper for a sandbox: built for the installed Slurm if it is not there yet."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Final

from slipstream.sandbox.errors import SandboxError

_BUILD: Final = Path(__file__).parents[2] / "setup" / "select_plugin.sh"


def plugin_dir() -> str:
    """PluginDir with the wrapper before the stock plugins; a `SandboxError` says why there is none.

    The first time it fetches and configures the source of the installed Slurm (half a minute).
    """
    if not _BUILD.exists():
        raise SandboxError(
            f"no {_BUILD.name} beside this installation: it takes a checkout of Slipstream's "
            "repository to build the wrapper"
        )
    done = subprocess.run([str(_BUILD)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SandboxError(done.stderr.strip().removeprefix("slipstream plugins: "))
    folder = Path(done.stdout.splitlines()[-1])
    return f"{folder}:{(folder / '.stock').read_text().strip()}"
