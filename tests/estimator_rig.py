# SPDX-License-Identifier: Apache-2.0
"""Runs of a training whose needs are known by a formula, for tests of what learns from them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import TYPE_CHECKING

from slipstream.estimator import Features
from slipstream.estimator.runs import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

FAMILY = "1000/train.py"


def memory_mib(width: float, batch: float, optimizer: str) -> float:
    """What the formula says."""
    return 300 + width**2 * (4 if optimizer == "adam" else 2) / 2**10 + batch * width / 2**6


def minibatch_ms(width: float, batch: float, gpus: int) -> float:
    """And of time."""
    return 2 + batch * width / 500 + 4 * (gpus > 1)


def run(
    number: int,
    width: int,
    batch: int,
    *,
    gpus: int = 1,
    optimizer: str = "adam",
    noise: float = 1.0,
) -> Run:
    """One finished run."""
    time_ms = minibatch_ms(width, batch, gpus) * noise
    sent_mib = 2 * width**2 * (1 - 1 / gpus) / 2**18
    features_ = features(width, batch, gpus=gpus, optimizer=optimizer, seed=number)
    return Run(
        key=f"{number}@1",
        ended_s=1_700_000_000.0 + 60 * number,
        family=FAMILY,
        numbers=features_.numbers,
        categories=features_.categories,
        gpus=gpus,
        gpu_memory_mib=round(memory_mib(width, batch, optimizer) * noise),
        gpu_use_pct=min(99.0, 100 * (time_ms - 2) / time_ms),
        gpu_use_spread_pct=5.0,
        network_mbps=sent_mib * 8.4e3 / time_ms,
        cpus=2,
        host_memory_mib=800,
        run_s=5 + 0.1 * time_ms + 0.5,
        launch_s=5.0,
        train_s=0.1 * time_ms,
        save_s=0.5,
        minibatch_ms=time_ms,
        minibatches=100,
        nodes=gpus,
        ranks=gpus,
        sent_mib=sent_mib * 100 * gpus,
        device_s=0.1 * (time_ms - 2),
    )


def features(
    width: float,
    batch: float,
    *,
    gpus: int = 1,
    optimizer: str = "adam",
    seed: int = 0,
    family: str = FAMILY,
) -> Features:
    """What such a job is submitted with."""
    return Features(
        family=family,
        numbers={
            "ask.gpus": float(gpus),
            "arg.width": float(width),
            "arg.batch_size": float(batch),
            "arg.seed": float(seed),
            "arg.layers": 4.0,
        },
        words={"arg.optimizer": optimizer, "program": "train.py"},
    )


def history(count: int = 60, seed: int = 0, gpus: Sequence[int] = (1, 2, 4)) -> list[Run]:
    """Runs of many sizes, the newest first."""
    chance = random.Random(seed)  # noqa: S311 (the same in every test)
    found = []
    for number in range(count):
        noise = math.exp(chance.gauss(0.0, 0.01))
        width, batch = (
            chance.choice((64, 96, 128, 192, 256, 384, 512)),
            chance.choice((8, 16, 32, 64)),
        )
        optimizer = chance.choice(("adam", "sgd"))
        found.append(
            run(number, width, batch, gpus=chance.choice(gpus), optimizer=optimizer, noise=noise)
        )
    return found[::-1]


def beside_others(count: int, stretch: float) -> list[Run]:
    """Runs whose GPU time was stretched."""
    return [
        replace(
            one,
            key=f"s{one.key}",
            alone=False,
            minibatch_ms=(one.minibatch_ms or 0) + (stretch - 1) * 10 * (one.device_s or 0),
        )
        for one in history(count, seed=5)
    ]
