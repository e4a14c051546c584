# SPDX-License-Identifier: Apache-2.0
"""Liquid's own immediate mode: one container after the other, each where it adds least.

For jobs whose containers differ in size, and to compare with: a container does not know of those
that come after it, so the first one fills the smallest hole and the job ends up in many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slipstream.core.network.scoring import ACROSS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slipstream.core.network.fabric import Fabric
    from slipstream.core.network.gangs import Gang
    from slipstream.core.network.layout import Layout, Seats
    from slipstream.core.network.tree import Bools, Floats


def seats_one_by_one(
    layout: Layout, job: int, *, without: int | None = None, large_first: bool = False
) -> Seats | None:
    """Where each container of a job goes; None if one finds no room.

    Args:
        layout: the jobs that have their seats.
        job: which one has none.
        without: a node it shall not be on.
        large_first: containers of many GPUs choose first, otherwise the order is the tasks'.
    """
    gang, fabric = layout.gangs[job], layout.fabric
    free, opening = layout.free.copy(), layout.opening.copy()
    allowed: Bools = np.ones(len(fabric), dtype=np.bool_)
    if without is not None:
        allowed[without] = False
    edge = layout.weights.near * layout.weights.of(gang) / max(1, gang.edges)
    order = list(range(len(gang.gpus)))
    if large_first:
        order.sort(key=lambda container: -gang.gpus[container])
    seats: dict[int, int] = {}
    for container in order:
        gpus = gang.gpus[container]
        fitting = np.flatnonzero(allowed & (free >= gpus))
        if not fitting.size:
            return None
        others = [seats[one] for one in _talks_to(gang, container) if one in seats]
        added = opening - layout.reward * gpus + edge * _far(layout.fabric, others)
        at = int(fitting[added[fitting].argmin()])
        seats[container] = at
        free[at] -= gpus
        opening[at] = 0.0
        if gang.apart:
            allowed[at] = False
    return tuple(seats[container] for container in range(len(gang.gpus)))


def _talks_to(gang: Gang, container: int) -> Sequence[int]:
    """The containers at the other end of its edges."""
    count = len(gang.gpus)
    if gang.servers:
        return range(gang.servers) if container >= gang.servers else range(gang.servers, count)
    return ((container - 1) % count, (container + 1) % count)


def _far(fabric: Fabric, others: Sequence[int]) -> Floats:
    """What edges to these nodes would cost, from each node."""
    far = np.zeros(len(fabric))
    for other in others:
        row = fabric.near(int(fabric.rack[other]))[fabric.rack]
        row[fabric.domain != fabric.domain[other]] = ACROSS
        row[other] = 0.0
        far += row
    return far
