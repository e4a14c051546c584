# SPDX-License-Identifier: Apache-2.0
"""The hours of a cluster, summed up, with how sure the sums are. Pure."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_HOUR_S: Final = 3600.0
FEWEST_HOURS: Final = 6
"""Below that nothing is said about how sure it is."""
_DRAWS: Final = 1000
_LOW, _HIGH = 0.05, 0.95
_FULL: Final = 0.95


def summed(hours: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """All hours together.

    `placeable_pct_range` holds 90 % of what other draws of as many hours from these would have said
    (a bootstrap over hours, with a fixed seed); None where there are too few.
    """
    total = {
        name: sum(hour[name] for hour in hours) / _HOUR_S
        for name in (
            *("seen_s", "gpu_s", "owned_s", "reported_s", "used_s", "guest_s"),
            "owned_idle_s",
            *("waiting_s", "placeable_s"),
        )
    }
    return {
        "hours_seen": total["seen_s"],
        "gpu_hours": total["gpu_s"],
        "owned_gpu_hours": total["owned_s"],
        "used_gpu_hours": total["used_s"] if total["reported_s"] else None,
        "owned_idle_gpu_hours": total["owned_idle_s"] if total["reported_s"] else None,
        "reported_pct": _pct(total["reported_s"], total["gpu_s"]),
        "guest_hours": total["guest_s"],
        "waiting_hours": total["waiting_s"],
        "placeable_hours": total["placeable_s"],
        "placeable_pct": _pct(total["placeable_s"], total["waiting_s"]),
        "placeable_pct_range": _range(hours),
    }


def _pct(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


def _range(hours: Sequence[Mapping[str, float]]) -> tuple[float, float] | None:
    counted = [hour for hour in hours if hour["waiting_s"] > 0]
    if len(counted) < FEWEST_HOURS:
        return None
    draw = random.Random(len(counted))  # noqa: S311 (the same answer to the same question)
    found = []
    for _ in range(_DRAWS):
        drawn = draw.choices(counted, k=len(counted))
        waited = sum(hour["waiting_s"] for hour in drawn)
        found.append(100 * sum(hour["placeable_s"] for hour in drawn) / waited)
    found.sort()
    return found[int(_LOW * _DRAWS)], found[int(_HIGH * _DRAWS) - 1]


def cluster_lines(told: dict[str, Any], mode: str) -> list[str]:
    """For people."""
    if not told["hours_seen"]:
        return ["nothing was seen yet: the scheduler has just started"]
    owned = 100 * told["owned_gpu_hours"] / told["gpu_hours"] if told["gpu_hours"] else 0
    lines = [
        f"the last {told['hours_seen']:.1f} hours that the scheduler has seen, in mode {mode} now",
        f"  GPUs owned      {owned:.0f} % of {told['gpu_hours']:.1f} GPU hours",
    ]
    if told["owned_idle_gpu_hours"] is None:
        lines.append("  GPU use         not known: no coordinator reports")
    else:
        lines.append(
            f"  of that idle    {told['owned_idle_gpu_hours']:.1f} GPU hours: owned, and not used"
        )
    lines.append(f"  guests          {told['guest_hours']:.1f} seat hours")
    lines.append(f"  jobs waited     {told['waiting_hours']:.1f} hours together")
    if told["placeable_pct"] is not None:
        began = "would have had" if mode == "observe" else "had"
        lines.append(
            f"  of that         {told['placeable_hours']:.1f} hours ({told['placeable_pct']:.0f} %)"
            f" although Slipstream {began} a place for them"
        )
    return [*lines, *_sure(told)]


def _sure(told: dict[str, Any]) -> list[str]:
    lines = []
    if told["placeable_pct_range"]:
        low, high = told["placeable_pct_range"]
        lines.append(f"  how sure        90 % of such hours give {low:.0f} to {high:.0f} %")
    else:
        lines.append(f"  how sure        too short to say: {FEWEST_HOURS} hours with waiting jobs")
    reported = told["reported_pct"]
    if reported is not None and reported < 100 * _FULL:
        lines.append(f"                  coordinators told of {reported:.0f} % of the GPUs only")
    return lines
