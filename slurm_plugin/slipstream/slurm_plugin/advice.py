# SPDX-License-Identifier: Apache-2.0
"""Advice: where a pending job may start, for how long that holds. Pure data, and its clock.

Two things carry it out: the board (`advice_board`), which the select wrapper follows, and
`soft_hold`, which needs nothing inside Slurm. Both let go of a job when its advice expires.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

LONGEST_LEASE_S: Final = 3600
"""No advice holds longer; who wants more renews it. A reader ignores what claims more."""

_TOKEN: Final = re.compile(r"[0-9a-f]{16}")
_TOKEN_WORD: Final = re.compile(r"token=([0-9a-f]{16})")
_MARKER: Final = re.compile(r"\[slipstream ([^\]]*)\]")
_NODE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_MOST_TASK: Final = (1 << 32) - 2


class AdviceError(ValueError):
    """Advice that cannot be given; the sentence says why."""


class Binding(StrEnum):
    """How strongly a job is bound to the advised nodes."""

    PREFER = "prefer"
    """There if it can start there at once, else anywhere."""
    REQUIRE = "require"
    """There and nowhere else until the advice expires; without nodes: nowhere until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Which nodes a job may start on, and until when that is said.

    `until_boot_s` is on the clock of `boot_s`, which no change of the date can move: advice ends
    when it was meant to end. `task_id` is for one task of a job array, which goes before what is
    said of the array as a whole.
    """

    token: str
    nodes: tuple[str, ...]
    binding: Binding
    until_boot_s: int
    task_id: int | None = None

    def __post_init__(self) -> None:
        if not _TOKEN.fullmatch(self.token):
            raise AdviceError(f"token {self.token!r} is not one: 16 digits of 0-9 and a-f")
        if not self.nodes and self.binding is not Binding.REQUIRE:
            raise AdviceError(f"advice for {self.token} prefers no node: name one, or require none")
        if strange := [node for node in self.nodes if not _NODE.fullmatch(node)]:
            raise AdviceError(f"{strange} cannot be nodes: 1 to 64 letters, digits, '.', '_', '-'")
        if self.task_id is not None and not 0 <= self.task_id <= _MOST_TASK:
            raise AdviceError(f"{self.task_id} is no array task: 0 to {_MOST_TASK}")

    def holds(self, now_boot_s: float) -> bool:
        """Whether it is still said."""
        return now_boot_s < self.until_boot_s


def boot_s() -> float:
    """Seconds since this machine booted, a suspended machine's sleep included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def token_of(admin_comment: str) -> str | None:
    """The token in a job's marker; the last marker counts, as for the select wrapper."""
    found = None
    for marker in _MARKER.finditer(admin_comment):
        words = marker[1].split(" ")
        tokens = [match[1] for word in words if (match := _TOKEN_WORD.fullmatch(word))]
        if "v=1" in words and tokens:
            found = tokens[-1]
    return found
