# SPDX-License-Identifier: Apache-2.0
"""A training's session as its node's coordinator sees it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from slipstream.coordinator import blocks
    from slipstream.torch_hooks.session import Session
    from slipstream.wire.control_block import Phase

    Make = Callable[..., tuple[Session, blocks.Block]]

FOREVER_NS = 1 << 62


def phase_becomes(seen: blocks.Block, phase: Phase) -> bool:
    """Wait for a training to come to a phase."""
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        seen.refresh()
        if seen.progress.phase == phase:
            return True
        time.sleep(0.005)
    return False
