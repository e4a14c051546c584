# SPDX-License-Identifier: Apache-2.0
"""What the policies are called. Apart from them: a command's --help should not load them all."""

from __future__ import annotations

from typing import Final

OURS: Final = "slipstream"
ORACLE: Final = "srtf-oracle"
NAMES: Final = (
    "fifo",
    "backfill",
    "fair-sharing",
    "tiresias",
    "gandiva",
    "antman",
    "liquid",
    ORACLE,
    OURS,
)
