# SPDX-License-Identifier: Apache-2.0
"""Opportunistic guests beside an owner yield the processor, and nobody else does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.torch_hooks import courtesy
from slipstream.wire import batons, owner_phase
from slipstream.wire.control_block import Identity, Role

pytestmark = pytest.mark.unit

INJECT = Path(hook_blocks.__file__).with_name("inject")
TELLS = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"


def make_owner(run_dir: Path, pid: int) -> None:
    """The word of GPU `a`'s owner, as it is once its hooks are there."""
    Path(batons.folder(str(run_dir))).mkdir()
    word = owner_phase.OwnerPhase.from_buffer_copy(owner_phase.fresh(3))
    word.pid = pid
    content = bytes(word).ljust(owner_phase.FILE_BYTES, b"\0")
    Path(owner_phase.path(str(run_dir), "a")).write_bytes(content)


def priority_while_importing(
    folder: Path, role: Role, class_name: str, *, nice: int = 0, owner: int = 4711
) -> int:
    """Of a process whose torch says what it sees, above this one's."""
    (folder / "torch.py").write_text(TELLS)
    make_owner(folder, owner)
    identity = Identity(*(7, "0", 0, os.getuid(), role, class_name, "t", ("a",), os.getpid(), 1))
    page = blocks.create(folder / "blocks", identity, lease_until_ns=1 << 62)
    done = subprocess.run(
        [sys.executable, "-c", f"import os; os.nice({nice}); import torch"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(INJECT), "SLIPSTREAM_CONTROL": str(page.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout) - os.getpriority(os.PRIO_PROCESS, 0)


@pytest.mark.parametrize(
    ("role", "class_name", "yields"),
    [
        (Role.GUEST, "opportunistic", True),
        (Role.GUEST, "shared", False),
        (Role.GUEST, "auto", False),
        (Role.OWNER, "guaranteed", False),
    ],
)
def test_only_who_stays_a_guest_yields(
    tmp_path: Path, role: Role, class_name: str, *, yields: bool
) -> None:
    """A priority cannot be taken back, and others may become owners."""
    found = priority_while_importing(tmp_path, role, class_name)
    assert (found > 0) is (yields and os.getpriority(os.PRIO_PROCESS, 0) < courtesy.NICE)


def test_a_guest_on_a_gpu_that_nobody_owns_yields_nothing(tmp_path: Path) -> None:
    """Nobody is to be spared."""
    assert not priority_while_importing(tmp_path, Role.GUEST, "opportunistic", owner=0)
    assert not courtesy.has_owner(str(tmp_path), "another")


def test_who_has_yielded_more_already_is_left_alone(tmp_path: Path) -> None:
    """By the user, or by the site."""
    wanted = max(0, 15 - os.getpriority(os.PRIO_PROCESS, 0))
    found = priority_while_importing(tmp_path, Role.GUEST, "opportunistic", nice=wanted)
    assert found == wanted


@pytest.mark.parametrize(
    ("told", "after"),
    [
        ("/autogroup-3 nice 0\n", str(courtesy.NICE)),
        ("/autogroup-3 nice -5\n", str(courtesy.NICE)),
        ("/autogroup-3 nice 12\n", "/autogroup-3 nice 12\n"),
        ("", ""),
    ],
)
def test_a_session_is_lowered_once(tmp_path: Path, told: str, after: str) -> None:
    """The kernel's file has the weight in words and takes a number."""
    path = tmp_path / "autogroup"
    path.write_text(told)
    courtesy.lower_session(str(path))
    assert path.read_text() == after


def test_a_session_that_is_not_a_steps_is_left_alone() -> None:
    """A shell's, say: everything in it would yield."""
    assert not courtesy.is_ours(1)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        assert not courtesy.is_ours(other.pid)
        other.kill()
    assert courtesy.is_ours(other.pid), "who began it has ended"
