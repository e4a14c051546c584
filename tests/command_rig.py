# SPDX-License-Identifier: Apache-2.0
"""Commands typed at a served API."""

from __future__ import annotations

from typing import TYPE_CHECKING

from click.testing import CliRunner, Result

from slipstream.cli import main

if TYPE_CHECKING:
    from scheduler_rig import Served


def slipstream(rig: Served, *words: str) -> Result:
    """A command as a user types it, on a wide terminal."""
    environment = {
        "SLIPSTREAM_RUN_DIR": str(rig.run_dir),
        "SLIPSTREAM_DISABLE_FILE": str(rig.run_dir / "disable"),
        "COLUMNS": "200",
    }
    return CliRunner().invoke(main, words, env=environment)


def said(rig: Served, *words: str) -> str:
    """What a command that works prints."""
    done = slipstream(rig, *words)
    assert done.exit_code == 0, done.output
    return done.output
