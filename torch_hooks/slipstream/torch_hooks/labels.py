# SPDX-License-Identifier: Apache-2.0
"""What users see of us in their profiles: a label for everything that takes time."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

_NOTHING: AbstractContextManager[object] = nullcontext()


def label(what: str) -> AbstractContextManager[object]:
    """`slipstream: what` in a profile that is being taken, else nothing."""
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is None or not getattr(profiler, "_is_profiler_enabled", False):
        return _NOTHING
    made: AbstractContextManager[object] = profiler.record_function(f"slipstream: {what}")
    return made
