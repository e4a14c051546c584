# SPDX-License-Identifier: Apache-2.0
"""Unchanged training programs in processes of their own, and their pages, for tests of parking."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire import batons
from slipstream.wire.control_block import Identity, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INJECT = Path(hook_blocks.__file__).with_name("inject")
FOREVER_NS = 1 << 62
GPU = "GPU-a"
PATIENCE_S = 180.0


@dataclass
class Job:
    """A process that trains, and the coordinator's view of its page."""

    process: subprocess.Popen[str]
    page: blocks.Block

    def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that will come; fails when the process ends without it."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"never came: {self.page.progress}"
            if self.process.poll() is not None:
                self.page.refresh()
                assert holds(), f"ended: {self.page.progress}\n{self.process.communicate()}"
                return
            time.sleep(0.005)
            self.page.refresh()

    def output(self) -> str:
        """What it printed, once it has ended well."""
        printed, errors = self.process.communicate(timeout=PATIENCE_S)
        assert (self.process.returncode, errors) == (0, ""), (self.process.returncode, errors)
        self.page.refresh()
        return printed


def page_in(
    folder: Path, role: Role = Role.GUEST, *, task: int = 0, class_name: str = "shared"
) -> blocks.Block:
    """A page for a task, and the batons of its GPU."""
    run_dir = folder / "run"
    Path(batons.folder(str(run_dir))).mkdir(parents=True, exist_ok=True)
    for path in batons.paths(str(run_dir), GPU):
        Path(path).touch()
    whose = (7, "0", task, os.getuid(), role, class_name, "token")
    identity = Identity(*whose, (GPU,), 1 + task, 1)
    return blocks.create(run_dir / "blocks", identity, lease_until_ns=FOREVER_NS)


@contextlib.contextmanager
def started(page: blocks.Block, program: str, **variables: str) -> Iterator[Job]:
    """The program with the import hook and its page; killed at the end if it still lives."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")
    }
    environment |= {
        "PYTHONPATH": str(INJECT),
        "SLIPSTREAM_CONTROL": str(page.path),
        "OMP_NUM_THREADS": "1",
        **variables,
    }
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield Job(process, page)
    finally:
        process.kill()
        process.communicate()
