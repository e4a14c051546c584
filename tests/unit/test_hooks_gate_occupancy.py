# SPDX-License-Identifier: Apache-2.0
"""A guest on the occupancy GPU is kept to its share where it launches; an owner says it waits."""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING

import pytest

from gate_rig import elbow_room, in_some_round, make_word, multiply, read_word, session_of
from occupancy_rig import simulated_node
from slipstream.torch_hooks import native, native_gate, occupancy
from slipstream.torch_hooks.native import __main__ as native_build
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
