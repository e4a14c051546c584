# SPDX-License-Identifier: Apache-2.0
"""Real clusters for the tests of this layer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from slipstream.sandbox import Sandbox, Shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Two nodes of two GPUs, shared by the tests that only submit jobs to it."""
    home = tmp_path_factory.mktemp("box")
    shape = Shape(nodes=2, gpus_per_node=2, racks=2, gpu_memory_mib=1024)
    with Sandbox.started(shape, name="shared", home=home) as sandbox:
        yield sandbox


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In place of pytest's own, which has the test's name in it: sockets need short paths."""
    return tmp_path_factory.mktemp("t")


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], bool]], bool]:
    """Wait for something to become true, for as long as a slow machine may need."""

    def wait(holds: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if holds():
                return True
            time.sleep(0.05)
        return False

    return wait
