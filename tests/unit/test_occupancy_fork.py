# SPDX-License-Identifier: Apache-2.0
"""Forked children, replaced programs and the dead, as the occupancy GPU sees them."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from occupancy_rig import MIB, assert_in_order, simulated_node, workers
from slipstream.torch_hooks import occupancy
from slipstream.wire import gpu_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """One GPU of 1 GiB."""
    with simulated_node() as path:
        monkeypatch.setenv(gpu_state.ENVIRONMENT_VARIABLE, str(path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield path


@pytest.fixture
def gpu(node: Path) -> Iterator[occupancy.Gpu]:
    """The GPU, open; in order at the end of each test."""
    with occupancy.open_gpu() as opened:
        yield opened
    assert_in_order(gpu_state.map_node(node).gpus[0])


def test_a_forked_child_is_a_process_of_its_own(gpu: occupancy.Gpu, node: Path) -> None:
    """What it takes is counted for its own pid and freed at its end; the parent keeps its own."""
    gpu.allocate(10 * MIB)

    def child() -> bool:
        gpu.allocate(5 * MIB)
        gpu.launch(duration_us=100).wait()
        usage = gpu.usage()
        pids = {process.pid: process.memory_bytes for process in _processes(node)}
        return (
            (usage.memory_bytes, usage.gpu_memory_bytes) == (5 * MIB, 15 * MIB)
            and usage.busy_ns == 100_000
            and pids == {os.getpid(): 5 * MIB, os.getppid(): 10 * MIB}
        )

    assert _in_child(child)
    assert gpu.usage().gpu_memory_bytes == gpu.usage().memory_bytes == 10 * MIB
    assert gpu.usage().gpu_busy_ns == 100_000


def test_a_child_that_leaves_the_gpu_alone_is_not_seen(gpu: occupancy.Gpu, node: Path) -> None:
    """As the workers of a DataLoader; to wait for the parent's kernel is to leave it alone."""
    work = gpu.launch(duration_us=5000)

    def child() -> bool:
        work.wait()
        gpu.synchronize()
        return [process.pid for process in _processes(node)] == [os.getppid()]

    assert _in_child(child)


def test_a_child_cannot_free_what_its_parent_holds(gpu: occupancy.Gpu) -> None:
    """Its copy of the allocation is another process's."""
    held = gpu.allocate(10 * MIB)

    def child() -> bool:
        held.free()
        return gpu.usage().gpu_memory_bytes == 10 * MIB

    assert _in_child(child)
    assert gpu.usage().memory_bytes == 10 * MIB


def test_a_childs_end_does_not_end_its_parents_place(gpu: occupancy.Gpu) -> None:
    """The kernel drops the child's locks, not the parent's: nobody takes the parent for dead."""
    gpu.allocate(MIB)
    assert _in_child(lambda: gpu.usage().gpu_memory_bytes == MIB)

    assert _in_child(lambda: gpu.usage().gpu_memory_bytes == MIB)


@pytest.mark.usefixtures("gpu")
def test_a_program_that_is_replaced_gives_its_memory_back(node: Path) -> None:
    """Exec keeps pid and start time, and still ends what the old program had on the GPU."""
    gpu = occupancy.open_gpu()
    with workers(node, 0) as (worker,):
        assert worker.ask("allocate", nbytes=MIB) == MIB
        assert worker.ask("exec") == "execed"

        assert worker.process.poll() is None
        assert gpu.usage().gpu_memory_bytes == 0
    gpu.close()


def test_a_killed_process_frees_memory_at_once_for_who_needs_it(
    gpu: occupancy.Gpu, node: Path
) -> None:
    """Even if it is a zombie nobody has waited for."""
    with workers(node, 0) as (worker,):
        worker.ask("allocate", nbytes=1024 * MIB)
        with pytest.raises(occupancy.OutOfMemoryError, match=f"Process {worker.process.pid} has"):
            gpu.allocate(MIB)
        worker.process.send_signal(signal.SIGKILL)
        _wait_for_zombie(worker.process.pid)

        gpu.allocate(1024 * MIB).free()


def test_the_queue_of_a_killed_process_goes_with_it(gpu: occupancy.Gpu, node: Path) -> None:
    """The kernel that runs runs to its end; the rest is dropped and those behind move up."""
    with workers(node, 0) as (worker,):
        worker.ask("flood", count=100, duration_us=50_000)
        behind = gpu.launch(duration_us=1000)
        worker.kill()
        killed_ns = time.monotonic_ns()
        start_ns, _ = behind.times_ns()

    assert start_ns - killed_ns < 1_000_000_000  # not the 5 s that were queued
    assert gpu.usage().gpu_busy_ns % 50_000_000 == 1_000_000  # whole kernels ran, none in part


def test_the_65th_process_is_refused_by_name(gpu: occupancy.Gpu, node: Path) -> None:
    """The table has 64 places; the sentence lists who sits there. All are free again after."""

    def child() -> bool:
        if len(list(_processes(node))) < gpu_state.MAX_PROCESSES:
            gpu.usage()  # takes a place
            return _in_child(child)
        with pytest.raises(occupancy.OccupancyError, match="serves 64 processes") as refused:
            gpu.usage()
        return str(os.getppid()) in str(refused.value)

    assert _in_child(child)
    assert gpu.usage().gpu_memory_bytes == 0
    assert [process.pid for process in _processes(node)] == [os.getpid()]


def _processes(node: Path) -> Iterator[gpu_state.Process]:
    gpu = gpu_state.map_node(node).gpus[0]
    return (process for process in gpu.processes if process.pid)


def _in_child(question: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        answer = False
        try:
            answer = question()
        finally:
            os._exit(0 if answer else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _wait_for_zombie(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
