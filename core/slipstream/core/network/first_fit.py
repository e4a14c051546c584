# SPDX-License-Identifier: Apache-2.0
"""First fit and random fit: a job takes the first nodes with room, in an order it is given.

Neither knows of the score. Batches start from them too, for what best fit never tries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slipstream.core.network.bestfit import seated
from slipstream.core.network.one_by_one import seats_one_by_one

if TYPE_CHECKING:
    from slipstream.core.network.layout import Layout, Seats
    from slipstream.core.network.tree import Ints


def first_seats(layout: Layout, job: int, order: Ints) -> Seats | None:
    """The first nodes of an order that hold a job; None if all of them together do not."""
    gang = layout.gangs[job]
    size = max(gang.gpus)
    if any(gpus not in (0, size) for gpus in gang.gpus):
        return seats_one_by_one(layout, job, large_first=True)
    count = sum(gpus > 0 for gpus in gang.gpus)
    units = np.minimum(layout.free[order] // size, 1 if gang.apart else count)
    so_far = np.cumsum(units)
    if not so_far.size or so_far[-1] < count:
        return None
    last = int(np.searchsorted(so_far, count))
    units[last] -= so_far[last] - count
    share = zip(order[: last + 1].tolist(), units[: last + 1].tolist(), strict=True)
    return seated(gang, [(at, here) for at, here in share if here], layout.fabric)
