# SPDX-License-Identifier: Apache-2.0
"""What NVML says of one node's GPUs, as lines of JSON.

Run with the node's environment (`Sandbox.node_environment`), because a process loads one NVML and
sees one node: `python -m slipstream.sandbox.nvml_probe [--every SECONDS]`. It ends with its reader.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import pynvml

if TYPE_CHECKING:
    from collections.abc import Mapping

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment."""

    at_s: float
    node: str
    index: int
    uuid: str
    use_pct: int
    memory_used_mib: int
    memory_mib: int
    processes: int
    error: str = ""


def sample(node: str) -> list[GpuSample]:
    """Ask NVML about every GPU of this node, now."""
    return [_sample_one(node, index) for index in range(pynvml.nvmlDeviceGetCount())]


def _sample_one(node: str, index: int) -> GpuSample:
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        return GpuSample(
            at_s=time.time(),
            node=node,
            index=index,
            uuid=pynvml.nvmlDeviceGetUUID(handle),
            use_pct=pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            memory_used_mib=memory.used // _MIB,
            memory_mib=memory.total // _MIB,
            processes=len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        )
    except pynvml.NVMLError as error:
        return GpuSample(time.time(), node, index, "", 0, 0, 0, 0, error=str(error))


def probe(node: str, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a probe that has printed its one line when it ends."""
    return _start(node, environment)


def stream(node: str, environment: Mapping[str, str], every_s: float) -> subprocess.Popen[str]:
    """Start a probe that prints a line every so often until its pipe is closed."""
    return _start(node, environment, "--every", str(every_s))


def read(line: str) -> list[GpuSample]:
    """One line of a probe's output."""
    return [GpuSample(**fields) for fields in json.loads(line)]


def _start(node: str, environment: Mapping[str, str], *flags: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "slipstream.sandbox.nvml_probe", "--node", node, *flags]
    return subprocess.Popen(argv, env=dict(environment), stdout=subprocess.PIPE, text=True)


def main() -> int:
    """Print samples until told to stop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--node", required=True)
    parser.add_argument("--every", type=float, default=0.0, metavar="SECONDS")
    asked = parser.parse_args()
    pynvml.nvmlInit()
    due_s = time.monotonic()
    try:
        while True:
            line = json.dumps([asdict(one) for one in sample(asked.node)])
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
            if not asked.every:
                return 0
            due_s += asked.every
            time.sleep(max(0.0, due_s - time.monotonic()))
    except BrokenPipeError:
        sys.stderr.close()  # nobody is left to tell that nobody is left
        return 0


if __name__ == "__main__":
    sys.exit(main())
