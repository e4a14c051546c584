# SPDX-License-Identifier: Apache-2.0
"""The ranks of one training, as torch.distributed knows them; one alone without it.

Ranks agree by a collective only where all of them are sure to be: when they restore. A boundary is
no such place, since a parked rank would keep the others waiting.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TypeVar

from slipstream.torch_hooks.checkpoint.generations import Shard

if TYPE_CHECKING:
    import torch
else:
    from slipstream.torch_hooks.lazy_torch import torch

T = TypeVar("T")


def shard() -> Shard:
    """Which of how many this process is."""
    if not _together():
        return Shard()
    return Shard(torch.distributed.get_rank(), torch.distributed.get_world_size())


def gathered(value: T) -> list[T]:
    """What each rank says, in their order."""
    if not _together():
        return [value]
    values: list[T | None] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(values, value)
    return values  # type: ignore[return-value]  # all are filled now


def _together() -> bool:
    if "torch" not in sys.modules:
        return False
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized()
