# SPDX-License-Identifier: Apache-2.0
"""Host lists and index lists, written and read as Slurm does, by ClusterShell.

ClusterShell sorts what it expands. Slurm's lists of one entry per node (the GRES of a job, say) go
by the order in its text, so `expand` keeps that order.
"""

from __future__ import annotations

import contextlib
import math
import re
from typing import TYPE_CHECKING, Final

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException
from ClusterShell.RangeSet import RangeSet, RangeSetException

from slipstream.slurm_plugin.errors import SlurmParseError

if TYPE_CHECKING:
    from collections.abc import Iterable

_RANGE: Final = r"[0-9]{1,9}(?:-[0-9]{1,9})?"
_RANGES: Final = rf"{_RANGE}(?:,{_RANGE})*"
# ClusterShell reads operators (!&^), groups (@) and wildcards (*?) too: none of them is Slurm's.
_PART: Final = re.compile(rf"(?:[A-Za-z0-9._-]+|\[{_RANGES}\])+")
_ONE_BRACKET: Final = re.compile(r"([^\[\]]*)\[([^\[\]]*)\]([^\[\]]*)")
_NODE: Final = re.compile(r"[A-Za-z0-9._-]+")
_INDICES: Final = re.compile(rf"{_RANGE}(?::[0-9]{{1,9}})?(?:,{_RANGE}(?::[0-9]{{1,9}})?)*")
_TOP_LEVEL_COMMA: Final = re.compile(r",(?![^\[]*\])")
_BRACKET: Final = re.compile(r"\[([^\]]*)\]")
_MOST_NODES: Final = 100_000
_MOST_INDICES: Final = 4_000_001  # Slurm's largest MaxArraySize


def expand(text: str) -> tuple[str, ...]:
    """`n[1,3-4],m1` as n1, n3, n4, m1: in the order Slurm wrote them."""
    names: list[str] = []
    for part in _TOP_LEVEL_COMMA.split(text) if text else ():
        sizes = map(_size, _BRACKET.findall(part))
        if not _PART.fullmatch(part) or len(names) + math.prod(sizes) > _MOST_NODES:
            raise SlurmParseError("host list", text, "names such as n[1-4],gpu07")
        try:
            for piece in _ranges_apart(part):
                names.extend(NodeSet(piece, resolver=RESOLVER_NOGROUP))
        except (NodeSetException, RangeSetException) as error:
            raise SlurmParseError("host list", text, f"ClusterShell says: {error}") from error
    return tuple(names)


def fold(names: Iterable[str]) -> str:
    """n1, n2, n4 as `n[1-2,4]`."""
    listed = list(names)
    for name in listed:
        if not _NODE.fullmatch(name):
            raise SlurmParseError("node name", name, "letters, digits, dots and dashes")
    nodes = NodeSet.fromlist(listed, resolver=RESOLVER_NOGROUP)
    nodes.fold_axis = (-1,)  # r1n[1-2],r2n[1-2]: more than one bracket is not for every Slurm
    return str(nodes)


def expand_indices(text: str) -> tuple[int, ...]:
    """`0,2-3` as 0, 2, 3; also Slurm's steps: `0-8:4` as 0, 4, 8."""
    if not text:
        return ()
    if _INDICES.fullmatch(text) and _size(text) <= _MOST_INDICES:
        # A step is `:` in Slurm and `/` in ClusterShell.
        with contextlib.suppress(RangeSetException):
            return tuple(int(index) for index in RangeSet(text.replace(":", "/")))
    raise SlurmParseError("index list", text, "indices such as 0,2-3 or 0-8:4")


def fold_indices(indices: Iterable[int]) -> str:
    """0, 2, 3 as `0,2-3`."""
    return str(RangeSet.fromlist([str(index) for index in indices]))


def _ranges_apart(part: str) -> list[str]:
    """`n[3-4,1]` as n[3-4] and n[1], so that ClusterShell cannot sort them together."""
    if one := _ONE_BRACKET.fullmatch(part):
        before, ranges, after = one.groups()
        return [f"{before}[{ranged}]{after}" for ranged in ranges.split(",")]
    return [part]


def _size(ranges: str) -> int:
    """How many `0,2-3` are at most: ClusterShell would build them in memory before we can look."""
    total = 0
    for ranged in ranges.split(","):
        first, _, last = ranged.partition(":")[0].partition("-")
        total += int(last) - int(first) + 1 if first.isdigit() and last.isdigit() else 1
    return total
