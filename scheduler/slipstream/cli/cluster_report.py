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
_MINUTE_S: Final = 60.0
_SHOWN_HOURS: Final = 0.05
_ASSUMED: Final = (
    "  supposed        owners carry hooks and share; a guest takes as much memory, and works",
    "                  as much, as GPUs with owners do in the mean; a CPU for each of its GPUs",
)


def summed(hours: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """All hours together.

    Ranges hold 90 % of what other draws of as many hours from these would have said (a bootstrap
    over hours, with a fixed seed); None where there are too few.
    """
    total = {
        name: sum(hour.get(name, 0.0) for hour in hours) / _HOUR_S
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
        "placeable_pct_range": _range(hours, "placeable_s", "waiting_s"),
        "if_all_were_guests": _if_all(hours),
    }


def _if_all(hours: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """What the scheduler's shadow of a cluster full of guests has seen."""
    total = {
        name: sum(hour.get(name, 0.0) for hour in hours)
        for name in ("line_s", "seated_s", "without_cpu_s", "work_s", "sooner_s", "gpu_s")
    }
    began, sooner = (
        round(sum(hour.get(name, 0.0) for hour in hours)) for name in ("began_jobs", "sooner_jobs")
    )
    return {
        "line_hours": total["line_s"] / _HOUR_S,
        "seated_hours": total["seated_s"] / _HOUR_S,
        "seated_pct": _pct(total["seated_s"], total["line_s"]),
        "seated_pct_range": _range(hours, "seated_s", "line_s"),
        "without_cpu_hours": total["without_cpu_s"] / _HOUR_S,
        "work_gpu_hours": total["work_s"] / _HOUR_S,
        "work_pct": _pct(total["work_s"], total["gpu_s"]),
        "work_pct_range": _range(hours, "work_s", "gpu_s"),
        "jobs_began": began,
        "jobs_sooner": sooner,
        "sooner_mean_s": total["sooner_s"] / sooner if sooner else None,
    }


def _pct(part: float, whole: float) -> float | None:
    return 100 * part / whole if whole else None


def _range(
    hours: Sequence[Mapping[str, float]], part: str, whole: str
) -> tuple[float, float] | None:
    counted = [hour for hour in hours if hour.get(whole, 0.0) > 0]
    if len(counted) < FEWEST_HOURS:
        return None
    draw = random.Random(len(counted))  # noqa: S311 (the same answer to the same question)
    found = []
    for _ in range(_DRAWS):
        drawn = draw.choices(counted, k=len(counted))
        found.append(
            100 * sum(one.get(part, 0.0) for one in drawn) / sum(one[whole] for one in drawn)
        )
    found.sort()
    return found[int(_LOW * _DRAWS)], found[int(_HIGH * _DRAWS) - 1]


def cluster_lines(told: dict[str, Any], mode: str) -> list[str]:
    """For people."""
    if not told["hours_seen"]:
        return ["nothing was seen yet: the scheduler has just started"]
    owned = 100 * told["owned_gpu_hours"] / told["gpu_hours"] if told["gpu_hours"] else 0
    lines = [
        f"the last {_hours(told['hours_seen'])} that the scheduler has seen, in mode {mode} now",
        f"  GPUs owned      {owned:.0f} % of {_gpu_hours(told['gpu_hours'])}",
    ]
    if told["owned_idle_gpu_hours"] is None:
        lines.append("  GPU use         not known: no coordinator reports")
    else:
        lines.append(
            f"  of that idle    {_gpu_hours(told['owned_idle_gpu_hours'])}: owned, and not used"
        )
        if told["reported_pct"] is not None and told["reported_pct"] < 100 * _FULL:
            lines.append(
                f"                  coordinators told of {told['reported_pct']:.0f} % of the GPUs "
                "only"
            )
    lines.append(f"  guests          {told['guest_hours']:.1f} seat hours")
    return [*lines, *_flagged(told, mode), *_unflagged(told["if_all_were_guests"], told)]


def _flagged(told: dict[str, Any], mode: str) -> list[str]:
    """Jobs that said what they are."""
    lines = [
        "jobs with a Slipstream flag",
        f"  waited          {_hours(told['waiting_hours'])}, all together",
    ]
    if told["placeable_pct"] is None:
        return lines
    began = "would have had" if mode == "observe" else "had"
    lines.append(
        f"  of that         {_hours(told['placeable_hours'])} ({told['placeable_pct']:.0f} %)"
        f" although Slipstream {began} a place for them"
    )
    return [*lines, _sure(told["placeable_pct_range"])]


def _unflagged(told: dict[str, Any], whole: dict[str, Any]) -> list[str]:
    """What could be, if everybody said so."""
    lines = [
        "if every job in line for GPUs had been a guest (--slip-class=opportunistic or auto)",
        f"  waited          {_hours(told['line_hours'])} for GPUs, all jobs together",
    ]
    if whole["owned_idle_gpu_hours"] is None:
        return [*lines, "  seats           not known: coordinators tell which GPUs are quiet"]
    if not told["line_hours"]:
        return [*lines, "  seats           nobody had to wait: nothing to gain"]
    seats = f"{_hours(told['seated_hours'])} ({told['seated_pct']:.0f} %)"
    sooner = f"of which {told['jobs_sooner']} could have sooner{_by(told['sooner_mean_s'])}"
    work = f"{_gpu_hours(told['work_gpu_hours'])} in what owners left idle"
    lines += [
        f"  of that         {seats} with a seat for them on a quiet GPU",
        _sure(told["seated_pct_range"]),
        f"  jobs began      {told['jobs_began']}, {sooner}",
        f"  work            {work}: {told['work_pct']:.1f} % of all{_between(told)}",
    ]
    if told["without_cpu_hours"] >= _SHOWN_HOURS:
        lines.append(
            f"  CPUs            {_hours(told['without_cpu_hours'])} more, had owners not held "
            "all CPUs of the node: see 'slipstream setup'"
        )
    return [*lines, *_ASSUMED]


def _hours(hours: float) -> str:
    return f"{hours:.1f} hours" if hours >= 1 or not hours else f"{60 * hours:.0f} min"


def _gpu_hours(hours: float) -> str:
    return f"{hours:.1f} GPU hours" if hours >= 1 or not hours else f"{60 * hours:.0f} GPU min"


def _between(told: dict[str, Any]) -> str:
    if not told["work_pct_range"]:
        return ""
    low, high = told["work_pct_range"]
    return f" ({low:.1f} to {high:.1f})"


def _by(mean_s: float | None) -> str:
    if mean_s is None:
        return ""
    return (
        f", by {mean_s / 60:.0f} min each" if mean_s >= _MINUTE_S else f", by {mean_s:.0f} s each"
    )


def _sure(found: tuple[float, float] | None) -> str:
    if found is None:
        return f"  how sure        too short to say: {FEWEST_HOURS} hours with waiting jobs"
    return f"  how sure        90 % of such hours give {found[0]:.0f} to {found[1]:.0f} %"
