# SPDX-License-Identifier: Apache-2.0
"""How much each GPU of this node is used: NVML's samples, and their mean over ten seconds."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pynvml

if TYPE_CHECKING:
    from collections.abc import Iterable

WINDOW_S: Final = 10.0
_MIB: Final = 1 << 20
_SILENT_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment."""

    at_s: float
    index: int
    uuid: str
    minor: int
    use_pct: int
    memory_used_mib: int
    memory_mib: int
    processes: tuple[tuple[int, int], ...] = ()
    """Who holds how many MiB of it, by pid."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """One process on one GPU: its memory now, its use since it was last told."""

    uuid: str
    pid: int
    memory_bytes: int
    use_pct: float = 0.0
    from_ns: int = 0
    to_ns: int = 0
    """Of CLOCK_MONOTONIC; 0 if the driver had nothing new."""


class Nvml:
    """NVML, opened when it is first there: a driver may be loaded after this daemon has started."""

    def __init__(self) -> None:
        self._opened = False
        self.error = ""
        """Why the latest sample is incomplete; empty if it is not."""
        self._told_us: dict[str, int] = {}
        """Until when each GPU's processes were heard of."""
        self.tells: frozenset[str] = frozenset()
        """The GPUs whose driver says which process uses them; not every driver does."""

    def sample(self, at_s: float) -> list[GpuSample]:
        """Ask about every GPU; one that does not answer is left out."""
        self.error = ""
        try:
            if not self._opened:
                pynvml.nvmlInit()
                self._opened = True
            count = pynvml.nvmlDeviceGetCount()
        except pynvml.NVMLError as error:
            self._opened = False
            self.error = f"NVML: {error}"
            return []
        found = (self._sample_one(index, at_s) for index in range(count))
        return [sample for sample in found if sample]

    def _sample_one(self, index: int, at_s: float) -> GpuSample | None:
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            return GpuSample(
                at_s=at_s,
                index=index,
                uuid=pynvml.nvmlDeviceGetUUID(handle),
                minor=pynvml.nvmlDeviceGetMinorNumber(handle),
                use_pct=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
                memory_used_mib=memory.used // _MIB,
                memory_mib=memory.total // _MIB,
                processes=_processes(handle),
            )
        except pynvml.NVMLError as error:
            self.error = f"GPU {index}: {error}"
            return None

    def process_uses(self, samples: Iterable[GpuSample]) -> list[ProcessUse]:
        """Who uses these GPUs, and how much; a GPU that does not tell is left out."""
        found: list[ProcessUse] = []
        tells = set()
        for sample in samples:
            with contextlib.suppress(pynvml.NVMLError):
                found += self._on_one(sample.index, sample.uuid)
                tells.add(sample.uuid)
        self.tells = frozenset(tells)
        return found

    def _on_one(self, index: int, uuid: str) -> list[ProcessUse]:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        there = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        if not there:
            self._told_us.pop(uuid, None)
            return []
        now_us = time.time_ns() // 1000
        before_us = self._told_us.setdefault(uuid, now_us)
        told: dict[int, list[int]] = {}
        if before_us < now_us:
            with contextlib.suppress(pynvml.NVMLError_NotFound):
                for one in pynvml.nvmlDeviceGetProcessUtilization(handle, before_us):
                    if one.timeStamp > before_us:
                        told.setdefault(one.pid, []).append(one.smUtil)
                        now_us = max(now_us, one.timeStamp)
        # The driver samples when it likes: silence is idleness only after a while.
        to_ns = time.monotonic_ns() if told or now_us - before_us >= _SILENT_US else 0
        from_ns = to_ns - (now_us - before_us) * 1000 if to_ns else 0
        if to_ns:
            self._told_us[uuid] = now_us
        return [
            ProcessUse(
                uuid,
                one.pid,
                one.usedGpuMemory or 0,
                sum(told.get(one.pid, ())) / max(1, len(told.get(one.pid, ()))),
                from_ns,
                to_ns,
            )
            for one in there
        ]


def _processes(handle: Any) -> tuple[tuple[int, int], ...]:  # noqa: ANN401 (pynvml's)
    """Not every driver tells (WSL, vGPU), and one that does not is no reason to do without all."""
    try:
        found = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    except pynvml.NVMLError:
        return ()
    return tuple((one.pid, (one.usedGpuMemory or 0) // _MIB) for one in found)


class Window:
    """The samples of the last ten seconds."""

    def __init__(self) -> None:
        self._samples: dict[str, deque[GpuSample]] = {}

    def add(self, samples: list[GpuSample]) -> None:
        """Take what was just sampled; a GPU that is not in it is gone."""
        now = {sample.uuid: sample for sample in samples}
        self._samples = {uuid: self._samples.get(uuid, deque()) for uuid in now}
        for uuid, sample in now.items():
            kept = self._samples[uuid]
            kept.append(sample)
            while kept[0].at_s < sample.at_s - WINDOW_S:
                kept.popleft()

    def latest(self) -> list[GpuSample]:
        """The last sample of each GPU, by index."""
        return sorted((kept[-1] for kept in self._samples.values()), key=lambda one: one.index)

    def use_pct(self, uuid: str) -> float:
        """The mean use of a GPU over the window."""
        kept = self._samples.get(uuid)
        return sum(sample.use_pct for sample in kept) / len(kept) if kept else 0.0
