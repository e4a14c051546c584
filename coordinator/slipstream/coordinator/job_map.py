# SPDX-License-Identifier: Apache-2.0
"""Which jobs use which GPU, in files for dcgm-exporter (`--hpc-job-mapping-dir`).

A file for each GPU, named by its index, with a job's number in each line. It then has its metrics
once for each of these jobs, with the label `hpc_job`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from slipstream.coordinator.gpus import GpuSample
    from slipstream.coordinator.joining import Owner
    from slipstream.coordinator.seats import Seat

_log = logging.getLogger(__name__)


class JobMap:
    """The folder; None: nobody wants it."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._published: dict[int, str] = {}

    def publish(
        self, gpus: Iterable[GpuSample], seats: Mapping[int, Seat], owned: Mapping[str, Owner]
    ) -> None:
        """Say it where it is new."""
        if self._folder is None:
            return
        texts = {gpu.index: _text(gpu.uuid, seats, owned) for gpu in gpus}
        try:
            for index, text in texts.items():
                if self._published.get(index) != text:
                    self._write(self._folder, index, text)
                    self._published[index] = text
        except OSError as error:
            _log.error("jobs could not be told to dcgm-exporter: %s", error)

    @staticmethod
    def _write(folder: Path, index: int, text: str) -> None:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        draft = folder / f".{index}.new"  # no number: dcgm-exporter passes over it
        draft.write_text(text)
        draft.chmod(0o644)
        draft.replace(folder / str(index))


def _text(uuid: str, seats: Mapping[int, Seat], owned: Mapping[str, Owner]) -> str:
    """The owner's number, then those of its guests."""
    owner = [owned[uuid].job_id] if uuid in owned else []
    there = [job for job, seat in sorted(seats.items()) if uuid in seat.gpu_uuids and seat.tasks]
    return "".join(f"{job}\n" for job in dict.fromkeys([*owner, *there]))
