# SPDX-License-Identifier: Apache-2.0
"""Slurm's version: 22.05.8. Releases differ by the first two numbers, fixes by the third."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from slipstream.slurm_plugin.errors import SlurmParseError

_VERSION: Final = re.compile(
    r"(?:slurm(?:-wlm)?\s+)?(\d{2})\.(\d{2})(?:\.(\d{1,3}))?(?:[-.~+]\S*)?"
)


class Version(NamedTuple):
    """Ordered as releases are."""

    major: int
    minor: int
    micro: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor:02}.{self.micro}"

    @property
    def release(self) -> tuple[int, int]:
        """What decides about formats and protocols: (22, 5)."""
        return (self.major, self.minor)


def parse_version(text: str) -> Version:
    """`slurm-wlm 22.05.8`, as every command prints it with --version."""
    if match := _VERSION.fullmatch(text.strip()):
        major, minor, micro = match.groups()
        return Version(int(major), int(minor), int(micro or 0))
    raise SlurmParseError("version", text.strip(), "such as 'slurm 24.11.5'")
