# SPDX-License-Identifier: Apache-2.0
"""A real coordinator, and jobs below a process called slurmstepd that it was never told of."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator_rig import Coordinator, coordinated_node
from slipstream.core.classes import Mode
from slipstream.wire import control_block
from slipstream.wire.control_block import Directive, Down, Progress, Up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass
class Slurm:
    """Starts tasks as slurmstepd does: as its children, with what they need to know."""

    node: Coordinator
    stepd: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, job: int, program: str = "sleep 600", **environment: str
    ) -> subprocess.Popen[bytes]:
        """A batch job; ended with its slurmstepd."""
        words = {
            "SLURM_JOB_ID": str(job),
            "SLURMD_NODENAME": "n1",
            "SLIPSTREAM_GPU_STATE": self.node.environment["SLIPSTREAM_GPU_STATE"],
            **environment,
        }
        told = " ".join(f"{name}={value}" for name, value in words.items())
        # A shell under another name; a line or the end of its pipe ends the task.
        # As Slurm does it: one exec, with the whole environment.
        script = f"(export {told}; exec {program}) & task=$!; read line; kill $task"
        process = subprocess.Popen(
            [f"slurmstepd: [{job}.batch]", "-c", script],
            executable=self.stepd,
            stdin=subprocess.PIPE,
        )
        self.started.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """The job is over."""
        process.communicate(b"\n", timeout=20)
        self.started.remove(process)


@contextlib.contextmanager
def slurm_node(*words: str, gpu_count: int = 2, mode: Mode = Mode.OBSERVE) -> Iterator[Slurm]:
    """A node of two GPUs, and who starts jobs on it."""
    rig = coordinated_node(*words, gpu_count=gpu_count, mode=mode)
    with rig as node, tempfile.TemporaryDirectory() as at:
        stepd = Path(at) / "slurmstepd"
        shutil.copy(os.path.realpath("/bin/sh"), stepd)
        slurm = Slurm(node, stepd)
        try:
            yield slurm
        finally:
            for process in list(slurm.started):
                slurm.end(process)


def directive(page: Path) -> Directive:
    """What a page asks for."""
    return control_block.read_directive(_whole(Down, page))


def progress(page: Path) -> Progress:
    """What a page says of its process."""
    return control_block.read_progress(_whole(Up, page))


def _whole(half: type[Up | Down], page: Path) -> Sequence[int]:
    """A half of a page; on a busy machine its writer may stand between two writes for a while."""

    def words(first: int, count: int) -> list[int]:
        return memoryview(page.read_bytes()).cast("Q").tolist()[first : first + count]

    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        if read := control_block.read_half(half, words):
            return read
        time.sleep(0.001)
    raise AssertionError(f"nobody ends what was begun in {page}")
