# SPDX-License-Identifier: Apache-2.0
"""Copies off a GPU and back leave a neighbour's copies half of the engine."""

from __future__ import annotations

import threading
import time

import pytest

from occupancy_rig import MIB, simulated_node, workers
from slipstream.torch_hooks import device as devices
from slipstream.torch_hooks import occupancy
from slipstream.torch_hooks.rate import CHUNK_BYTES, Rate
from slipstream.wire.gpu_state import ENVIRONMENT_VARIABLE

pytestmark = pytest.mark.unit


def test_a_neighbours_copies_wait_for_one_piece_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the engine's own books: its queue is first come, first served, and never has two of ours.

    Nor is the engine ours for more than half of the time while a GPU is emptied and filled again.
    """
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    piece_ns = CHUNK_BYTES * 2.5
    with simulated_node(memory_mib=100, copy_bytes_per_s=400_000_000) as path:
        monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(path))
        with occupancy.open_gpu() as gpu, gpu.allocate(80 * MIB), workers(path, 0) as (neighbour,):

            def has_waited() -> bool:
                before_ns, began_ns = gpu.usage().copying_ns, time.monotonic_ns()
                emptying = threading.Thread(target=_leave_and_come_back, args=(devices.current(),))
                emptying.start()
                waits_ns = []
                while emptying.is_alive():
                    waits_ns.append(neighbour.ask("copy", nbytes=MIB // 2))
                took_ns = time.monotonic_ns() - began_ns
                ours_ns = gpu.usage().copying_ns - before_ns
                assert ours_ns == pytest.approx(2 * 80 * MIB * 2.5, rel=0.01)
                assert took_ns >= 1.8 * (ours_ns - piece_ns)
                assert max(waits_ns) <= piece_ns
                return bool(max(waits_ns) > 0)

            assert any(has_waited() for _ in range(6)), "on a busy machine they may not meet"


def _leave_and_come_back(device: devices.Device) -> None:
    device.leave()
    assert device.come_back(0)


def test_a_rate_is_kept_over_time_and_not_saved_up() -> None:
    """Twenty pieces after a pause take the time of nineteen."""
    rate = Rate(1e9)
    time.sleep(0.05)
    began_s = time.monotonic()
    for _ in range(20):
        rate.take(CHUNK_BYTES)
    assert time.monotonic() - began_s >= 19 * CHUNK_BYTES / 1e9
