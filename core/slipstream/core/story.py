# SPDX-License-Identifier: Apache-2.0
"""What happened to one job, line by line: for `slipstream why` and for errors of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_LINES: Final = 40
"""A job that is advised for weeks must not fill the memory: the first line and the last ones."""


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that happened."""

    at_s: float
    text: str


def told(story: tuple[Line, ...], at_s: float, text: str) -> tuple[Line, ...]:
    """The story with one more line; the same thing twice in a row is told once."""
    if story and story[-1].text == text:
        return story
    longer = (*story, Line(at_s, text))
    return longer if len(longer) <= MOST_LINES else (longer[0], *longer[2:])


def as_text(story: tuple[Line, ...]) -> str:
    """For an error message: times relative to the first line."""
    if not story:
        return "nothing is told of it"
    first_s = story[0].at_s
    return "; ".join(f"+{line.at_s - first_s:.1f} s {line.text}" for line in story)
