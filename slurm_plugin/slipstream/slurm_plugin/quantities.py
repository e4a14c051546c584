# SPDX-License-Identifier: Apache-2.0
"""Times and sizes as people write them for Slurm and as sacct prints them. Pure."""

from __future__ import annotations

import re
from typing import Final

from slipstream.slurm_plugin.errors import SlurmParseError

_CLOCK: Final = re.compile(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?")
_NO_LIMIT: Final = frozenset({"UNLIMITED", "INFINITE", "Partition_Limit", "", "0"})
_MEMORY: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)([KMGT]?)B?[nc]?", re.IGNORECASE)
_MIB: Final = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2}
_DAY_S: Final = 86_400


def parse_time_limit_s(text: str) -> int | None:
    """`--time`: minutes, minutes:seconds, hours:…, days-hours:…; None for no limit."""
    if text in _NO_LIMIT:
        return None
    days, first, second, third = _clock(text, "time limit")
    if days is not None:
        return days * _DAY_S + first * 3600 + (second or 0) * 60 + (third or 0)
    if third is not None:
        return first * 3600 + (second or 0) * 60 + third
    return first * 60 + (second or 0)


def parse_elapsed_s(text: str) -> int:
    """`Elapsed` of sacct: [days-]hours:minutes:seconds, or minutes:seconds."""
    days, first, second, third = _clock(text, "elapsed time")
    if second is None:
        raise SlurmParseError("elapsed time", text, "[days-]hours:minutes:seconds")
    if third is None:
        return first * 60 + second
    return (days or 0) * _DAY_S + first * 3600 + second * 60 + third


def parse_memory_mib(text: str) -> int:
    """A size with a unit, in MiB without one, rounded up; `4Gn` and `4Gc` are how sacct was."""
    found = _MEMORY.fullmatch(text)
    if not found:
        raise SlurmParseError("memory", text, "a number with K, M, G or T")
    return -int(-float(found[1]) * _MIB[found[2].upper()] // 1)


def _clock(text: str, of: str) -> tuple[int | None, int, int | None, int | None]:
    found = _CLOCK.fullmatch(text)
    if not found:
        raise SlurmParseError(of, text, "[days-]hours:minutes:seconds")
    days, first, second, third = (None if part is None else int(part) for part in found.groups())
    return days, first or 0, second, third
