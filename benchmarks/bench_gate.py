# SPDX-License-Identifier: Apache-2.0
"""A share of the GPU that is asked for, and the share that a guest gets.

`make -s bench NAME=gate`. A real session with a control block is given directives for 50, 30, 20
and 10 percent and works as fast as it can. The last line printed is one JSON object:

* `worst_share_error_pct`: the worst over `core` and `occupancy` of |got - asked| / asked.
* `core`: torch operators on one core that stands for the GPU; got is the process's processor time
  over time by the clock. `occupancy`: kernels on the simulated GPU; got is the device's own count.
* `boundaries`: the same on the core without the native gate, by pauses between mini-batches of some
  3 ms, which is what remains where the gate cannot be had. Not part of the worst.
* `duty_cycle`: on the core, the same shares by sleeping and working in turns of fixed length while
  another process computes there, and `beside_another` the gate in that place: why it is a bucket.
* `without_pct`: what a session gets that is asked for 100 %.
* `sleeps_per_s`: the most often that the gate put the process to sleep.
* `operator_added_us`: what an operator costs more while the gate is there and lets everything pass.

It asks for more of the machine than others get (see room.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

import room
from slipstream.coordinator import blocks
from slipstream.sandbox import gpus
from slipstream.torch_hooks import block as hook_blocks
from slipstream.torch_hooks import native, occupancy
from slipstream.torch_hooks.native.__main__ import build
from slipstream.torch_hooks.native_gate import NativeGate, counters
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.session import Session
from slipstream.wire.control_block import Directive, Identity, Role
from slipstream.wire.gpu_state import ENVIRONMENT_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SHARES: Final = (50, 30, 20, 10)
WINDOW_S: Final = 5.0
TURN_S: Final = 0.02
KERNEL_US: Final = 300.0


def measure() -> None:
    """Measure everything, telling what goes on; the figures come last."""
    build()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/dev/shm") as folder:
        figures = _figures(Path(folder))
    print(json.dumps(figures))


def _figures(folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    with _session(folder) as (session, seen):
        figures["without_pct"] = _got(session, seen, 100, _compute, time.process_time_ns)
        sleeps, began_s = counters().sleeps, time.monotonic()
        figures["core"] = _each(session, seen, _compute, time.process_time_ns)
        figures["sleeps_per_s"] = round(
            (counters().sleeps - sleeps) / (time.monotonic() - began_s), 1
        )
        with _busy_core():
            figures["duty_cycle"] = {share: _duty_cycle(share) for share in SHARES}
            figures["beside_another"] = _each(session, seen, _compute, time.process_time_ns)
    with _session(folder) as (session, seen), _no_native_code(folder):
        figures["boundaries"] = _each(session, seen, _compute, time.process_time_ns)
    figures["occupancy"] = _on_occupancy_gpu(folder)
    figures["operator_added_us"] = _operator_added_us()
    figures["worst_share_error_pct"] = max(
        round(100 * abs(got - share) / share, 2)
        for device in ("core", "occupancy")
        for share, got in figures[device].items()
    )
    return figures


def _each(
    session: Session, seen: blocks.Block, work: Callable[[], None], used_ns: Callable[[], int]
) -> dict[int, float]:
    """What was got of each share."""
    got = {share: _got(session, seen, share, work, used_ns) for share in SHARES}
    print(f"{work.__name__}: {got}")
    return got


def _got(
    session: Session,
    seen: blocks.Block,
    share_pct: int,
    work: Callable[[], None],
    used_ns: Callable[[], int],
) -> float:
    seen.direct(Directive(epoch=seen.sequence, share_pct=share_pct))
    session.boundary()
    _work_for(session, work, 0.3)
    began_ns, began_used_ns = time.monotonic_ns(), used_ns()
    _work_for(session, work, WINDOW_S)
    took_ns, used = time.monotonic_ns() - began_ns, used_ns() - began_used_ns
    seen.direct(Directive(epoch=seen.sequence, share_pct=100))
    session.boundary()
    return round(100 * used / took_ns, 3)


def _work_for(session: Session, work: Callable[[], None], seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        work()
        session.boundary()


MATRIX: Final = torch.randn(64, 64)


def _compute() -> None:
    """A mini-batch of a hundred operators."""
    for _ in range(100):
        torch.mm(MATRIX, MATRIX)


def _duty_cycle(share_pct: int) -> float:
    """Work for a part of each turn and sleep for the rest, which knows nothing of what was used."""
    began_ns, began_used_ns = time.monotonic_ns(), time.process_time_ns()
    until_s = time.monotonic() + WINDOW_S
    while time.monotonic() < until_s:
        work_until_s = time.monotonic() + TURN_S * share_pct / 100
        while time.monotonic() < work_until_s:
            torch.mm(MATRIX, MATRIX)
        time.sleep(TURN_S * (1 - share_pct / 100))
    used_ns = time.process_time_ns() - began_used_ns
    return round(100 * used_ns / (time.monotonic_ns() - began_ns), 3)


def _on_occupancy_gpu(folder: Path) -> dict[int, float]:
    state = folder / "node.gpus"
    gpus.create(
        state, cluster="bench", node="n1", gpus=1, memory_mib=64, copy_bytes_per_s=1_000_000_000
    )
    os.environ[ENVIRONMENT_VARIABLE] = str(state)
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    with _session(folder) as (session, seen), occupancy.open_gpu() as gpu:

        def launch() -> None:
            for _ in range(10):
                gpu.launch(duration_us=KERNEL_US)
            gpu.synchronize()

        return _each(session, seen, launch, lambda: gpu.usage().busy_ns)


def _operator_added_us() -> float:
    """The least of twenty pairs of rounds: all that is above it is somebody else's."""
    added_us = []
    for _ in range(20):
        plain_us = _operator_us()
        gate = NativeGate(100)
        added_us.append((_operator_us(), plain_us))
        gate.remove()
    return round(min(gated for gated, _ in added_us) - min(plain for _, plain in added_us), 3)


def _operator_us() -> float:
    small = torch.ones(4)
    began_ns = time.process_time_ns()
    for _ in range(5000):
        torch.add(small, small)
    return (time.process_time_ns() - began_ns) / 5000 / 1e3


@contextlib.contextmanager
def _session(folder: Path) -> Iterator[tuple[Session, blocks.Block]]:
    """A guest with a page whose lease does not end."""
    identity = Identity(
        *(1, "0", 0, os.getuid(), Role.GUEST, "opportunistic", "bench", (), os.getpid(), 1)
    )
    seen = blocks.create(folder / "blocks", identity, lease_until_ns=1 << 62)
    claimed = hook_blocks.claim(str(seen.path))
    if claimed is None:
        raise RuntimeError(f"{seen.path} has another writer")
    session = Session(claimed, Notes("1"))
    try:
        yield session, seen
    finally:
        session.end()


@contextlib.contextmanager
def _busy_core() -> Iterator[None]:
    """Another process that computes on our core all the time."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        other.kill()
        other.wait()


@contextlib.contextmanager
def _no_native_code(folder: Path) -> Iterator[None]:
    """As on a machine where it was never built."""
    home, native.FOLDER = native.FOLDER, folder
    try:
        yield
    finally:
        native.FOLDER = home


if __name__ == "__main__":
    room.run(__file__, measure)
