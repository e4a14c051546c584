# SPDX-License-Identifier: Apache-2.0
"""A guest on the occupancy GPU is kept to its share where it launches; an owner says it waits."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest

from gate_rig import (
    elbow_room,
    in_some_round,
    make_word,
    multiply,
    owning,
    read_word,
    session_of,
)
from occupancy_rig import simulated_node
from slipstream.torch_hooks import native, native_gate, occupancy
from slipstream.torch_hooks.native import __main__ as native_build
from slipstream.torch_hooks.native_gate import NativeGate
from slipstream.torch_hooks.occupancy_context import hold_launches
from slipstream.torch_hooks.owner_watch import OwnerWatch
from slipstream.wire import gpu_state
from slipstream.wire.control_block import Directive, Role

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Iterator
    from pathlib import Path

    from slipstream.torch_hooks.session import Session

pytestmark = pytest.mark.unit


@pytest.fixture(scope="module", autouse=True)
def _library() -> None:
    native_build.build()


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[occupancy.Gpu]:
    """A GPU, open."""
    with simulated_node() as path:
        monkeypatch.setenv(gpu_state.ENVIRONMENT_VARIABLE, str(path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        with occupancy.open_gpu() as opened, elbow_room():
            yield opened


def used_share(gpu: occupancy.Gpu, session: Session, seconds: float) -> float:
    """Which part of the time by the clock the GPU computed for us, launching all the time."""
    began_s, began_ns = time.monotonic(), gpu.usage().busy_ns
    while time.monotonic() - began_s < seconds:
        for _ in range(10):
            gpu.launch(duration_us=400)
        gpu.synchronize()
        session.boundary()
    return (gpu.usage().busy_ns - began_ns) / 1e9 / (time.monotonic() - began_s)


@pytest.mark.parametrize("with_native_code", [True, False])
def test_launches_wait_for_their_share(
    tmp_path: Path,
    gpu: occupancy.Gpu,
    monkeypatch: pytest.MonkeyPatch,
    *,
    with_native_code: bool,
) -> None:
    """Charged with device time: what the CPU does beside it is free, and torch is left alone."""

    def missing() -> ctypes.CDLL:
        raise native.NativeError("not built")

    counters = native_gate.counters()
    if not with_native_code:
        monkeypatch.setattr(native, "load", missing)
    with session_of(tmp_path, Role.GUEST) as (session, seen):
        epochs = itertools.count(1)

        def used_at(share_pct: int, seconds: float) -> float:
            seen.direct(Directive(epoch=next(epochs), share_pct=share_pct))
            session.boundary()
            used_share(gpu, session, 0.1)
            return used_share(gpu, session, seconds)

        def is_seen() -> bool:
            large = used_at(40, 0.8)
            operators = counters.operators
            multiply()
            assert counters.operators == operators
            small = used_at(10, 1.0)
            free = used_at(100, 0.3)
            assert small < 0.15  # a busy machine launches too late for more, the gate never early
            assert large < 0.5
            return 0.02 < small < large / 1.8 and free > large

        assert in_some_round(is_seen)
    assert seen.progress.problems == 0


def test_a_copy_does_not_wait(tmp_path: Path, gpu: occupancy.Gpu) -> None:
    """The share is of the GPU's time to compute; the copy engine is beside it."""
    with session_of(tmp_path, Role.GUEST) as (session, seen):
        seen.direct(Directive(epoch=1, share_pct=0))
        session.boundary()
        gpu.copy_async(1000).wait()
        seen.direct(Directive(epoch=2, share_pct=100))
        session.boundary()
        gpu.launch(duration_us=10).wait()


def test_an_owners_wait_begins_when_its_kernels_have_ended(
    tmp_path: Path, gpu: occupancy.Gpu
) -> None:
    """Not when its CPU begins to wait: the queue says when it has drained."""
    word = make_word(tmp_path)
    with session_of(tmp_path, Role.OWNER) as (session, _):
        assert session.waits
        kernel = gpu.launch(duration_us=300_000)
        assert session.waits.begin("data")
        assert read_word(word).idle_from_ns == kernel.times_ns().end_ns
        session.waits.end("data")
        assert session.waits.begin("data")
        assert read_word(word).idle_from_ns <= time.monotonic_ns()
        session.waits.end("data")


KERNEL_NS = 2_000_000


@pytest.mark.parametrize(("share_pct", "overruns"), [(0, 1), (50, 0)])
def test_what_the_share_allowed_is_no_overrun_of_a_wait(
    tmp_path: Path, share_pct: int, overruns: int
) -> None:
    """It is paid for already; charged twice it would keep the guest out of all waits to come."""
    watch = OwnerWatch(str(make_word(tmp_path)))
    gate = NativeGate(share_pct, at_operators=False)
    try:
        gate.watch([watch])
        with owning(tmp_path) as owner:
            before = gate.words.overruns
            owner.tell("begin")  # how long it waits is not known: no kernel fits for sure
            gate.admit(time.monotonic_ns(), KERNEL_NS)
            gate.charge(KERNEL_NS, time.monotonic_ns() + 30_000_000_000)
            owner.tell("end")
            gate.set_share(99)
            gate.admit(time.monotonic_ns(), KERNEL_NS)
            assert gate.words.overruns - before == overruns
    finally:
        gate.remove()
        watch.close()


class Crowd:
    """A gate during whose first wait somebody else launches."""

    def __init__(self, gpu: occupancy.Gpu) -> None:
        self.asked_ns: list[int] = []
        self.ends_ns = 0
        self.other: occupancy.Work | None = None
        self._gpu = gpu

    def admit(self, begin_ns: int, _duration_ns: int) -> None:
        self.asked_ns.append(begin_ns)
        if self.other is None:
            hold_launches(None)
            self.other = self._gpu.launch(duration_us=200_000)
            hold_launches(self)

    def charge(self, _device_ns: int, ends_ns: int) -> None:
        self.ends_ns = ends_ns


def test_who_slept_asks_again_when_others_have_launched_meanwhile(gpu: occupancy.Gpu) -> None:
    """Of three guests that each saw room for one kernel before they slept, two would be late."""
    crowd = Crowd(gpu)
    hold_launches(crowd)
    try:
        mine = gpu.launch(duration_us=1000)
    finally:
        hold_launches(None)
    assert crowd.other
    assert crowd.asked_ns[1:] == [crowd.other.times_ns().end_ns]
    assert crowd.ends_ns == mine.times_ns().end_ns
