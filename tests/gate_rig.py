# SPDX-License-Identifier: Apache-2.0
"""Guests, owners and their words, for tests of the gate."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from slipstream.coordinator import blocks, phases
from slipstream.torch_hooks import block as hook_blocks
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.session import Session
from slipstream.wire import batons, owner_phase
from slipstream.wire.control_block import Identity, Role
from slipstream.wire.owner_phase import OwnerPhase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GPU = "GPU-a"
JOB = 7
FOREVER_NS = 1 << 62
MATRIX = torch.randn(128, 128)
_OWNER = Path(__file__).with_name("owner_process.py")


def multiply() -> torch.Tensor:
    """An operator of some fifty microseconds."""
    return torch.mm(MATRIX, MATRIX)


def used_share(seconds: float, work: Callable[[], object]) -> float:
    """Which part of the time by the clock `work`, repeated, was given on the processor."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    while time.monotonic() - began_s < seconds:
        work()
    return (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)


@contextlib.contextmanager
def elbow_room() -> Iterator[None]:
    """More of the machine than others get, where that may be had.

    Who gets less of a processor than its share by itself cannot be seen to be kept to it.
    """
    group, before = Path("/proc/self/autogroup"), os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, -20)
        group.write_text("-20")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
            group.write_text("0")


def in_some_round(holds: Callable[[], bool], rounds: int = 6) -> bool:
    """Whether it is seen at least once: a busy machine gives a process less than its share."""
    return any(holds() for _ in range(rounds))


def eventually(condition: Callable[[], bool], *, within_s: float = 90.0) -> bool:
    """Whether it comes true."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return False


def make_word(run_dir: Path, *, job_id: int = JOB, gpu: str = GPU) -> Path:
    """The phase word of a GPU, as the coordinator makes it."""
    Path(batons.folder(str(run_dir))).mkdir(exist_ok=True)
    phases.create(run_dir, gpu, job_id=job_id, uid=os.getuid())
    return word_path(run_dir, gpu=gpu)


def word_path(run_dir: Path, *, gpu: str = GPU) -> Path:
    """Where it is."""
    return Path(owner_phase.path(str(run_dir), gpu))


def read_word(path: Path) -> OwnerPhase:
    """What it says now."""
    return OwnerPhase.from_buffer_copy(path.read_bytes())


@contextlib.contextmanager
def session_of(
    run_dir: Path, role: Role, *, gpus: tuple[str, ...] = (GPU,)
) -> Iterator[tuple[Session, blocks.Block]]:
    """A session of this process and the coordinator's view of its page."""
    identity = Identity(
        *(JOB, "0", int(role), os.getuid(), role, "shared", "token", gpus, os.getpid(), 1)
    )
    seen = blocks.create(run_dir / "blocks", identity, lease_until_ns=FOREVER_NS)
    claimed = hook_blocks.claim(str(seen.path))
    assert claimed
    session = Session(claimed, Notes(""))
    try:
        yield session, seen
    finally:
        session.end()


class Owner:
    """A real process that owns the GPU and waits when told; killed at the end."""

    def __init__(self, run_dir: Path, *, job_id: int = JOB) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(_OWNER), str(run_dir), str(job_id)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.tell("begin")  # from its first wait on it is known to be there
        self.tell("end")

    def tell(self, command: str) -> str:
        """Say it and wait for the answer."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()


@contextlib.contextmanager
def owning(run_dir: Path, *, job_id: int = JOB) -> Iterator[Owner]:
    """An owner for the length of a `with`."""
    owner = Owner(run_dir, job_id=job_id)
    try:
        yield owner
    finally:
        owner.kill()
