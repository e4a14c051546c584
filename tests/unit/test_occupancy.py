# SPDX-License-Identifier: Apache-2.0
"""The occupancy GPU as one process sees it: queue, memory, copies, losses."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from occupancy_rig import MIB, assert_in_order, simulated_node
from slipstream.sandbox import gpus
from slipstream.torch_hooks import occupancy
from slipstream.wire import gpu_locks, gpu_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two GPUs of 1 GiB, copies at 1 GB/s."""
    with simulated_node(gpu_count=2) as path:
        monkeypatch.setenv(gpu_state.ENVIRONMENT_VARIABLE, str(path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        yield path


@pytest.fixture
def gpu(node: Path) -> Iterator[occupancy.Gpu]:
    """The first GPU, open; in order at the end of each test."""
    with occupancy.open_gpu() as opened:
        yield opened
    assert_in_order(gpu_state.map_node(node).gpus[0])


def test_a_launch_does_not_wait_for_its_kernel(gpu: occupancy.Gpu) -> None:
    """They are queued before the first has ended, and synchronizing waits for all of them."""
    before_ns = time.monotonic_ns()
    works = [gpu.launch(duration_us=300_000) for _ in range(2)]
    launched_ns = time.monotonic_ns()
    gpu.synchronize()
    done_ns = time.monotonic_ns()

    assert launched_ns < works[0].times_ns().end_ns
    assert done_ns - before_ns >= 600_000_000
    assert all(work.done for work in works)


def test_a_launch_costs_microseconds(gpu: occupancy.Gpu) -> None:
    """The best of some rounds, because this machine is not alone: less than 30 us."""

    def round_us() -> float:
        begin_ns = time.perf_counter_ns()
        for _ in range(100):
            gpu.launch(duration_us=0)
        return (time.perf_counter_ns() - begin_ns) / 100 / 1000

    assert min(round_us() for _ in range(10)) < 30


def test_kernels_run_one_after_the_other(gpu: occupancy.Gpu) -> None:
    """Each starts the moment its predecessor ends, and takes exactly its time."""
    works = [gpu.launch(duration_us=duration_us) for duration_us in (3000, 0, 1500)]
    first, second, third = (work.times_ns() for work in works)

    assert first.end_ns - first.start_ns == 3_000_000
    assert second == (first.end_ns, first.end_ns)
    assert third == (first.end_ns, first.end_ns + 1_500_000)


def test_an_idle_gpu_starts_a_kernel_at_once(gpu: occupancy.Gpu) -> None:
    """Between the moments before and after the launch."""
    before_ns = time.monotonic_ns()
    work = gpu.launch(duration_us=10)
    after_ns = time.monotonic_ns()

    assert before_ns <= work.times_ns().start_ns <= after_ns


def test_waiting_ends_with_the_kernel(gpu: occupancy.Gpu) -> None:
    """Not before, and not long after: a scheduler may have its whims."""
    work = gpu.launch(duration_us=3000)
    work.wait()
    late_ns = time.monotonic_ns() - work.times_ns().end_ns

    assert 0 <= late_ns < 5_000_000_000


def test_a_full_queue_makes_the_launch_wait(gpu: occupancy.Gpu) -> None:
    """The kernel after 1024 unfinished ones is launched when the first of them has ended."""
    first = gpu.launch(duration_us=600_000)
    for _ in range(gpu_state.MAX_UNFINISHED - 1):
        gpu.launch(duration_us=1)
    assert not first.done
    gpu.launch(duration_us=1)

    assert first.done


def test_copies_go_beside_kernels(gpu: occupancy.Gpu) -> None:
    """An asynchronous copy starts at once though a kernel runs, and takes bytes / bandwidth."""
    kernel = gpu.launch(duration_us=400_000)
    copy = gpu.copy_async(5_000_001)  # at 1 GB/s

    assert copy.times_ns().start_ns < kernel.times_ns().end_ns
    assert copy.times_ns().end_ns - copy.times_ns().start_ns == 5_000_001


def test_a_blocking_copy_comes_after_own_kernels(gpu: occupancy.Gpu) -> None:
    """As cudaMemcpy does on the default stream."""
    kernel = gpu.launch(duration_us=5000)
    gpu.copy(2_000_000, to_host=True)
    done_ns = time.monotonic_ns()

    assert done_ns >= kernel.times_ns().end_ns + 2_000_000


def test_memory_is_refused_beyond_the_capacity(gpu: occupancy.Gpu) -> None:
    """With a sentence like torch's: how much, of what, and who has the rest."""
    gpu.allocate(1000 * MIB)

    with pytest.raises(occupancy.OutOfMemoryError) as refused:
        gpu.allocate(25 * MIB)

    assert "out of memory. Tried to allocate 25.00 MiB. GPU 0 has a total" in str(refused.value)
    assert "capacity of 1.00 GiB of which 24.00 MiB is free. Process" in str(refused.value)
    assert "has 1000.00 MiB memory in use." in str(refused.value)
    gpu.allocate(24 * MIB)  # a refusal takes nothing


def test_freed_memory_can_be_had_again(gpu: occupancy.Gpu) -> None:
    """By `free`, which may be called twice, and by leaving a `with` block."""
    for _ in range(3):
        with gpu.allocate(1024 * MIB) as held:
            assert gpu.usage().memory_bytes == held.nbytes == 1024 * MIB
        held.free()

    assert gpu.usage().memory_bytes == 0
    assert gpu.usage().peak_memory_bytes == 1024 * MIB


def test_usage_counts_what_has_run(gpu: occupancy.Gpu) -> None:
    """Half-way through a kernel, half of it; at the end, all; copies apart."""
    work = gpu.launch(duration_us=20_000)
    gpu.copy_async(3_000_000)
    time.sleep(0.005)
    before_ns = time.monotonic_ns()
    halfway_ns = gpu.usage().busy_ns
    after_ns = time.monotonic_ns()
    gpu.synchronize()
    usage = gpu.usage()

    start_ns, end_ns = work.times_ns()
    assert min(before_ns, end_ns) - start_ns <= halfway_ns <= min(after_ns, end_ns) - start_ns
    assert usage.busy_ns == usage.gpu_busy_ns == 20_000_000
    assert usage.copying_ns == usage.gpu_copying_ns == 3_000_000


def test_two_gpus_do_not_wait_for_each_other(gpu: occupancy.Gpu) -> None:
    """Kernels launched together on two GPUs run at the same time."""
    with occupancy.open_gpu(ordinal=1) as other:
        works = [one.launch(duration_us=400_000) for one in (gpu, other)]
        first, second = (work.times_ns() for work in works)

    assert second.start_ns < first.end_ns


def test_a_gpu_opened_twice_is_one_process(gpu: occupancy.Gpu, node: Path) -> None:
    """It keeps its memory until it is closed as often."""
    again = occupancy.open_gpu()
    again.allocate(MIB)
    again.close()

    assert gpu.usage().memory_bytes == MIB
    assert [process.pid for process in gpu_state.map_node(node).gpus[0].processes].count(0) == 63


def test_closing_gives_everything_back(node: Path) -> None:
    """After its kernels have ended; what is done with it then is an error that says so."""
    gpu = occupancy.open_gpu()
    gpu.allocate(MIB)
    work = gpu.launch(duration_us=2000)
    gpu.close()
    gpu.close()

    assert time.monotonic_ns() >= work.times_ns().end_ns
    assert not any(process.pid for process in gpu_state.map_node(node).gpus[0].processes)
    with pytest.raises(occupancy.OccupancyError, match=r"ordinal 0\) is closed"):
        gpu.launch(duration_us=1)


def test_visible_gpus_are_numbered_as_the_variable_says(
    node: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ordinal 0 is the first that CUDA_VISIBLE_DEVICES names."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (info,) = occupancy.visible_gpus()

    assert (info.ordinal, info.index, info.memory_bytes) == (0, 1, 1024 * MIB)
    assert info.uuid == gpu_state.map_node(node).gpus[1].uuid.decode()


@pytest.mark.usefixtures("node")
def test_a_gpu_that_is_not_visible_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence quotes the variable."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    with pytest.raises(occupancy.NoDeviceError, match=r"no GPU 1 .* sees 1 .*_DEVICES='0'"):
        occupancy.open_gpu(ordinal=1)


def test_without_simulated_gpus_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not set, and set to a file that is not there."""
    monkeypatch.delenv(gpu_state.ENVIRONMENT_VARIABLE, raising=False)
    with pytest.raises(occupancy.NoDeviceError, match="SLIPSTREAM_GPU_STATE is not set"):
        occupancy.visible_gpus()

    monkeypatch.setenv(gpu_state.ENVIRONMENT_VARIABLE, "/nowhere")
    with pytest.raises(gpu_state.GpuStateError, match="no GPUs' memory at '/nowhere'"):
        occupancy.open_gpu()


@pytest.mark.parametrize("duration_us", [-1.0, float("nan"), float("inf")])
def test_impossible_durations_are_refused(gpu: occupancy.Gpu, duration_us: float) -> None:
    """Nothing is queued for them."""
    with pytest.raises(ValueError, match=f"cannot take {duration_us} us"):
        gpu.launch(duration_us=duration_us)


def test_a_lost_gpu_fails_every_call(node: Path) -> None:
    """Also one that was waiting, and also after the reset: the process has to start anew."""
    gpu = occupancy.open_gpu()
    held = gpu.allocate(MIB)
    work = gpu.launch(duration_us=60_000_000)
    threading.Timer(0.02, gpus.lose, [node, 0]).start()
    with pytest.raises(occupancy.DeviceLostError, match=r"GPU 0 .* is lost"):
        work.wait()

    for call in (gpu.synchronize, gpu.usage, lambda: gpu.allocate(1), lambda: gpu.copy(1)):
        with pytest.raises(occupancy.DeviceLostError):
            call()
    with pytest.raises(occupancy.DeviceLostError):
        occupancy.open_gpu()
    gpus.heal(node, 0)
    with pytest.raises(occupancy.DeviceLostError):
        gpu.launch(duration_us=1)
    held.free()
    gpu.close()
    with occupancy.open_gpu() as fresh:  # as the process that follows would
        assert fresh.usage().memory_bytes == 0


def test_threads_of_one_process_do_not_lose_launches(gpu: occupancy.Gpu) -> None:
    """Four threads, 200 kernels each: 800 kernels of time."""

    def launch() -> None:
        for _ in range(200):
            gpu.launch(duration_us=2)

    threads = [threading.Thread(target=launch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gpu.synchronize()

    assert gpu.usage().busy_ns == 800 * 2000


def test_what_is_long_overwritten_is_done_but_has_no_times(gpu: occupancy.Gpu) -> None:
    """Unless it was waited for while the GPU still knew."""
    forgotten, waited_for = gpu.launch(duration_us=1), gpu.launch(duration_us=1)
    waited_for.wait()
    for _ in range(gpu_state.RING):
        gpu.launch(duration_us=0)

    assert forgotten.done
    assert waited_for.times_ns().end_ns - waited_for.times_ns().start_ns == 1000
    with pytest.raises(LookupError, match="8192"):
        forgotten.times_ns()
    assert gpu.usage().busy_ns == 2000


def test_an_exception_out_of_a_signal_handler_is_repaired(gpu: occupancy.Gpu, node: Path) -> None:
    """Wherever it strikes: the memory is in order after the next call, and nothing is lost."""

    class Struck(Exception):  # noqa: N818 (no error, a test's signal)
        pass

    def strike(*_: object) -> None:
        raise Struck

    me = threading.get_ident()

    previous = signal.signal(signal.SIGUSR1, strike)
    launched = 0
    try:
        for _ in range(60):
            timer = threading.Timer(0.001, signal.pthread_kill, [me, signal.SIGUSR1])
            try:
                timer.start()
                while True:
                    gpu.launch(duration_us=1)
                    launched += 1
            except Struck:
                timer.join()
    finally:
        signal.signal(signal.SIGUSR1, previous)
    gpu.synchronize()

    # The strike may come after a kernel was queued and before it was counted here.
    assert launched * 1000 <= gpu.usage().busy_ns <= (launched + 60) * 1000
    assert_in_order(gpu_state.map_node(node).gpus[0])


def test_the_gpu_called_from_a_handler_inside_a_call_is_an_error(
    gpu: occupancy.Gpu, node: Path
) -> None:
    """It would wait for itself for ever."""
    lock = gpu_locks.open_locks(node).gpu(0)

    with pytest.raises(RuntimeError, match="signal handler"):
        lock.run(lambda: gpu.launch(duration_us=1))
