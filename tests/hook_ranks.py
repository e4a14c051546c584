# SPDX-License-Identifier: Apache-2.0
"""Ranks that train together by gloo, each a real process with the import hook and its own page."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.wire.control_block import Identity, Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slipstream.wire.control_block import Directive

INJECT = Path(hook_blocks.__file__).with_name("inject")
LIMIT_S = 180.0
BEGIN = """
import os, random, sys, time, torch
import torch.distributed as dist
import torch.distributed.nn, torch.distributed.optim  # before the ranks join: see examples/ddp.py
from pathlib import Path
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, stop = dist.get_rank(), Path(sys.argv[1])

def is_over():
    says = torch.tensor(int(stop.exists()))
    dist.all_reduce(says, dist.ReduceOp.MAX)
    return bool(says)
"""
END = """
dist.destroy_process_group()
"""


@dataclass
class Ranks:
    """The ranks of one job on this node."""

    pages: list[blocks.Block]
    processes: list[subprocess.Popen[str]]
    stop: Path

    def eventually(self, is_so: Callable[[], bool]) -> bool:
        """Wait for it, as long as the ranks live."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            for page in self.pages:
                page.refresh()
            if is_so():
                return True
            dead = [one for one in self.processes if one.poll() not in (None, 0)]
            assert not dead, [one.communicate()[1] for one in dead]
            time.sleep(0.002)
        return False

    def minibatches(self) -> list[int]:
        """How far each is, as last read."""
        return [page.progress.minibatches for page in self.pages]

    def reach(self, minibatch: int) -> bool:
        """Wait until all are that far."""
        return self.eventually(lambda: min(self.minibatches()) >= minibatch)

    def end(self) -> list[str]:
        """Have them stop training; what they printed."""
        self.stop.touch()
        told = [one.communicate(timeout=LIMIT_S) for one in self.processes]
        assert [one.returncode for one in self.processes] == [0] * len(told), told
        for page in self.pages:
            page.refresh()
        return [out for out, _ in told]


@contextlib.contextmanager
def training(
    program: str, count: int, folder: Path, *, ask: Directive | None = None
) -> Iterator[Ranks]:
    """`count` ranks that run the program between BEGIN and END, asked for this from the start."""
    pages: list[blocks.Block] = []
    processes: list[subprocess.Popen[str]] = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for rank in range(count):
        identity = Identity(
            *(7, "0", rank, os.getuid(), Role.OWNER, "shared", "t", ("GPU-a",), os.getpid(), 1)
        )
        pages.append(blocks.create(folder / "blocks", identity, lease_until_ns=1 << 62))
        if ask is not None:
            pages[-1].direct(ask)
    ranks = Ranks(pages, processes, folder / "stop")
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith("SLIPSTREAM_")
    }
    for rank, page in enumerate(pages):
        told = {
            **plain,
            "PYTHONPATH": str(INJECT),
            "SLIPSTREAM_CONTROL": str(page.path),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "WORLD_SIZE": str(count),
            "RANK": str(rank),
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", BEGIN + program + END, str(ranks.stop)],
                env=told,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        yield ranks
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
