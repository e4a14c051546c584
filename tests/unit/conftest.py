# SPDX-License-Identifier: Apache-2.0
"""What several files of this layer need."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hooks_rig import FOREVER_NS
from munge_rig import hosts
from slipstream.coordinator import blocks
from slipstream.torch_hooks import block as hook_blocks
from slipstream.torch_hooks.notes import Notes
from slipstream.torch_hooks.session import Session
from slipstream.wire import batons
from slipstream.wire.control_block import Identity, Role

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hooks_rig import Make
    from munge_rig import Hosts


@pytest.fixture(scope="session")
def realms() -> Iterator[Hosts]:
    """Three munged daemons of two realms, for all tests that speak between hosts."""
    with hosts() as three:
        yield three


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes a session and the coordinator's view of its page."""
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    Path(batons.folder(str(tmp_path))).mkdir()
    for path in batons.paths(str(tmp_path), "GPU-a"):
        Path(path).touch()
    sessions: list[Session] = []

    def made(
        role: Role, *, task: int = 0, lease_until_ns: int = FOREVER_NS
    ) -> tuple[Session, blocks.Block]:
        identity = Identity(
            *(7, "0", task, os.getuid(), role, "shared", "token", ("GPU-a",), os.getpid(), 1)
        )
        seen = blocks.create(tmp_path / "blocks", identity, lease_until_ns=lease_until_ns)
        claimed = hook_blocks.claim(str(seen.path))
        assert claimed
        sessions.append(Session(claimed, Notes("")))
        return sessions[-1], seen

    yield made
    for session in sessions:
        session.end()
