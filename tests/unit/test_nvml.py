# SPDX-License-Identifier: Apache-2.0
"""The unmodified pynvml over the simulated GPUs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pynvml
import pytest

from occupancy_rig import MIB, history, load_nvml, nvml_folder, simulated_node, workers
from slipstream.sandbox import gpus
from slipstream.torch_hooks import occupancy
from slipstream.wire import gpu_state

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.unit


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Three GPUs of 1 GiB, copies at 1 GB/s; NVML initialised."""
    load_nvml()
    with simulated_node(gpu_count=3) as path:
        monkeypatch.setenv(gpu_state.ENVIRONMENT_VARIABLE, str(path))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        pynvml.nvmlInit()
        yield path
        pynvml.nvmlShutdown()


@pytest.fixture
def handle(node: Path) -> object:
    """NVML's handle of the first GPU."""
    assert node.exists()
    handle: object = pynvml.nvmlDeviceGetHandleByIndex(0)
    return handle


@pytest.fixture
def gpu(node: Path) -> Iterator[occupancy.Gpu]:
    """The first GPU, open in this process."""
    assert node.exists()
    with occupancy.open_gpu() as opened:
        yield opened


@pytest.mark.usefixtures("node")
def test_devices_say_who_they_are() -> None:
    """Index, minor number, name and UUID, and back from UUID and bus id to the same device."""
    assert pynvml.nvmlDeviceGetCount() == 3
    for index in range(3):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        uuid = pynvml.nvmlDeviceGetUUID(handle)
        pci = pynvml.nvmlDeviceGetPciInfo(handle)
        same = (
            pynvml.nvmlDeviceGetHandleByUUID(uuid),
            pynvml.nvmlDeviceGetHandleByPciBusId(pci.busId),
            pynvml.nvmlDeviceGetHandleByPciBusId(pci.busIdLegacy),
        )
        assert uuid == gpus.gpu_uuid("test", "n1", index)
        assert pynvml.nvmlDeviceGetName(handle) == gpus.DEFAULT_NAME
        assert pynvml.nvmlDeviceGetMinorNumber(handle) == index
        assert [pynvml.nvmlDeviceGetIndex(one) for one in same] == [index] * 3


@pytest.mark.usefixtures("node")
def test_devices_that_are_not_there_are_not_found() -> None:
    """By index, UUID and bus id, each with NVML's own error."""
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetHandleByIndex(3)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-nobody")
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByPciBusId("0000:77:00.0")


@pytest.mark.usefixtures("node")
def test_the_system_answers() -> None:
    """Versions can be read and parsed, and a process has a name."""
    assert int(pynvml.nvmlSystemGetDriverVersion().split(".")[0]) > 0
    assert int(pynvml.nvmlSystemGetNVMLVersion().split(".")[0]) > 0
    assert pynvml.nvmlSystemGetCudaDriverVersion() >= 12000
    assert "python" in pynvml.nvmlSystemGetProcessName(os.getpid())


def test_memory_and_processes_are_those_of_the_gpu(handle: object, gpu: occupancy.Gpu) -> None:
    """What a process allocates is used, by its pid; both versions of the answer agree."""
    gpu.allocate(100 * MIB)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    second = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    (process,) = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)

    assert (memory.total, memory.used, memory.free) == (1024 * MIB, 100 * MIB, 924 * MIB)
    assert (second.total, second.used, second.free) == (memory.total, memory.used, memory.free)
    assert (process.pid, process.usedGpuMemory) == (os.getpid(), 100 * MIB)
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle) == []


def test_a_dead_process_is_not_reported_though_nobody_cleared_up(
    handle: object, node: Path
) -> None:
    """NVML only reads; it knows the dead by itself, and their queue too."""
    with workers(node, 0) as (worker,):
        worker.ask("allocate", nbytes=100 * MIB)
        worker.ask("flood", count=200, duration_us=10_000)
        assert len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)) == 1
        worker.kill()

    assert pynvml.nvmlDeviceGetComputeRunningProcesses(handle) == []
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == 0
    time.sleep(0.22)  # a whole sample after the kernel that was running
    _, samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    assert samples[-1].sampleValue.uiVal == 0  # though 2 s were queued
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(handle, 0)


def test_looking_through_nvml_does_not_cost_the_process_its_place(
    handle: object, gpu: occupancy.Gpu, node: Path
) -> None:
    """NVML in the very process that uses the GPU opens the lock file too, and never closes it."""
    gpu.allocate(MIB)
    pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    pynvml.nvmlShutdown()
    pynvml.nvmlInit()

    with workers(node, 0) as (other,):
        assert other.ask("allocate", nbytes=MIB) == 2 * MIB


def test_use_is_the_part_of_the_last_second(handle: object, gpu: occupancy.Gpu) -> None:
    """300 ms of kernels and 100 ms of copies: 30 % and 10 %."""
    gpu.launch(duration_us=300_000)
    gpu.copy_async(100_000_000)
    gpu.synchronize()
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)

    assert rates.gpu == pytest.approx(30, abs=1)
    assert rates.memory == pytest.approx(10, abs=1)


def test_use_is_of_the_time_that_is_remembered(
    handle: object, gpu: occupancy.Gpu, node: Path
) -> None:
    """Very many short kernels overwrite their history: the window begins where it begins."""
    gpu.launch(duration_us=200_000)  # this one is forgotten, and does not count
    for _ in range(gpu_state.RING + 10):
        gpu.launch(duration_us=10)
    gpu.synchronize()
    ran = history(gpu_state.map_node(node).gpus[0], gpu_state.COMPUTE)
    before_ns = time.monotonic_ns()
    reported = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    after_ns = time.monotonic_ns()

    assert len(ran) == gpu_state.RING
    begin_ns = max(ran[0].start_ns, after_ns - 1_000_000_000)
    busy_ns = sum(one.end_ns - max(one.start_ns, begin_ns) for one in ran if one.end_ns > begin_ns)
    least, most = (100 * busy_ns / (now_ns - begin_ns) for now_ns in (after_ns, before_ns))
    assert least - 2 <= reported <= most + 2


def test_work_that_is_still_queued_is_not_use(handle: object, gpu: occupancy.Gpu) -> None:
    """Only the time that has passed counts."""
    gpu.launch(duration_us=60_000)
    gpu.launch(duration_us=60_000)

    assert pynvml.nvmlDeviceGetUtilizationRates(handle).gpu <= 3
    gpu.synchronize()


def test_samples_lie_on_a_grid_and_newer_ones_can_be_asked_for(
    handle: object, gpu: occupancy.Gpu
) -> None:
    """Their sum is the time that was used; after the last one seen there is nothing new."""
    gpu.launch(duration_us=150_000).wait()
    time.sleep(0.1)  # so that the sample in which it ended is complete
    kind, samples = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
    newest_us = samples[-1].timeStamp
    used_s = sum(sample.sampleValue.uiVal for sample in samples) / 100 * 0.1

    assert kind == pynvml.NVML_VALUE_TYPE_UNSIGNED_INT
    assert used_s == pytest.approx(0.15, abs=0.005)
    assert {b.timeStamp - a.timeStamp for a, b in itertools.pairwise(samples)} <= {
        99_999,
        100_000,
        100_001,
    }
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, newest_us)


def test_use_is_split_by_process_since_a_moment(handle: object, gpu: occupancy.Gpu) -> None:
    """Half of the time since then was this process's; before that moment nothing counts."""
    gpu.launch(duration_us=50_000).wait()
    since_us = time.time_ns() // 1000
    gpu.launch(duration_us=50_000).wait()
    time.sleep(0.05)
    (sample,) = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    (newer,) = pynvml.nvmlDeviceGetProcessesUtilizationInfo(handle, since_us)

    assert (sample.pid, newer.pid) == (os.getpid(), os.getpid())
    for one in (sample, newer):
        assert one.smUtil == pytest.approx(100 * 50_000 / (one.timeStamp - since_us), abs=2)


def test_an_idle_gpu_has_no_process_use(handle: object, gpu: occupancy.Gpu) -> None:
    """NVML's own answer for that."""
    gpu.synchronize()

    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetProcessUtilization(handle, 0)


def test_accounting_knows_a_process_since_it_opened_the_gpu(
    handle: object, gpu: occupancy.Gpu
) -> None:
    """Use over its life, peak of its memory."""
    opened_us = time.time_ns() // 1000
    gpu.allocate(7 * MIB).free()
    gpu.launch(duration_us=50_000).wait()
    before_us = time.time_ns() // 1000
    stats = pynvml.nvmlDeviceGetAccountingStats(handle, os.getpid())
    after_us = time.time_ns() // 1000
    least, most = (5_000_000 / (now_us - stats.startTime) for now_us in (after_us, before_us))

    assert pynvml.nvmlDeviceGetAccountingPids(handle) == [os.getpid()]
    assert least - 1 <= stats.gpuUtilization <= most + 1
    assert (stats.maxMemoryUsage, stats.isRunning) == (7 * MIB, 1)
    assert stats.startTime <= opened_us
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetAccountingStats(handle, 1)


def test_copies_are_pcie_traffic_in_their_direction(handle: object, gpu: occupancy.Gpu) -> None:
    """A copy to the host is what the GPU sends, at the bandwidth of the copy engine."""
    gpu.copy_async(200_000_000, to_host=True)
    time.sleep(0.03)

    sent = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_TX_BYTES)
    received = pynvml.nvmlDeviceGetPcieThroughput(handle, pynvml.NVML_PCIE_UTIL_RX_BYTES)

    assert sent == 1_000_000  # KB/s: it filled the 20 ms that are looked at
    assert received == 0
    gpu.synchronize()


@pytest.mark.usefixtures("gpu")
def test_modes_are_plain(handle: object) -> None:
    """Any number of processes, no MIG."""
    assert pynvml.nvmlDeviceGetComputeMode(handle) == pynvml.NVML_COMPUTEMODE_DEFAULT
    assert pynvml.nvmlDeviceGetMigMode(handle) == [pynvml.NVML_DEVICE_MIG_DISABLE] * 2
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 0


def test_what_a_simulated_gpu_has_not_is_not_made_up(handle: object) -> None:
    """Temperature, power, clocks, fans: not supported, as NVML says it."""
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    for question in (pynvml.nvmlDeviceGetPowerUsage, pynvml.nvmlDeviceGetFanSpeed):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            question(handle)


def test_a_lost_gpu_is_lost_to_every_call_and_comes_back_healed(handle: object, node: Path) -> None:
    """The others are not touched, and the count stays."""
    gpus.lose(node, 0)
    for question in (
        pynvml.nvmlDeviceGetMemoryInfo,
        pynvml.nvmlDeviceGetUUID,
        pynvml.nvmlDeviceGetUtilizationRates,
        pynvml.nvmlDeviceGetComputeRunningProcesses,
        pynvml.nvmlDeviceGetPowerUsage,
        pynvml.nvmlDeviceGetIndex,
    ):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            question(handle)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        pynvml.nvmlDeviceGetHandleByUUID(gpus.gpu_uuid("test", "n1", 0))
    assert pynvml.nvmlDeviceGetCount() == 3
    assert pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(1)).used == 0

    gpus.heal(node, 0)
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == 0


def test_errors_of_the_driver_come_as_events(handle: object, node: Path) -> None:
    """In order, those after registration only; waiting ends with the event or the time-out."""
    gpus.inject_xid(node, 0, 13)
    events = pynvml.nvmlEventSetCreate()
    pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    with pytest.raises(pynvml.NVMLError_Timeout):
        pynvml.nvmlEventSetWait(events, 20)
    gpus.inject_xid(node, 1, 99)  # of a GPU that is not registered
    gpus.inject_xid(node, 0, 31)
    threading.Timer(0.03, gpus.lose, [node, 0]).start()

    first, second = (pynvml.nvmlEventSetWait(events, 5000) for _ in range(2))

    assert (first.eventData, second.eventData) == (31, gpus.XID_FELL_OFF_THE_BUS)
    assert first.eventType == pynvml.nvmlEventTypeXidCriticalError
    pynvml.nvmlEventSetFree(events)


def test_only_xids_can_be_waited_for(handle: object) -> None:
    """As the device says when asked."""
    events = pynvml.nvmlEventSetCreate()
    supported = pynvml.nvmlDeviceGetSupportedEventTypes(handle)

    assert supported == pynvml.nvmlEventTypeXidCriticalError
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeAll, events)
    pynvml.nvmlEventSetFree(events)


def test_without_gpus_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not set, or a file that is not there."""
    load_nvml()
    for value in ("", "/nowhere"):
        monkeypatch.setenv(gpu_state.ENVIRONMENT_VARIABLE, value)
        with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
            pynvml.nvmlInit()


def test_memory_of_another_layout_is_another_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVML's words for it: driver and library do not match."""
    load_nvml()
    with simulated_node() as path:
        gpu_state.map_node(path).header.version = 7
        monkeypatch.setenv(gpu_state.ENVIRONMENT_VARIABLE, str(path))
        with pytest.raises(pynvml.NVMLError_LibRmVersionMismatch):
            pynvml.nvmlInit()


def test_before_init_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a shutdown too many is an error."""
    load_nvml()
    monkeypatch.delenv(gpu_state.ENVIRONMENT_VARIABLE, raising=False)
    with pytest.raises(pynvml.NVMLError_DriverNotLoaded):
        pynvml.nvmlInit()  # loads the library, finds no GPUs
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlShutdown()


def test_a_process_finds_the_library_by_its_path(node: Path) -> None:
    """The way jobs find it: LD_LIBRARY_PATH and SLIPSTREAM_GPU_STATE, nothing else."""
    program = (
        "import json, pynvml; pynvml.nvmlInit(); "
        "handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount())); "
        "print(json.dumps([pynvml.nvmlDeviceGetUUID(handle) for handle in handles]))"
    )
    environment = {"SLIPSTREAM_GPU_STATE": str(node), "LD_LIBRARY_PATH": str(nvml_folder())}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True
    )

    assert json.loads(done.stdout) == [gpus.gpu_uuid("test", "n1", index) for index in range(3)]
