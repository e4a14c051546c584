# SPDX-License-Identifier: Apache-2.0
"""What is said about a placement: to the user at submission, and in the story of a waiting job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from slipstream.core.classes import Role
from slipstream.core.estimate import duration, like, memory
from slipstream.core.placement import Placement
from slipstream.core.reasons import SENTENCE, Reason

if TYPE_CHECKING:
    from slipstream.core.estimate import Estimate
    from slipstream.core.sights import Request

_MOST_NODES_NAMED: Final = 4


def to_user(request: Request, found: Placement | Reason, *, advising: bool) -> str:
    """One sentence for the terminal of whoever submits. Of defaults it says nothing."""
    seat = "GPUs" if request.role is Role.OWNER else "seats"
    if (found is Reason.NO_GUEST_SEAT or found is Reason.OVER_QUOTA) and not advising:
        said = f"Slurm decides where it starts: {_lowered(SENTENCE[found])}"
    elif not isinstance(found, Placement):
        said = f"it will wait: {_lowered(SENTENCE[found])}"
    elif advising:
        said = f"{seat} are free on {_named(found.nodes)}."
    else:
        said = f"{seat} are free on {_named(found.nodes)}; Slurm decides where it starts."
    estimate = request.estimate
    if estimate and estimate.is_known:
        return f"{estimated(estimate, request.role)}; {said}"
    return f"{request.job_class} {request.role}, {said}"


def estimated(estimate: Estimate, role: Role | None = None) -> str:
    """What is known of a job's needs, and from where; of one that is submitted, as what it starts.

    `estimated 2.1 GiB GPU memory (like 14 runs of yours), starts as guest, ~6 min`
    """
    if not estimate.is_known:
        return "nothing like it has run here: it may take whole GPUs, for as long as its limit"
    parts = []
    if estimate.gpu_memory_mib is not None:
        parts.append(f"{memory(estimate.gpu_memory_mib)} GPU memory")
    run_s = estimate.shared_run_s if role is Role.GUEST else estimate.run_s
    if run_s is not None:
        parts.append(f"~{duration(run_s)}")
    first, *rest = parts or [f"{estimate.gpu_use_pct:.0f} % GPU use"]
    starts = () if role is None else (f"starts as {role}",)
    return ", ".join([f"estimated {first} ({like(estimate)})", *starts, *rest])


def to_waiting(found: Placement | Reason, *, advising: bool) -> tuple[Reason, str]:
    """The reason of a waiting job and the line in its story."""
    if not isinstance(found, Placement):
        return found, _lowered(SENTENCE[found]).rstrip(".")
    if advising:
        return Reason.ADVISED, f"advised to start on {_named(found.nodes)}"
    return Reason.WOULD_ADVISE, f"would be advised to start on {_named(found.nodes)}"


def _named(nodes: tuple[str, ...]) -> str:
    if len(nodes) <= _MOST_NODES_NAMED:
        return ", ".join(nodes)
    return f"{', '.join(nodes[:_MOST_NODES_NAMED])} and {len(nodes) - _MOST_NODES_NAMED} more"


def _lowered(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
