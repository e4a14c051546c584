# SPDX-License-Identifier: Apache-2.0
"""A seat, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slipstream.core.cluster.jobs import Job


@dataclass(frozen=True, slots=True)
class Seat:
    """GPUs for a job, and who leaves them."""

    gpus: tuple[int, ...]
    leaving: tuple[Job, ...] = ()
