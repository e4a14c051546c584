# SPDX-License-Identifier: Apache-2.0
"""The systemd units: what they promise, and how much they leave open, by systemd's own word."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
MOST_EXPOSED = {
    "slipstream-scheduler": 2.5,
    "slipstream-watchdog": 2.5,
    # Root, and mounts where jobs must see it: most of what systemd could take away it needs.
    "slipstream-coordinator": 8.0,
}
"""Of 10; a plain service has 9.6."""


@pytest.mark.parametrize("name", sorted(MOST_EXPOSED))
def test_each_says_when_it_is_ready_and_is_watched(name: str) -> None:
    """And comes back, keeps its privileges down, and names its manual."""
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string((UNITS / f"{name}.service").read_text())
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert float(service["WatchdogSec"]) > 0
    assert service["Restart"] == "always"
    assert service["NoNewPrivileges"] == "yes"
    assert "CapabilityBoundingSet" in service
    assert unit["Unit"]["Documentation"] == "man:slipstream-daemons(8)"
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.parametrize(("name", "most"), MOST_EXPOSED.items())
def test_none_is_open_wider_than_it_must_be(name: str, most: float) -> None:
    """As `systemd-analyze security` weighs it."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here: apt-get install systemd")
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--no-pager", str(UNITS / f"{name}.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"exposure level for \S+: (\d+\.\d)", done.stdout)
    if found is None:
        pytest.skip(f"this systemd-analyze cannot: {done.stderr.strip()[:200]}")
    assert float(found[1]) <= most, done.stdout
