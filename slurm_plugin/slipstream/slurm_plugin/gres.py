# SPDX-License-Identifier: Apache-2.0
"""Generic resources (GRES) as Slurm writes them, in all its ways. Pure.

| where | what Slurm writes |
| --- | --- |
| a node has | `gpu:a100:4(S:0-1),slot:12` |
| in use on a node | `gpu:a100:2(IDX:0,3),slot:6`, `gpu:a100:0(IDX:N/A)` |
| a job holds on a node | `gpu:a100:2(IDX:0-1),slot(CNT:2)` |
| a job asks for, 22.05 | `gres:gpu:2,gres:slot:1`, and `gres:` once it was emptied |
| a job asks for, later | `gres/gpu:2`, per task `cpu=2,gres/gpu:a100=1` |
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from slipstream.slurm_plugin import hosts
from slipstream.slurm_plugin.errors import SlurmParseError

if TYPE_CHECKING:
    from collections.abc import Iterable

_COMMA_OUTSIDE_PARENTHESES: Final = re.compile(r",(?![^(]*\))")
_PREFIX: Final = re.compile(r"gres[:/]")
_ITEM: Final = re.compile(r"(?P<words>[A-Za-z0-9_.+:=-]+)(?:\((?P<detail>[^()]*)\))?")
_COUNT: Final = re.compile(r"([0-9]{1,18})([KMGTP]?)")
_NOT_GRES: Final = re.compile(r"(?:cpu|mem|node|billing|energy|license|bb|fs|ic|pages|vmem)\b.*")
_SHARES_OF_DEVICES: Final = re.compile(r"[0-9]+/[0-9]+(?:,[0-9]+/[0-9]+)*")
_NOTHING: Final = frozenset({"", "(null)", "N/A", "gres:", "gres/"})
_UNIT: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}


@dataclass(frozen=True, slots=True, order=True)
class Gres:
    """Some units of one resource; `indices` where Slurm says which (devices 0, 3)."""

    name: str
    type: str = ""
    count: int = 1
    indices: tuple[int, ...] = ()

    def __str__(self) -> str:
        """As `--gres` takes it: gpu:a100:2."""
        return ":".join(filter(None, (self.name, self.type, str(self.count))))


def parse_gres(text: str) -> tuple[Gres, ...]:
    """A GRES list of a node or a job, in the order of the text."""
    if text.strip() in _NOTHING:
        return ()
    parts = _COMMA_OUTSIDE_PARENTHESES.split(text.strip())
    return tuple(_item(part, text) for part in parts if part not in _NOTHING)


def parse_asked_gres(text: str) -> tuple[Gres, ...]:
    """The GRES in a TRES request; what else is asked there (cpu=2) is left out."""
    parts = _COMMA_OUTSIDE_PARENTHESES.split(text.strip()) if text.strip() else []
    return parse_gres(",".join(part for part in parts if not _NOT_GRES.fullmatch(part)))


def render_gres(gres: Iterable[Gres]) -> str:
    """As `--gres=` and `Gres=` take it."""
    return ",".join(str(one) for one in gres)


def total(gres: Iterable[Gres], name: str) -> int:
    """How many units of `name` there are, whatever their types."""
    return sum(one.count for one in gres if one.name == name)


def _item(part: str, text: str) -> Gres:
    match = _ITEM.fullmatch(_PREFIX.sub("", part, count=1))
    words = re.split("[:=]", match["words"]) if match else [""]
    name, rest = words[0], [word for word in words[1:] if word != "no_consume"]
    count = _count(rest.pop()) if rest and _COUNT.fullmatch(rest[-1]) else 1
    if not match or not all(words) or len(rest) > 1:
        raise SlurmParseError("GRES", part, f"NAME[:TYPE]:COUNT[(IDX:…)], as in {text!r}")
    return _with_detail(Gres(name, "".join(rest), count), match["detail"] or "")


def _with_detail(gres: Gres, detail: str) -> Gres:
    """What stands in parentheses: which devices, how many of those that have no device."""
    key, _, value = detail.partition(":")
    if key == "IDX":
        return replace(gres, indices=() if value == "N/A" else hosts.expand_indices(value))
    if key == "CNT" and _COUNT.fullmatch(value):
        return replace(gres, count=_count(value))
    if not detail or key == "S" or _SHARES_OF_DEVICES.fullmatch(detail):
        return gres
    raise SlurmParseError("GRES detail", detail, ("S:…", "IDX:…", "CNT:…", "1/4,0/4"))


def _count(text: str) -> int:
    digits = text.rstrip("KMGTP")
    return int(digits) * _UNIT[text[len(digits) :]]
