# SPDX-License-Identifier: Apache-2.0
"""The owner's phase words of a node, as its coordinator makes them: a file per GPU and owner."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from slipstream.wire import owner_phase
from slipstream.wire.control_block import Role

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from slipstream.coordinator.seats import Seat

_log = logging.getLogger(__name__)


def create(run_dir: Path, gpu_uuid: str, *, job_id: int, uid: int) -> None:
    """Make the word of a GPU's owner, who alone may write it; one that is there already stays.

    A new owner gets a new file: whoever still has the old one open cannot speak for it.
    """
    path = Path(owner_phase.path(str(run_dir), gpu_uuid))
    if _is_of(path, job_id, uid):
        return
    draft = path.with_name(f".{path.name}")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, owner_phase.fresh(job_id), 0)
        os.fchmod(descriptor, 0o644)  # guests of any user read it
        if os.geteuid() == 0:
            os.fchown(descriptor, uid, -1)
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def create_for(run_dir: Path, seats: Iterable[Seat], there: Collection[str]) -> None:
    """For owners to say when they wait; without one a guest has its share and no more.

    Only of GPUs that are there: a seat may have been read from a page, and a name be a path.
    """
    for seat in seats:
        if seat.role == Role.OWNER and seat.tasks:
            for uuid in [uuid for uuid in seat.gpu_uuids if uuid in there]:
                try:
                    create(run_dir, uuid, job_id=seat.job_id, uid=seat.uid)
                except OSError as error:
                    _log.error("no phase word for job %d: %s", seat.job_id, error)


def _is_of(path: Path, job_id: int, uid: int) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        content = os.pread(descriptor, owner_phase.FILE_BYTES + 1, 0)
        owner = os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
    if not owner_phase.is_whole(content) or (os.geteuid() == 0 and owner != uid):
        return False
    return owner_phase.OwnerPhase.from_buffer_copy(content).job_id == job_id
