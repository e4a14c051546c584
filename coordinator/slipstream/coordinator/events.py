# SPDX-License-Identifier: Apache-2.0
"""What this node tells the scheduler: one line of JSON, at once when something changed."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, Final

from slipstream.coordinator.seats import guests_of, owner_of
from slipstream.wire.control_block import Phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from slipstream.coordinator.gpus import Window
    from slipstream.coordinator.seats import Seat
    from slipstream.wire.control_block import Progress

VERSION: Final = 1
HEARTBEAT_S: Final = 5.0
_SEND_WITHIN_S: Final = 1.0
_BUSY: Final = frozenset(Phase) - {*(Phase.UNCLAIMED, Phase.IMPORTING, Phase.LOADING, Phase.ENDED)}


def event(
    *,
    node: str,
    at_s: float,
    window: Window,
    seats: Mapping[int, Seat],
    progress: Mapping[int, Iterable[Progress]],
) -> dict[str, Any]:
    """The node as it is now."""
    return {
        "v": VERSION,
        "node": node,
        "at_s": at_s,
        "gpus": [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "use_pct": round(window.use_pct(gpu.uuid), 1),
                "memory_used_mib": gpu.memory_used_mib,
                "memory_mib": gpu.memory_mib,
                "owner_job": owner_of(seats, gpu.uuid),
                "guest_jobs": guests_of(seats, gpu.uuid),
            }
            for gpu in window.latest()
        ],
        "jobs": [
            job_report(job, progress.get(job, ()), left=not seats[job].tasks)
            for job in sorted(seats)
        ],
    }


def job_report(job_id: int, pages: Iterable[Progress], *, left: bool = False) -> dict[str, Any]:
    """One job from the pages of its processes: as far as its slowest that trains.

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
    }


def _phase(told: Iterable[Progress], *, left: bool) -> Phase:
    return Phase.ENDED if left else max((page.phase for page in told), default=Phase.UNCLAIMED)


def what_matters(told: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes an event worth sending at once: who sits where, and what phase a job is in."""
    return (
        tuple((gpu["uuid"], gpu["owner_job"], tuple(gpu["guest_jobs"])) for gpu in told["gpus"]),
        tuple((job["job_id"], job["phase"]) for job in told["jobs"]),
    )


class Sender:
    """Sends events to the scheduler's socket; one that is away misses them and that is all."""

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path
        self.sent = 0
        self.failed = 0

    async def send(self, told: Mapping[str, Any]) -> bool:
        """One connection, one line; False if nobody took it."""
        line = json.dumps(told, separators=(",", ":")).encode() + b"\n"
        try:
            async with asyncio.timeout(_SEND_WITHIN_S):
                _, writer = await asyncio.open_unix_connection(self._path)
                try:
                    writer.write(line)
                    await writer.drain()
                finally:
                    writer.close()
                    with contextlib.suppress(OSError):
                        await writer.wait_closed()
        except (OSError, TimeoutError):
            self.failed += 1
            return False
        self.sent += 1
        return True
