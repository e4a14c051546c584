# SPDX-License-Identifier: Apache-2.0
"""What is said of a job that nothing is known of: what it asked for, and otherwise the worst. Pure.

docs/estimator.md has the table, and why each line is safe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.core.estimate import Estimate

if TYPE_CHECKING:
    from slipstream.estimator.features import Features

NETWORK_MBPS: Final = 10_000.0
"""Of each node of a job that has more than one."""


def safe_default(features: Features) -> Estimate:
    """As careful as what is asked for allows."""
    asked = features.numbers
    memory_mib = int(asked.get("ask.memory_mib_per_node", 0))
    return Estimate(
        gpus=max(1, int(asked.get("ask.gpus", 1))),
        network_mbps=NETWORK_MBPS if asked.get("ask.nodes", 1) > 1 else 0.0,
        cpus=max(1, int(asked.get("ask.tasks", 1) * asked.get("ask.cpus_per_task", 1))),
        host_memory_mib=memory_mib or None,
        run_high_s=asked.get("ask.time_limit_s"),
    )
