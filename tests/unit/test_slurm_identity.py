# SPDX-License-Identifier: Apache-2.0
"""Numbers, task names and versions."""

from __future__ import annotations

import pytest

from slipstream.slurm_plugin import SlurmParseError, TaskId, Version, parse_job_ref
from slipstream.slurm_plugin.version import parse_version

pytestmark = pytest.mark.unit


def test_a_job_is_a_number_or_a_task() -> None:
    """Read and written the same way."""
    assert parse_job_ref("12") == 12
    assert parse_job_ref("12_0") == TaskId(12, 0)
    assert str(TaskId(12, 0)) == "12_0"


@pytest.mark.parametrize("text", ["", "x", "12_", "_3", "12_[1-3]", "12+1", "-1", "1 2", "٣"])
def test_anything_else_is_quoted(text: str) -> None:
    """An argument to a command is no place for surprises."""
    with pytest.raises(SlurmParseError) as raised:
        parse_job_ref(text)
    assert repr(text) in str(raised.value)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("slurm-wlm 22.05.8\n", Version(22, 5, 8)),
        ("slurm 24.11.5", Version(24, 11, 5)),
        ("26.05.5", Version(26, 5, 5)),
        ("slurm 23.11.0-0rc1", Version(23, 11, 0)),
        ("25.11.2", Version(25, 11, 2)),
    ],
)
def test_a_version_is_read(text: str, version: Version) -> None:
    """As commands and packages write it."""
    assert parse_version(text) == version


def test_versions_are_ordered_as_releases() -> None:
    """And a release is the first two numbers."""
    assert Version(22, 5, 8) < Version(22, 5, 9) < Version(24, 11)
    assert Version(24, 11, 5).release == (24, 11)
    assert str(Version(26, 5, 5)) == "26.05.5"


@pytest.mark.parametrize("text", ["", "slurm", "slurm abc", "22"])
def test_what_is_no_version_is_quoted(text: str) -> None:
    """With an example of one."""
    with pytest.raises(SlurmParseError, match=r"such as 'slurm 24.11.5'"):
        parse_version(text)
