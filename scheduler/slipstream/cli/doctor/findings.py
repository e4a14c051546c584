# SPDX-License-Identifier: Apache-2.0
"""What a check can have to say."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How a check ended."""

    GOOD = "good"
    NOTE = "note"
    BAD = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has to say."""

    check: str
    verdict: Verdict
    says: str
    fix: str = ""


def good(check: str, says: str) -> Finding:
    """As it should be."""
    return Finding(check, Verdict.GOOD, says)


def note(check: str, says: str, fix: str) -> Finding:
    """No fault, but somebody may want to know."""
    return Finding(check, Verdict.NOTE, says, fix)


def bad(check: str, says: str, fix: str) -> Finding:
    """Does not work like this."""
    return Finding(check, Verdict.BAD, says, fix)
