# SPDX-License-Identifier: Apache-2.0
"""Slurm's JSON, value by value: one reader for the shapes of every version.

A number is a plain integer or null in 22.05 and `{"set": …, "infinite": …, "number": …}` later; a
state is a word, later a list of words. What is not understood is an error that says where.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slipstream.slurm_plugin.errors import SlurmParseError
from slipstream.slurm_plugin.version import Version, parse_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


@dataclass(frozen=True, slots=True)
class Fields:
    """One JSON object, and what it is of for the error message."""

    of: str
    values: Mapping[str, object]

    def has(self, name: str) -> bool:
        """Whether this version gives the field at all."""
        return name in self.values

    def text(self, name: str) -> str:
        """A string; null and "(null)" are how Slurm writes an empty one."""
        value = self._value(name)
        if value is None or value == "(null)":
            return ""
        if isinstance(value, str):
            return value
        raise self.wrong(name, "a string")

    def number(self, name: str) -> int | None:
        """A number; None if it is not set or without limit."""
        value = self._value(name)
        if isinstance(value, dict):
            given = Fields(f"{self.of}, {name}", value)
            return (
                given.number("number") if given.yes("set") and not given.yes("infinite") else None
            )
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise self.wrong(name, "a number, null or {set, infinite, number}")

    def count(self, name: str) -> int:
        """A number that is 0 if it is not set."""
        return self.number(name) or 0

    def time_s(self, name: str) -> int | None:
        """Seconds since 1970; 0 is Slurm's way to say never."""
        return self.number(name) or None

    def yes(self, name: str) -> bool:
        """A boolean, also when Slurm writes it as 0 or 1."""
        value = self._value(name)
        if isinstance(value, bool) or value in (0, 1):
            return bool(value)
        raise self.wrong(name, "true or false")

    def words(self, name: str) -> tuple[str, ...]:
        """A list of words; a single word stands for a list of one."""
        value = self._value(name)
        if isinstance(value, str):
            return (value,)
        if isinstance(value, list) and all(isinstance(word, str) for word in value):
            return tuple(value)
        raise self.wrong(name, "a word or a list of words")

    def inner(self, name: str) -> Fields:
        """An object inside this one."""
        value = self._value(name)
        if isinstance(value, dict):
            return Fields(f"{self.of}, {name}", value)
        raise self.wrong(name, "an object")

    def each(self, name: str) -> Iterator[Fields]:
        """The objects of a list inside this one."""
        value = self._value(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        for index, entry in enumerate(value):
            if not isinstance(entry, dict):
                raise SlurmParseError(f"{self.of}, {name}[{index}]", entry, "an object is expected")
            yield Fields(f"{self.of}, {name}[{index}]", entry)

    def wrong(self, name: str, expected: str) -> SlurmParseError:
        """The error for a field that holds something else."""
        return SlurmParseError(f"{self.of}, {name}", self.values[name], f"{expected} is expected")

    def _value(self, name: str) -> object:
        if name not in self.values:
            fields = ", ".join(self.values)
            raise SlurmParseError(
                f"field of {self.of}", name, f"it is missing; there are: {fields}"
            )
        return self.values[name]


def read_document(text: str, of: str) -> Fields:
    """The whole answer of a command asked for JSON."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SlurmParseError(of, text, f"JSON is expected: {error}") from error
    if not isinstance(document, dict):
        raise SlurmParseError(of, document, "an object is expected")
    return Fields(of, document)


def reported_errors(document: Fields) -> str:
    """What Slurm reports inside an answer whose exit code may well be 0, or "".

    22.05 answers `squeue --json` with an empty queue and exit code 0 while slurmctld is away:
    this list is the only sign of it.
    """
    said: list[str] = []
    for error in document.each("errors") if document.has("errors") else ():
        names = ("source", "description", "error")
        said.append(": ".join(filter(None, (error.text(n) for n in names if error.has(n)))))
    return "; ".join(filter(None, said)) or ("unspecified error" if said else "")


def document_version(document: Fields) -> Version:
    """The version of the Slurm that wrote this answer."""
    meta = document.inner("meta")
    for name in ("slurm", "Slurm"):
        if meta.has(name):
            return parse_version(meta.inner(name).text("release"))
    raise SlurmParseError("meta", dict(meta.values), "Slurm's release is expected in it")
