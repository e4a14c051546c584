# SPDX-License-Identifier: Apache-2.0
"""Simulated GPUs and real processes on them, for tests of the occupancy GPU and of its NVML."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slipstream.sandbox import gpus
from slipstream.wire import gpu_state

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
_WORKER = Path(__file__).with_name("occupancy_worker.py")


@contextlib.contextmanager
def simulated_node(
    *, gpu_count: int = 1, memory_mib: int = 1024, copy_bytes_per_s: int = 1_000_000_000
) -> Iterator[Path]:
    """A node's GPUs on the RAM disk, where they belong; yields the path of their memory."""
    with tempfile.TemporaryDirectory(prefix="slipstream-test-", dir="/dev/shm") as folder:
        path = Path(folder) / "node.gpus"
        gpus.create(
            path,
            cluster="test",
            node="n1",
            gpus=gpu_count,
            memory_mib=memory_mib,
            copy_bytes_per_s=copy_bytes_per_s,
        )
        yield path


class Worker:
    """A real process on a GPU (see occupancy_worker); killed at the end if it still lives."""

    def __init__(self, state: Path, *, ordinal: int = 0) -> None:
        environment = {**os.environ, gpu_state.ENVIRONMENT_VARIABLE: str(state)}
        environment["WORKER_ORDINAL"] = str(ordinal)
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        self.process = subprocess.Popen(
            [sys.executable, str(_WORKER)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, do: str, **arguments: object) -> None:
        """Send a command without waiting for its answer."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:  # noqa: ANN401 (whatever JSON the worker says)
        """The next answer."""
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def ask(self, do: str, **arguments: object) -> Any:  # noqa: ANN401 (whatever JSON it says)
        """Send a command and wait for its answer."""
        self.tell(do, **arguments)
        return self.hear()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def workers(state: Path, *ordinals: int) -> Iterator[list[Worker]]:
    """One process per ordinal, on that GPU; all started before any is waited for."""
    started: list[Worker] = []
    try:
        started.extend(Worker(state, ordinal=ordinal) for ordinal in ordinals)
        for worker in started:
            assert worker.hear() == "ready"
        yield started
    finally:
        for worker in started:
            worker.kill()


@dataclass(frozen=True)
class Ran:
    """One entry of an engine's history."""

    slot: int
    generation: int
    start_ns: int
    end_ns: int


def history(gpu: gpu_state.Gpu, kind: int) -> list[Ran]:
    """Everything in an engine's ring that was not dropped, oldest first."""
    engine = gpu.engines[kind]
    numbers = range(max(1, engine.tail - gpu_state.RING + 1), engine.tail + 1)
    entries = [engine.entries[number % gpu_state.RING] for number in numbers]
    assert [entry.sequence for entry in entries] == list(numbers)
    return [
        Ran(entry.slot, entry.generation, entry.start_ns, entry.start_ns + entry.duration_ns)
        for entry in entries
        if not entry.flags & gpu_state.DROPPED
    ]


def assert_in_order(gpu: gpu_state.Gpu) -> None:
    """Nobody writes, nothing overlaps, and the totals are the sum of what is in the queues."""
    assert gpu.sequence % 2 == 0, "a writer died inside and nobody repaired"
    for kind in gpu_state.ENGINES:
        assert gpu.engines[kind].moves % 2 == 0
        ran = history(gpu, kind)
        for before, after in itertools.pairwise(ran):
            assert after.start_ns >= before.end_ns
        if gpu.engines[kind].tail < gpu_state.RING:  # else the beginning is forgotten
            for slot, process in enumerate(gpu.processes):
                own = sum(one.end_ns - one.start_ns for one in ran if one.slot == slot)
                assert process.launched_ns[kind] == own, f"slot {slot}, engine {kind}"
    held = sum(process.memory_bytes for process in gpu.processes if process.pid)
    assert held <= gpu.memory_bytes


@functools.cache
def nvml_folder() -> Path:
    """The NVML library, built once per test run."""
    folder = tempfile.mkdtemp(prefix="slipstream-nvml-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return gpus.nvml_library(Path(folder))


def load_nvml() -> None:
    """Have `import pynvml` find our library in this process, without LD_LIBRARY_PATH."""
    ctypes.CDLL(str(nvml_folder() / "libnvidia-ml.so.1"))  # found again by its SONAME
