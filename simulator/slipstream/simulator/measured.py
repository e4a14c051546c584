# SPDX-License-Identifier: Apache-2.0
"""What others measured of real trainings: speeds together on one GPU, and spread over nodes.

From Gavel's throughputs (V100) come the kinds of training: mini-batches per second alone, and the
part of it that is left beside each other kind. From Pollux's placements comes what it costs to be
spread. What Gavel did not measure is derived, and docs/simulator.md says how:

* GPU use: kinds are ranked by how much they slow others down, and use is spread evenly over the
  ranks from 10 to 95 %, so that its mean is that of Philly's GPUs (52 %).
* memory: pairs that ran out of memory tell which kinds are large.
"""

from __future__ import annotations

import ast
import csv
import json
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

GPU_MIB: Final = 16_384
LEAST_USE_PCT: Final = 10.0
MOST_USE_PCT: Final = 95.0
_ALONE: Final = "null"
_ONE_NODE: Final = 1
_TWO_NODES: Final = 2
_MEMORY_ROUNDS: Final = 200
_MEMORY_START: Final = 0.35
_MEMORY_PUSH: Final = 0.01


class NoDataError(Exception):
    """The measurements are not on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of training."""

    name: str
    minibatches_per_s: float
    use_pct: float
    memory_mib: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Kinds, and `beside[a][b]`: the part of its speed alone that kind a has beside kind b."""

    kinds: tuple[Kind, ...]
    beside: tuple[tuple[float, ...], ...]
    spread: float
    """The part of its speed that is left to a job on more nodes than it needs."""


def read(folder: Path) -> Measured:
    """From the folder of shared data; raises if it is not there."""
    throughputs = folder / "throughputs/gavel-simulation-throughputs.json"
    placements = sorted((folder / "placements").glob("*.csv"))
    if not throughputs.is_file() or not placements:
        raise NoDataError(f"skipped: no data in {folder}")
    table = json.loads(throughputs.read_text())["v100"]
    names = [name for name in table if ast.literal_eval(name)[1] == 1]
    beside, lost = _beside(table, names)
    memory = _memory(len(names), lost)
    use = _use(beside)
    kinds = tuple(
        Kind(
            name=ast.literal_eval(name)[0],
            minibatches_per_s=table[name][_ALONE],
            use_pct=use[at],
            memory_mib=int(memory[at] * GPU_MIB),
        )
        for at, name in enumerate(names)
    )
    return Measured(kinds, beside, _spread(placements))


def _beside(
    table: Mapping[str, Any], names: Sequence[str]
) -> tuple[tuple[tuple[float, ...], ...], set[tuple[int, int]]]:
    """Relative speeds, and the pairs that did not fit into memory together.

    Those have no speed; were they ever together after all (their memory capped), they would get
    what their like gets: the mean of each kind.
    """
    rows: list[list[float]] = []
    lost: set[tuple[int, int]] = set()
    for a, name in enumerate(names):
        row = []
        for b, other in enumerate(names):
            rate, other_rate = table[name].get(other, (0.0, 0.0))
            if rate == 0.0 or other_rate == 0.0:
                lost.add((a, b))
            row.append(min(1.0, rate / table[name][_ALONE]))
        rows.append(row)
    for a, row in enumerate(rows):
        mean = statistics.fmean(rate for rate in row if rate > 0.0)
        for b, rate in enumerate(row):
            row[b] = mean if (a, b) in lost else rate
    return tuple(map(tuple, rows)), lost


def _use(beside: Sequence[Sequence[float]]) -> list[float]:
    """Spread evenly over the ranks of how little is left to others."""
    count = len(beside)
    left = [statistics.fmean(beside[b][a] for b in range(count)) for a in range(count)]
    ranked = sorted(range(count), key=lambda a: (-left[a], a))
    between = (MOST_USE_PCT - LEAST_USE_PCT) / max(1, count - 1)
    use = [0.0] * count
    for rank, a in enumerate(ranked):
        use[a] = LEAST_USE_PCT + rank * between
    return use


def _memory(count: int, lost: set[tuple[int, int]]) -> list[float]:
    """Parts of a GPU's memory that make the lost pairs not fit and the others fit, nearly."""
    parts = [_MEMORY_START] * count
    for _ in range(_MEMORY_ROUNDS):
        for a in range(count):
            for b in range(a, count):
                fits = parts[a] + parts[b] <= 1.0
                away = _MEMORY_PUSH * (((a, b) in lost) - (not fits))
                parts[a] += away
                parts[b] += away
    return [min(0.95, max(0.05, part)) for part in parts]


def _spread(files: Sequence[Path]) -> float:
    """Two nodes instead of one, at the same number of replicas and batch size: time lost."""
    ratios = []
    for path in files:
        times: dict[tuple[int, str], dict[int, list[float]]] = {}
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                replicas = sum(map(int, row["placement"]))
                of = times.setdefault((replicas, row["local_bsz"]), {})
                of.setdefault(len(row["placement"]), []).append(float(row["step_time"]))
        ratios += [
            statistics.fmean(of[_ONE_NODE]) / statistics.fmean(of[_TWO_NODES])
            for of in times.values()
            if _ONE_NODE in of and _TWO_NODES in of
        ]
    return statistics.fmean(ratios)
