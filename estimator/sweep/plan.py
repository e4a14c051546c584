# SPDX-License-Identifier: Apache-2.0
"""Which trainings the sweep runs: drawn once from a fixed seed, so that every start has the same.

The crude cost below only keeps a training short and its size within what two cores can compute. No
label is made from it.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ALONE: Final = 68
"""Trainings of each kind on one GPU."""
SCALED: Final = 6
"""Trainings of each kind that are run on one, two, three and four GPUs."""
MOST_RANKS: Final = 4
SPREAD: Final = 12
"""Trainings of each kind that are run once, on two to four GPUs: what is sent is learnt of many
models, not of six."""
_SIZES: Final[Mapping[str, Mapping[str, tuple[int, ...]]]] = {
    "mlp": {
        "input_size": (64, 128, 256, 512, 1024),
        "width": (64, 128, 256, 384, 512, 768, 1024),
        "depth": (1, 2, 3, 4, 6),
    },
    "cnn": {"input_size": (16, 24, 32, 48), "width": (4, 8, 12, 16, 24, 32), "depth": (1, 2, 3, 4)},
    "transformer": {
        "input_size": (16, 32, 48, 64, 96),
        "width": (32, 64, 96, 128, 192),
        "depth": (1, 2, 3, 4),
    },
    "lstm": {"input_size": (8, 16, 24, 32), "width": (32, 64, 96, 128, 192), "depth": (1, 2, 3)},
}
_BATCHES: Final = (8, 16, 32, 48, 64, 96, 128, 192, 256)
_OPTIMIZERS: Final = ("sgd", "momentum", "adam", "adamw")
_MINIBATCHES: Final = (12, 16, 24, 32, 48, 64, 100, 150, 200, 300)
_VOCABULARY: Final = 512
_FLOPS_PER_S: Final = 19.5e9 / 2
"""Half of the peak: memory is the other half, or about."""
_SHORTEST_MS: Final = 0.3
_LONGEST_MS: Final = 40.0
_HOST_MS: Final = 3.0
_TRIES: Final = 8
_TRAINING_MS: Final = 1_800.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """One training; `seed` is its number in the plan and the seed of its weights."""

    seed: int
    kind: str
    ranks: int
    options: Mapping[str, int | str]

    @property
    def arguments(self) -> list[str]:
        """As they are on its command line."""
        words = [f"--{name.replace('_', '-')}={value}" for name, value in self.options.items()]
        return [*words, f"--seed={self.seed}"]


def configurations() -> list[Configuration]:
    """All of them. In an order in which each stretch has something of everything."""
    chance = random.Random(20)  # noqa: S311 (the same for everybody, that is the point)
    found = [*_alone(chance), *_scaled(chance)]
    chance.shuffle(found)
    later = random.Random(21)  # noqa: S311 (added when the others had their numbers)
    more = list(_spread(later))
    later.shuffle(more)
    found += more
    return [
        Configuration(number, kind, ranks, options)
        for number, (kind, ranks, options) in enumerate(found)
    ]


_Drawn = tuple[str, int, dict[str, int | str]]


def _alone(chance: random.Random) -> Iterator[_Drawn]:
    for kind in _SIZES:
        for _ in range(ALONE):
            # As many small ones, which wait for their host, as large ones, which fill the GPU.
            cost_ms = math.exp(chance.uniform(math.log(_SHORTEST_MS), math.log(_LONGEST_MS)))
            yield kind, 1, _drawn(kind, chance, cost_ms)


def _scaled(chance: random.Random) -> Iterator[_Drawn]:
    for kind in _SIZES:
        for _ in range(SCALED):
            options = _drawn(kind, chance, _LONGEST_MS / 2) | {"loader_workers": 0}
            for ranks in range(1, MOST_RANKS + 1):
                yield kind, ranks, dict(options)


def _spread(chance: random.Random) -> Iterator[_Drawn]:
    for kind in _SIZES:
        for number in range(SPREAD):
            cost_ms = math.exp(chance.uniform(math.log(1.0), math.log(_LONGEST_MS)))
            ranks = 2 + number % (MOST_RANKS - 1)
            yield kind, ranks, _drawn(kind, chance, cost_ms) | {"loader_workers": 0}


def _drawn(kind: str, chance: random.Random, wanted_ms: float) -> dict[str, int | str]:
    """Of many the nearest to a cost."""
    tried = [_any(kind, chance) for _ in range(_TRIES)]
    options = min(tried, key=lambda one: abs(math.log(_crude_ms(kind, one) / wanted_ms)))
    wanted = _TRAINING_MS / (2 * _crude_ms(kind, options) + _HOST_MS)
    fitting = [one for one in _MINIBATCHES if wanted / 2 <= one <= wanted * 1.5]
    return options | {"minibatches": chance.choice(fitting or _MINIBATCHES[:1])}


def _any(kind: str, chance: random.Random) -> dict[str, int | str]:
    options: dict[str, int | str] = {
        name: chance.choice(values) for name, values in _SIZES[kind].items()
    }
    return options | {
        "batch_size": chance.choice(_BATCHES),
        "optimizer": chance.choice(_OPTIMIZERS),
        "precision": chance.choice(("f32", "f32", "bf16")),
        "loader_workers": chance.choice((0, 0, 1, 2)),
    }


def _crude_ms(kind: str, options: Mapping[str, int | str]) -> float:
    size, width, depth = (int(options[name]) for name in ("input_size", "width", "depth"))
    forward = {
        "mlp": 2 * width * (size + depth * width),
        "cnn": 18 * size**2 * width * (3 + (depth - 1) * width),
        "transformer": size
        * (depth * (24 * width**2 + 4 * size * width) + 2 * width * _VOCABULARY),
        "lstm": size * (depth * 16 * width**2 + 2 * width * _VOCABULARY),
    }[kind]
    return 3 * forward * int(options["batch_size"]) / _FLOPS_PER_S * 1e3
