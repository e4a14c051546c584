# SPDX-License-Identifier: Apache-2.0
"""Liquid's measured table: our model of wires puts the placements of three networks in order."""

from __future__ import annotations

from typing import Final

import pytest

from slipstream.core.network.gangs import ring, with_roles
from slipstream.core.network.liquid import MEASURED_S, PLACEMENTS, in_order, predicted
from slipstream.core.network.traffic import slowdown

pytestmark = pytest.mark.unit

LINK_MBPS: Final = 10_000.0


@pytest.mark.parametrize("model", MEASURED_S)
def test_liquids_table_comes_out_in_order(model: str) -> None:
    """From the single node to the server with both workers behind one link."""
    assert in_order(model)


@pytest.mark.parametrize("model", MEASURED_S)
def test_no_two_placements_are_predicted_alike(model: str) -> None:
    """An order that rests on ties would be no order."""
    assert len({round(predicted(model, name), 9) for name in PLACEMENTS}) == len(PLACEMENTS)


def test_the_order_is_the_paper_s() -> None:
    """VGG16 and ResNet-50 alike; Inception3 sends so little that a server beside it is worse."""
    told = {model: sorted(PLACEMENTS, key=lambda p: predicted(model, p)) for model in MEASURED_S}
    assert told["VGG16"] == told["ResNet-50"] == ["single", "pww", "pw:w", "p:w:w", "p:ww"]
    assert told["Inception3"] == ["single", "pww", "p:w:w", "pw:w", "p:ww"]


def test_both_workers_behind_one_link_are_worst() -> None:
    """They share it at their end too, which those on nodes of their own do not."""
    gang = with_roles("job", {"ps": 1, "worker": 2}, mbps=1_000)
    assert slowdown(gang, (0, 1, 1), LINK_MBPS) == pytest.approx(0.4)
    assert slowdown(gang, (0, 1, 2), LINK_MBPS) == pytest.approx(0.3)


def test_a_job_without_servers_or_of_unknown_traffic_is_not_predicted() -> None:
    """The model is about servers; it says nothing where nothing is known."""
    assert slowdown(ring("job", 2, mbps=1_000), (0, 1), LINK_MBPS) == 0
    assert slowdown(with_roles("job", {"ps": 1, "worker": 1}), (0, 1), LINK_MBPS) == 0
