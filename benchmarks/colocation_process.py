# SPDX-License-Identifier: Apache-2.0
"""An owner or a guest of the benchmark `colocation`: a torch process on the core that is the GPU.

It does as the lines on its standard input say. An owner trains for so many seconds and answers with
what it used; a guest never stops computing and is switched between kinds of control.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
import time
from typing import TYPE_CHECKING

import torch

from slipstream.torch_hooks import attach
from slipstream.torch_hooks.native_gate import NativeGate
from slipstream.torch_hooks.owner_watch import OwnerWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Steps = Iterator[tuple[float, str, float]]

_random = random.Random(1)  # noqa: S311 (the same waits in each run)


def main() -> None:
    """Owner KIND, or guest SIZE PHASE_FILE."""
    torch.set_num_threads(1)
    role, *words = sys.argv[1:]
    if role == "owner":
        _own(OWNERS[words[0]])
    else:
        _visit(int(words[0]), words[1])


# --- owners: what a mini-batch computes (CPU seconds), where it waits, and how long ---------------


def _long_wait() -> Steps:
    yield 0.024, "data", 0.0135


def _short_waits() -> Steps:
    for place in range(8):
        yield 0.003, f"layer {place}", 0.001 + 0.002 * (place * 3 % 8) / 7


def _no_wait() -> Steps:
    yield 0.020, "", 0.0


def _unpredictable() -> Steps:
    yield 0.015, "data", _random.uniform(0.002, 0.020)


def _changing() -> Steps:
    """Training, and in between a validation that waits at the same place for a third as long."""
    for _ in range(8):
        yield 0.024, "data", 0.0135
    for _ in range(8):
        yield 0.008, "data", 0.0045


def _two_waits() -> Steps:
    """Nothing was tuned on this one or the next."""
    yield 0.017, "data", 0.009
    yield 0.011, "metrics", 0.006


def _slow() -> Steps:
    yield 0.061, "data", 0.031 + _random.uniform(-0.003, 0.003)


OWNERS: dict[str, Callable[[], Steps]] = {
    "long wait": _long_wait,
    "short waits": _short_waits,
    "no wait": _no_wait,
    "unpredictable": _unpredictable,
    "changing": _changing,
    "two waits": _two_waits,
    "slow": _slow,
}


def _own(minibatch: Callable[[], Steps]) -> None:
    attach.attach()
    matrix = torch.randn(64, 64)
    attach.boundary()
    _say(attach.status().problems)
    for line in sys.stdin:
        seconds = float(line)
        waited_s = 0.0
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        while time.perf_counter() - began_s < seconds:
            for compute_s, place, wait_s in minibatch():
                _compute(matrix, compute_s)
                if place:
                    with attach.waiting(place):
                        time.sleep(wait_s)
                    waited_s += wait_s
            attach.boundary()
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
        _say({"wall_s": wall_s, "cpu_s": cpu_s, "waited_s": waited_s})


def _compute(matrix: torch.Tensor, seconds: float) -> None:
    began_s = time.thread_time()
    while time.thread_time() - began_s < seconds:
        for _ in range(10):
            torch.mm(matrix, matrix)


# --- guests ---------------------------------------------------------------------------------------


def _visit(size: int, phase_file: str) -> None:
    matrix = torch.randn(size, size)
    for _ in range(20):
        torch.mm(matrix, matrix)
    gate = NativeGate(0)
    threading.Thread(target=_obey, args=(gate, phase_file, threading.get_native_id())).start()
    while True:
        torch.relu(torch.mm(matrix, matrix))


def _obey(gate: NativeGate, phase_file: str, computing_thread: int) -> None:
    """`MODE SHARE`: parked, free, bucket, gated or idle (the kernel's SCHED_IDLE)."""
    owner = OwnerWatch(phase_file)
    _say("ready")
    for line in sys.stdin:
        mode, share = line.split()
        policy = os.SCHED_IDLE if mode == "idle" else os.SCHED_OTHER
        os.sched_setscheduler(computing_thread, policy, os.sched_param(0))
        gate.watch([owner] if mode == "gated" else [])
        gate.set_share({"parked": 0, "free": 100, "idle": 100}.get(mode, int(share)))
        _say({name: getattr(gate.words, name) for name in ("sleeps", "risked", "overrun_ns")})
    os._exit(0)


def _say(what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
