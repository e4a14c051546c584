# SPDX-License-Identifier: Apache-2.0
"""What a job is thought to need, as data: the estimator makes it, the journal keeps it.

`None` is "not known". Whoever plans with it takes the worst that is possible then, which is written
down in docs/estimator.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_MIB_IN_GIB: Final = 1024
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600


class Basis(StrEnum):
    """What an estimate rests on."""

    DEFAULT = "default"
    """Nothing: safe defaults."""
    FAMILY = "family"
    """Earlier runs of the same program by the same user."""
    GLOBAL = "global"
    """Runs of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """All that is estimated of one job, with what it rests on."""

    basis: Basis = Basis.DEFAULT
    runs: int = 0
    """How many finished runs it is like."""
    gpus: int = 1
    gpu_memory_mib: int | None = None
    """On each GPU, a safe upper bound."""
    gpu_use_pct: float = 100.0
    """The mean over its life."""
    gpu_use_spread_pct: float = 0.0
    network_mbps: float = 0.0
    """What each of its nodes sends."""
    cpus: int = 1
    host_memory_mib: int | None = None
    """On each node."""
    run_s: float | None = None
    """The median; the range below."""
    run_low_s: float = 0.0
    run_high_s: float | None = None
    launch_s: float | None = None
    train_s: float | None = None
    save_s: float | None = None
    minibatch_ms: float | None = None
    shared_slowdown: float | None = None
    """How many times as long a mini-batch takes beside others on its GPUs, as it usually was."""

    @property
    def shared_run_s(self) -> float | None:
        """The run time of a guest: what sharing costs is known of training only."""
        if self.run_s is None or self.train_s is None or self.shared_slowdown is None:
            return self.run_s
        return self.run_s + self.train_s * (self.shared_slowdown - 1.0)

    @property
    def is_known(self) -> bool:
        """Whether it rests on anything."""
        return self.basis is not Basis.DEFAULT


def like(estimate: Estimate) -> str:
    """How many runs it is like, and whose."""
    runs = "1 run" if estimate.runs == 1 else f"{estimate.runs} runs"
    return f"like {runs} of {'yours' if estimate.basis is Basis.FAMILY else 'others'}"


def memory(mib: int) -> str:
    """For people: 2.1 GiB, 300 MiB."""
    return f"{mib / _MIB_IN_GIB:.1f} GiB" if mib >= _MIB_IN_GIB else f"{mib} MiB"


def duration(seconds: float) -> str:
    """For people, as exact as an estimate is: 40 s, 6 min, 2.5 h."""
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h"
