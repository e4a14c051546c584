# SPDX-License-Identifier: Apache-2.0
"""What is estimated of a job, on which scale it is learnt, and what follows from what. Pure.

Sizes and times grow by factors: they are learnt as logarithms, so that an error of 10 % counts the
same for a small job and a large one.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from slipstream.estimator.runs import Run

    Array = NDArray[np.float64]

_LEAST_PCT: Final = 0.5
_ALL_PCT: Final = 100.0
_MBIT_IN_MIB: Final = 8.388608
_MS_IN_S: Final = 1e3
_LARGEST_LOG: Final = 600.0
WITHOUT_EFFECT: Final = re.compile(r"seed|(?:^|[._])(?:port|id|(?:local_|node_)?rank)(?:$|[._])")
WITHOUT_SIZE: Final = re.compile(
    rf"{WITHOUT_EFFECT.pattern}|(?:^|[._])lr|learning_rate|momentum|decay|dropout|beta|epsilon|epoch"
    r"|iter|minibatches|(?:^|[._]|max_|num_)steps|every|interval|warmup|patience|time_limit"
)
"""Numbers that make a run longer or other, never larger."""
_NOT_ON_DEVICE: Final = re.compile(rf"{WITHOUT_SIZE.pattern}|worker|loader|thread|prefetch")
"""Nor do those who load the data matter to the GPU's memory and kernels."""
_NOT_IN_WEIGHTS: Final = re.compile(rf"{_NOT_ON_DEVICE.pattern}|batch|precision|optim")
"""And gradients are as large as the model, whatever it is fed with."""
_NOTHING: Final = re.compile(r"(?!)")
_WORKERS: Final = re.compile(r"worker|loader|thread|prefetch")
_BATCH: Final = re.compile(rf"{_WORKERS.pattern}|batch")


class Scale(StrEnum):
    """How a measured value is bent before it is learnt."""

    LOG = "log"
    LOGIT = "logit"
    """Of a percentage: the ratio of busy to idle time is what grows by factors."""


@dataclass(frozen=True, slots=True)
class Label:
    """One thing that is learnt."""

    name: str
    measured: Callable[[Run], float | None]
    scale: Scale = Scale.LOG
    least: float = 1e-3
    """What is smaller counts as this: nobody plans with less."""
    follows: Callable[[Mapping[str, Any]], Any] | None = None
    """From labels before it, of one job or many: tried beside learning it by itself."""
    parts: tuple[str, ...] = ()
    ignores: re.Pattern[str] = WITHOUT_SIZE
    """Features that cannot matter for it, by their names: it is not searched among them."""
    shrinks_with: re.Pattern[str] = _NOTHING
    """Names of numbers it may become less with, beside GPUs: time does with those who load data."""
    factors: int = 2
    """How many numbers a product of its law has at most: sizes of tensors have many."""
    bounded: bool = False
    """By the machine, not by the job: never much more than what was seen."""
    each: bool = False
    """Of each GPU: more of them never make it more, only being several may."""
    zero_alone: bool = False
    """0 for a run on one GPU, and only learnt from the others."""

    def bent(self, values: Array) -> Array:
        """Values on the scale they are learnt on; NaN stays NaN."""
        if self.scale is Scale.LOG:
            return np.log(np.maximum(values, self.least))
        share = np.clip(values, _LEAST_PCT, _ALL_PCT - _LEAST_PCT) / _ALL_PCT
        return np.log(share / (1.0 - share))

    def unbent(self, values: Array) -> Array:
        """And back."""
        if self.scale is Scale.LOG:
            return np.exp(values)
        return _ALL_PCT / (1.0 + np.exp(-values))

    def bend(self, value: float) -> float:
        """One value, as `bent`: in the submit path microseconds count."""
        if self.scale is Scale.LOG:
            return math.log(max(value, self.least))
        share = min(max(value, _LEAST_PCT), _ALL_PCT - _LEAST_PCT) / _ALL_PCT
        return math.log(share / (1.0 - share))

    def unbend(self, value: float) -> float:
        """And back."""
        value = min(max(value, -_LARGEST_LOG), _LARGEST_LOG)
        if self.scale is Scale.LOG:
            return math.exp(value)
        return _ALL_PCT / (1.0 + math.exp(-value))


def _each(total: float | None, of: float | None) -> float | None:
    return total / of if total is not None and of else None


def _device_ms(run: Run) -> float | None:
    """How long a GPU is busy with a mini-batch."""
    return _each(run.device_s and run.device_s * _MS_IN_S, run.minibatches)


def _sent_mib(run: Run) -> float | None:
    """By each node in a mini-batch."""
    return _each(_each(run.sent_mib, run.nodes), run.minibatches)


LABELS: Final = (
    Label(
        "gpu_memory_mib",
        lambda run: run.gpu_memory_mib,
        least=1e-2,
        ignores=_NOT_ON_DEVICE,
        factors=4,
        each=True,
    ),
    Label("minibatch_ms", lambda run: run.minibatch_ms, shrinks_with=_WORKERS, factors=4),
    Label("device_ms", _device_ms, ignores=_NOT_ON_DEVICE, factors=4),
    Label("sent_mib", _sent_mib, ignores=_NOT_IN_WEIGHTS, factors=4, zero_alone=True),
    Label(
        "minibatches",
        lambda run: run.minibatches,
        least=1.0,
        ignores=WITHOUT_EFFECT,
        shrinks_with=_BATCH,
    ),
    Label(
        "gpu_use_pct",
        lambda run: run.gpu_use_pct,
        Scale.LOGIT,
        ignores=WITHOUT_EFFECT,
        shrinks_with=_BATCH,
        follows=lambda of: _ALL_PCT * of["device_ms"] / of["minibatch_ms"],
        parts=("device_ms", "minibatch_ms"),
    ),
    Label(
        "gpu_use_spread_pct",
        lambda run: run.gpu_use_spread_pct,
        Scale.LOGIT,
        ignores=WITHOUT_EFFECT,
        shrinks_with=_BATCH,
    ),
    Label(
        "network_mbps",
        lambda run: run.network_mbps,
        least=1e-2,
        ignores=WITHOUT_EFFECT,
        shrinks_with=_BATCH,
        follows=lambda of: _MBIT_IN_MIB * _MS_IN_S * of["sent_mib"] / of["minibatch_ms"],
        parts=("sent_mib", "minibatch_ms"),
        bounded=True,
        zero_alone=True,
    ),
    Label("cpus", lambda run: run.cpus, least=0.1, ignores=WITHOUT_EFFECT, shrinks_with=_BATCH),
    Label("host_memory_mib", lambda run: run.host_memory_mib, least=1.0, factors=3),
    Label("launch_s", lambda run: run.launch_s, least=1e-2),
    Label(
        "train_s",
        lambda run: run.train_s,
        least=1e-2,
        ignores=WITHOUT_EFFECT,
        shrinks_with=_BATCH,
        follows=lambda of: of["minibatches"] * of["minibatch_ms"] / _MS_IN_S,
        parts=("minibatches", "minibatch_ms"),
    ),
    Label("save_s", lambda run: run.save_s, least=1e-2),
    Label(
        "run_s",
        lambda run: run.run_s,
        least=1e-2,
        ignores=WITHOUT_EFFECT,
        shrinks_with=_BATCH,
        follows=lambda of: of["launch_s"] + of["train_s"] + of["save_s"],
        parts=("launch_s", "train_s", "save_s"),
    ),
)
"""What follows from others comes after them."""
NAMES: Final = tuple(label.name for label in LABELS)
AT: Final = {name: at for at, name in enumerate(NAMES)}
