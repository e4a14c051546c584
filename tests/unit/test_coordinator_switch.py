# SPDX-License-Identifier: Apache-2.0
"""The kill switch on a node: pages ask for nothing and have no lease, until it is taken back."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coordinator_rig import eventually, told
from node_world import DEVICE_MIB, guest, owner
from slipstream.coordinator.gpus import GpuSample
from slipstream.coordinator.reflexes import FREE, Reflexes
from slipstream.coordinator.switch import Switch
from slipstream.core.classes import Mode
from slipstream.wire.control_block import Down, Request, word
from stepd_rig import Slurm, directive, slurm_node

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.unit

_LEASE = word(Down, "lease_until_ns")


@pytest.fixture
def switch(tmp_path: Path) -> Path:
    """Not thrown yet."""
    return tmp_path / "disable"


@pytest.fixture
def slurm(switch: Path) -> Iterator[Slurm]:
    """A node of one GPU whose coordinator enforces."""
    words = ("--turn-s=1", f"--disable-file={switch}")
    with slurm_node(*words, gpu_count=1, mode=Mode.ENFORCE) as slurm:
        yield slurm


def page_of(slurm: Slurm, job: int, **words: object) -> Path:
    """What a task that asks is given."""
    return Path(told(slurm.node.ask(job=job, **words))["SLIPSTREAM_CONTROL"])


def has_lease(page: Path) -> bool:
    """Whether its process may count on a coordinator now."""
    until_ns = memoryview(page.read_bytes()).cast("Q")[_LEASE]
    return bool(until_ns > time.monotonic_ns())


def test_thrown_it_takes_back_leases_and_asks_for_nothing(slurm: Slurm, switch: Path) -> None:
    """Two shared jobs, of which one waits for its turn; a page made meanwhile has no lease."""
    pages = [page_of(slurm, job, **{"class": "shared"}) for job in (7, 8)]
    assert eventually(lambda: any(directive(page).request for page in pages)), slurm.node.log()
    assert all(has_lease(page) for page in pages)
    switch.touch()
    assert eventually(lambda: not any(has_lease(page) for page in pages)), slurm.node.log()
    assert eventually(lambda: not any(directive(page).request for page in pages))
    late = page_of(slurm, 9, **{"class": "shared"})
    assert not has_lease(late)
    assert directive(late).request == Request.NONE
    switch.unlink()
    assert eventually(lambda: all(has_lease(page) for page in [*pages, late]))
    assert eventually(lambda: any(directive(page).request for page in pages)), slurm.node.log()


def test_a_coordinator_that_starts_switched_off_gives_no_leases(slurm: Slurm, switch: Path) -> None:
    """Killed and started again while it is thrown: the pages stay as free as they were."""
    page = page_of(slurm, 7)
    switch.touch()
    assert eventually(lambda: not has_lease(page)), slurm.node.log()
    slurm.node.kill()
    slurm.node.start()
    assert not has_lease(page)
    assert not has_lease(page_of(slurm, 8))


def test_switched_off_only_caps_are_kept() -> None:
    """A guest beside an owner has no share to keep to, and no more memory than there is for it."""
    one = Reflexes(Mode.ENFORCE)
    gpu = GpuSample(0.0, 0, "a", 0, use_pct=0, memory_used_mib=0, memory_mib=DEVICE_MIB)
    one.seated(0.0, [gpu], [guest(7)])
    one.seated(1.0, [gpu], [owner(5), guest(7)])
    told = one.wanted(7)
    assert told.share_pct < 100
    assert 0 < told.cap_bytes < DEVICE_MIB << 20
    one.off = True
    assert one.wanted(7) == replace(FREE, cap_bytes=told.cap_bytes)


def test_a_switch_that_cannot_be_looked_at_stays_as_it_was(tmp_path: Path) -> None:
    """No folder yet; then the file; and a name that no file can have."""
    folder = tmp_path / "etc"
    one = Switch(folder / "disable")
    assert not one.thrown
    folder.mkdir()
    (folder / "disable").touch()
    assert one.look()
    assert one.thrown
    assert not one.look(), "nothing new"
    unreadable = Switch(tmp_path / ("x" * 300))
    assert not unreadable.thrown
    assert not unreadable.look()
