# SPDX-License-Identifier: Apache-2.0
"""What this node tells the scheduler: one line of JSON, at once when something changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from slipstream.coordinator.saver import restorable
from slipstream.coordinator.seats import guests_of
from slipstream.coordinator.training_counts import trained_ns
from slipstream.core.classes import Mode
from slipstream.wire.control_block import Phase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from slipstream.coordinator.gpus import Window
    from slipstream.coordinator.joining import Owner
    from slipstream.coordinator.measuring import JobMeter
    from slipstream.coordinator.seats import Seat
    from slipstream.wire.control_block import Progress

VERSION: Final = 1
HEARTBEAT_S: Final = 5.0
_BUSY: Final = frozenset(Phase) - {*(Phase.UNCLAIMED, Phase.IMPORTING, Phase.LOADING, Phase.ENDED)}


def event(  # noqa: PLR0913 (one for each that knows something)
    *,
    node: str,
    at_s: float,
    window: Window,
    seats: Mapping[int, Seat],
    owned: Mapping[str, Owner],
    progress: Mapping[int, Iterable[Progress]],
    may_use: Callable[[int], Mapping[str, Any]] = lambda _: {},
    measured: Mapping[int, JobMeter] | None = None,
    ended: Sequence[Mapping[str, Any]] = (),
    unattached: Mapping[int, str] | None = None,
    pairs: Sequence[Mapping[str, Any]] = (),
    enforces: bool = True,
    mode: Mode = Mode.ENFORCE,
    mode_at_most: Mode = Mode.ENFORCE,
) -> dict[str, Any]:
    """The node as it is now."""
    meters = measured or {}
    # Whose last process has left may come back with its next step, but for now its place is free.
    sits = {job: seat for job, seat in seats.items() if seat.tasks}
    return {
        "v": VERSION,
        "node": node,
        "at_s": at_s,
        "enforces": enforces,
        "mode": str(mode),
        "mode_at_most": str(mode_at_most),
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "use_pct": round(window.use_pct(gpu.uuid), 1),
                "memory_used_mib": gpu.memory_used_mib,
                "memory_mib": gpu.memory_mib,
                "owner_job": owned[gpu.uuid].job_id if gpu.uuid in owned else None,
                "guest_jobs": [
                    job
                    for job in guests_of(sits, gpu.uuid)
                    if gpu.uuid not in owned or owned[gpu.uuid].job_id != job
                ],
                "takes_guests": gpu.uuid not in owned or owned[gpu.uuid].takes_guests,
            }
            for gpu in window.latest()
        ],
        "jobs": [
            {
                **job_report(job, progress.get(job, ()), left=not seats[job].tasks),
                **may_use(job),
                **(_metered(meters[job]) if job in meters else {}),
                "unattached": (unattached or {}).get(job, ""),
            }
            for job in sorted(seats)
        ],
        "ended": list(ended),
        "pairs": list(pairs),
    }


def job_report(job_id: int, pages: Iterable[Progress], *, left: bool = False) -> dict[str, Any]:
    """One job from the pages of its present processes: as far as its slowest that trains.

    One whose last process has `left` keeps its seat for a moment, but has ended for all we know:
    the scheduler asks Slurm at once.
    """
    claimed = [page for page in pages if page.phase != Phase.UNCLAIMED]
    training = [page for page in claimed if page.phase in _BUSY]
    told = training or claimed
    return {
        "job_id": job_id,
        "phase": _phase(told, left=left).name.lower(),
        "minibatch": min((page.minibatches for page in told), default=0),
        "minibatch_ms": max((page.minibatch_ns for page in told), default=0) / 1e6,
        "restorable": restorable(claimed),
        **_phases(told),
    }


def _metered(meter: JobMeter) -> dict[str, Any]:
    """Totals of this start, in place of what only its present processes say."""
    return {**meter.figures(), "measured": meter.told()}


def _phases(told: Iterable[Progress]) -> dict[str, float]:
    """How long the job's slowest process launched, trained and saved, as far as it has come."""
    times_ns: dict[str, list[int]] = {}
    for page in told:
        if page.imported_ns:
            times_ns.setdefault("import_s", []).append(page.imported_ns - page.attached_ns)
        if page.first_boundary_ns:
            launch_ns = page.first_boundary_ns - page.started_ns - page.gated_ns
            times_ns.setdefault("launch_s", []).append(launch_ns)
            times_ns.setdefault("train_s", []).append(trained_ns(page))
            times_ns.setdefault("save_s", []).append(page.saving_ns)
    # Users may write anything into their pages: a time that cannot be is 0.
    return {name: round(max(0, *all_ns) / 1e9, 3) for name, all_ns in times_ns.items()}


def _phase(told: Iterable[Progress], *, left: bool) -> Phase:
    return Phase.ENDED if left else max((page.phase for page in told), default=Phase.UNCLAIMED)


def what_matters(told: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes an event worth sending at once.

    Who sits where, who may, a job's phase, and the node's mode.
    """
    return (
        (told["mode"], told["mode_at_most"], told["enforces"]),
        tuple(
            (gpu["uuid"], gpu["owner_job"], tuple(gpu["guest_jobs"]), gpu["takes_guests"])
            for gpu in told["gpus"]
        ),
        tuple(
            (
                *(job["job_id"], job["phase"], job["restorable"]),
                *(job.get("turn_holder"), job["unattached"]),
            )
            for job in told["jobs"]
        ),
        tuple((tuple(one["jobs"]), tuple(one["rates"])) for one in told["pairs"]),
        tuple((one["job_id"], one["began"]) for one in told["ended"]),
    )
