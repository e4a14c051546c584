# SPDX-License-Identifier: Apache-2.0
"""Operators' orders on a node: believed for a while, kept through a restart, and carried out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from node_world import DEVICE_MIB, guest, owner
from slipstream.coordinator.gpus import GpuSample
from slipstream.coordinator.park_orders import BELIEVED_FOR_S, ParkOrders
from slipstream.coordinator.reflexes import Reflexes
from slipstream.core.classes import Mode

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.unit

GPU = GpuSample(0.0, 0, "a", 0, use_pct=0, memory_used_mib=0, memory_mib=DEVICE_MIB)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where they are kept."""
    return tmp_path / "parked.json"


def test_what_the_scheduler_names_stands_while_it_says_so(path: Path) -> None:
    """A minute after its last word jobs go on: whoever knew of them may be gone."""
    one = ParkOrders(path)
    one.told([5, 7], 100.0)
    assert one.standing(100.0 + BELIEVED_FOR_S - 1) == {5, 7}
    one.told([7], 130.0)
    assert one.standing(130.0 + BELIEVED_FOR_S - 1) == {7}
    assert one.standing(130.0 + BELIEVED_FOR_S) == frozenset()
    assert one.standing(140.0) == frozenset(), "once over it is over"


def test_a_coordinator_that_was_started_anew_knows_them(path: Path) -> None:
    """For as long as the old one would have; not after the machine itself was started anew."""
    ParkOrders(path).told([5], 100.0)
    assert path.stat().st_mode & 0o777 == 0o600
    assert ParkOrders(path).standing(120.0) == {5}
    assert ParkOrders(path).standing(100.0 + BELIEVED_FOR_S) == frozenset()
    ParkOrders(path).told([5], 100.0)
    assert ParkOrders(path).standing(3.0) == frozenset(), "a clock that began again"


@pytest.mark.parametrize("text", ["", "[]", '{"jobs": 5}', '{"jobs": ["x"], "until_s": 1}'])
def test_a_file_that_is_none_says_nothing(path: Path, text: str) -> None:
    """And is written over by the next word."""
    path.write_text(text)
    one = ParkOrders(path)
    assert one.standing(0.0) == frozenset()
    one.told([5], 100.0)
    assert ParkOrders(path).standing(101.0) == {5}


def test_nothing_is_written_while_nobody_is_parked(path: Path) -> None:
    """The scheduler says so to every node that joins."""
    ParkOrders(path).told([], 100.0)
    assert not path.exists()


def test_a_folder_that_cannot_be_written_costs_only_the_restart(tmp_path: Path) -> None:
    """The order counts all the same."""
    one = ParkOrders(tmp_path / "none" / "parked.json")
    one.told([5], 100.0)
    assert one.standing(101.0) == {5}


def test_the_machine_hears_of_each_order_once() -> None:
    """Also if its job comes later; an owner's is not taken."""
    one = Reflexes(Mode.ENFORCE)
    one.ordered(1.0, {7, 9})
    one.seated(2.0, [GPU], [owner(9), guest(7)])
    for at_s in (3.0, 4.0):
        one.ordered(at_s, {7, 9})
    assert one.wanted(7).parked
    assert not one.wanted(9).parked
    assert one.told(7)["node_reason"] == "operator"
    assert one.told(7)["share_pct"] == 0
    assert one.commands["park", "operator"] == 1
    one.ordered(5.0, ())
    assert not one.wanted(7).parked
