# SPDX-License-Identifier: Apache-2.0
"""The command that a job script runs, and the variables it sets. Pure; nothing is ever executed.

This is no shell: what a script does when it runs cannot be known. It reads what people write, in
time that the limits below bound whatever they write, and never raises.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from slipstream.estimator.values import name_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MOST_SCRIPT: Final = 16_384
"""As much as job_submit sends."""
_MOST_LINES: Final = 400
_MOST_LINE: Final = 4_096
_MOST_WORDS: Final = 400
"""Of all lines that are taken apart."""
_MOST_VARIABLES: Final = 64
_MOST_VALUE: Final = 256

# Only a line that runs Python or sets a variable is taken apart.
_RUNNERS: Final = ("python", "torchrun", "accelerate", "deepspeed")
_RUNS: Final = re.compile("|".join((*_RUNNERS, r"\.py")))
_SETS: Final = re.compile(r"(?:(?:export|declare|env)\s+)?[A-Za-z_]\w{0,63}=")
_TOKEN: Final = re.compile(
    r"""\d?[<>]+&?[ \t]*[^\s;&|]*"""  # a redirection, with where to
    r"""|[;&|()`]+"""
    r"""|(?:[^\s"'\\;&|()<>`$]+|"(?:[^"\\]|\\.)*"|'[^']*'|\\.|\$\([^()]{0,200}\)|\$\{[^{}\s]{0,80}\}|\$)+""",
    re.DOTALL,
)
_KIND: Final = {
    **dict.fromkeys(";&|()`", "end"),
    **dict.fromkeys("<>", "redirection"),
    **dict.fromkeys("0123456789", "digit"),
    "#": "comment",
}
"""Of a token, by its first character; all others are words."""
_QUOTES: Final = re.compile(r""""((?:[^"\\]|\\.)*)"|'([^']*)'|\\(.)""", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w{0,63})=(.*)", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(?:\{(\w{1,64})(?::?-([^{}]*))?\}|([A-Za-z_]\w{0,63}|\d))")
_BEFORE_A_COMMAND: Final = frozenset(
    {"export", "declare", "exec", "time", "nohup", "env", "if", "then", "else", "do", "{", "!"}
)
_ALL_ARGUMENTS: Final = frozenset({"$@", "$*"})
_PREPARES: Final = frozenset({"pip", "venv"})
"""Modules that are run to get ready."""


@dataclass(frozen=True, slots=True)
class Command:
    """The words of a command, without quotes, and the environment its script gives it."""

    words: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


@lru_cache(maxsize=128)  # sweeps bring one script again and again
def main_command(script: str, arguments: tuple[str, ...] = ()) -> Command:
    """The command a script is about.

    Of those that run Python the one with most words, the last of equals; else the last line. The
    script's arguments stand for its "$@".
    """
    lines = script[:MOST_SCRIPT].replace("\\\n", " ").split("\n", _MOST_LINES)[:_MOST_LINES]
    lines = [bare for line in lines if (bare := line.strip()) and bare[0] != "#"]
    reader = _Reader(arguments)
    for line in lines:
        if _RUNS.search(line) or ("=" in line and _SETS.match(line)):
            reader.read(line)
    if not reader.best and lines:
        reader.read(lines[-1], anything=True)
    return Command(reader.best, reader.environment)


class _Reader:
    """Reads line by line and keeps the best command so far."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        self.best: tuple[str, ...] = ()
        self.environment: dict[str, str] = {}
        self._variables: dict[str, str] = {}
        self._arguments = arguments
        self._words_left = _MOST_WORDS

    def read(self, line: str, *, anything: bool = False) -> None:
        words: list[str] = []
        tokens = _TOKEN.findall(line[:_MOST_LINE])[: self._words_left]
        self._words_left -= len(tokens)
        for token in tokens:
            kind = _KIND.get(token[0])
            if kind is None:
                words.append(token)
            elif kind == "end":
                self._take(words, anything=anything)
                words = []
            elif kind == "comment":
                break
            elif kind == "digit" and token[1:2] not in ("<", ">"):
                words.append(token)
        self._take(words, anything=anything)

    def _take(self, raw: Sequence[str], *, anything: bool) -> None:
        """One command, as it is written."""
        at, set_here = 0, {}
        while at < len(raw):
            if found := _ASSIGNMENT.fullmatch(raw[at]):
                set_here[found[1]] = self._filled(_bare(found[2]))
            elif raw[at] not in _BEFORE_A_COMMAND:
                break
            at += 1
        if len(self._variables) < _MOST_VARIABLES:
            self._variables |= set_here
            if at < len(raw) or raw[:1] in (["export"], ["env"]):
                self.environment |= set_here
        words = self._expanded(raw[at:])
        if len(words) >= len(self.best) and (anything or _runs_python(words)):
            self.best = words

    def _expanded(self, raw: Sequence[str]) -> tuple[str, ...]:
        words: list[str] = []
        for word in raw:
            bare = _bare(word)
            if bare in _ALL_ARGUMENTS:
                words += self._arguments[: _MOST_WORDS - len(words)]
            else:
                words.append(self._filled(bare) if "$" in bare else bare)
        return tuple(words)

    def _filled(self, word: str) -> str:
        """With the variables that are known; others stay as they are written."""
        return _VARIABLE.sub(self._variable, word)[:_MOST_VALUE]

    def _variable(self, found: re.Match[str]) -> str:
        name, default = found[1] or found[3], found[2]
        if name.isdecimal():
            at = int(name) - 1
            return self._arguments[at] if 0 <= at < len(self._arguments) else found[0]
        if not name_of(name):  # a secret stays unknown under whatever name it is passed on
            return f"${name}"
        return self._variables.get(name, found[0] if default is None else default)


def _runs_python(words: Sequence[str]) -> bool:
    for word in words:
        if word.endswith(".py") or word.rpartition("/")[2].startswith(_RUNNERS):
            return _PREPARES.isdisjoint(words[:3])
    return False


def _bare(word: str) -> str:
    """Without its quotes."""
    if '"' in word or "'" in word or "\\" in word:
        word = _QUOTES.sub(lambda found: found[1] or found[2] or found[3] or "", word)
    return word[:_MOST_VALUE]
