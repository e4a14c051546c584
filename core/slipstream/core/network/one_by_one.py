# SPDX-License-Identifier: Apache-2.0
"""Liquid's own immediate mode: one container after the other, each where it adds least.

For jobs whose containers differ in size, and to compare with: a container does not know of those
that come after it, so the first one fills the smallest hole and the job ends up in many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from slipstream.core.network.gangs import Gang
    from slipstream.core.network.layout import Layout, Seats
    from slipstream.core.network.tree import Bools, Floats


def seats_one_by_one(layout: Layout, job: int, *, without: int | None = None) -> Seats | None:
    """Where each container of a job goes; None if one finds no room."""
    gang, fabric = layout.gangs[job], layout.fabric
    free, opening = layout.free.copy(), layout.opening.copy()
    allowed: Bools = np.ones(len(fabric), dtype=np.bool_)
    if without is not None:
        allowed[without] = False
    edge = layout.weights.near * layout.weights.of(gang) / max(1, gang.edges)
    seats: list[int] = []
    for container, gpus in enumerate(gang.gpus):
        fitting = np.flatnonzero(allowed & (free >= gpus))
        if not fitting.size:
            return None
        added = opening - layout.reward * gpus + edge * _far(layout, gang, seats, container)
        at = int(fitting[added[fitting].argmin()])
        seats.append(at)
        free[at] -= gpus
        opening[at] = 0.0
        if gang.apart:
            allowed[at] = False
    return tuple(seats)


def _far(layout: Layout, gang: Gang, seats: list[int], container: int) -> Floats:
    """What the edges of a container to those that have their seats would cost, for each node."""
    fabric = layout.fabric
    if gang.servers:
        others = seats[: gang.servers] if container >= gang.servers else seats[gang.servers :]
    else:
        others = seats[-1:]
        if container == len(gang.gpus) - 1:
            others = [*others, *seats[:1]]
    far = np.zeros(len(fabric))
    for other in others:
        row = fabric.near(int(fabric.rack[other]))[fabric.rack]
        row[fabric.domain != fabric.domain[other]] = 1_000.0
        row[other] = 0.0
        far += row
    return far
