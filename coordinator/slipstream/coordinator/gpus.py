# SPDX-License-Identifier: Apache-2.0
"""How much each GPU of this node is used: NVML's samples, and their mean over ten seconds."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Final

import pynvml

WINDOW_S: Final = 10.0
_MIB: Final = 1 << 20


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


class Nvml:
    """NVML, opened when it is first there: a driver may be loaded after this daemon has started."""

    def __init__(self) -> None:
        self._opened = False
        self.error = ""
        """Why the latest sample is incomplete; empty if it is not."""

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
