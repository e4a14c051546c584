# SPDX-License-Identifier: Apache-2.0
"""When this process started, on the clock that all times in a control block are of."""

from __future__ import annotations

import os
import time


def process_started_ns() -> int:
    """As the kernel has it, to a hundredth of a second; 0 if it cannot be told."""
    try:
        with open("/proc/self/stat", "rb") as stat:  # noqa: PTH123 (no pathlib in a user's process)
            # The name in parentheses may hold spaces: fields begin after the last one.
            ticks = int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
    since_boot_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - since_boot_ns
    return max(0, time.monotonic_ns() - max(0, age_ns))
