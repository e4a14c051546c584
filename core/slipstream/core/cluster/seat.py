# SPDX-License-Identifier: Apache-2.0
"""A seat, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from slipstream.core.cluster.jobs import Job


class Seat(NamedTuple):
    """GPUs for a job, and who leaves them."""

    gpus: tuple[int, ...]
    leaving: tuple[Job, ...] = ()
