# SPDX-License-Identifier: Apache-2.0
"""Liquid's measured seconds by placement, and what our model of wires says of the same placements.

What a worker sends follows from the number of parameters (fetched and returned once a mini-batch,
four bytes each) and from the seconds the same training took on one node. Two things are not in the
paper's table and are taken to be 100 mini-batches and links of 10 Gbit/s; they scale all three
networks alike. p is a parameter server, w a worker, ':' the border of a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.core.network.gangs import with_roles
from slipstream.core.network.traffic import slowdown

if TYPE_CHECKING:
    from collections.abc import Mapping

LINK_MBPS: Final = 10_000.0
MINIBATCHES: Final = 100
SINGLE: Final = "single"

PARAMETERS_MILLION: Final = {"VGG16": 138.4, "ResNet-50": 25.6, "Inception3": 23.8}
MEASURED_S: Final[Mapping[str, Mapping[str, float]]] = {
    "VGG16": {SINGLE: 223.5, "pww": 510, "pw:w": 767, "p:ww": 1190, "p:w:w": 810},
    "ResNet-50": {SINGLE: 155, "pww": 203, "pw:w": 204, "p:ww": 255, "p:w:w": 210},
    "Inception3": {SINGLE: 255, "pww": 289, "pw:w": 295, "p:ww": 310, "p:w:w": 290},
}
"""A single node was given as a range: its middle."""
PLACEMENTS: Final = (SINGLE, "pww", "pw:w", "p:w:w", "p:ww")


def in_order(model: str) -> bool:
    """Whether our model puts the placements of a network in the order that was measured."""
    told = sorted(PLACEMENTS, key=lambda name: predicted(model, name))
    return told == sorted(PLACEMENTS, key=lambda name: MEASURED_S[model][name])


def predicted(model: str, placement: str) -> float:
    """How much longer than on a single node, as a part of that."""
    if placement == SINGLE:
        return 0.0
    alone_s = MEASURED_S[model][SINGLE]
    mbps = PARAMETERS_MILLION[model] * 2 * 32 * MINIBATCHES / alone_s
    gang = with_roles(model, {"ps": 1, "worker": 2}, mbps=mbps)
    seats = [at for at, node in enumerate(placement.split(":")) for _ in node]
    return slowdown(gang, seats, LINK_MBPS)
