# SPDX-License-Identifier: Apache-2.0
"""The table of seats on disk: a JSON file that only root reads, replaced as a whole."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slipstream.coordinator.seats import Seat, Task
from slipstream.wire.control_block import Role

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

VERSION = 1


class StoreError(RuntimeError):
    """The file is not a table of seats; says what was found instead."""


def save(path: Path, seats: Mapping[int, Seat]) -> None:
    """Replace the table; after a kill at any moment there is the old one or the new one."""
    replace_file(path, {"v": VERSION, "seats": [asdict(seats[job]) for job in sorted(seats)]})


def replace_file(path: Path, content: object) -> None:
    """Write JSON that only root reads; after a kill there is the old file or the new one."""
    draft = path.with_name(f".{path.name}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(content, file)
    draft.replace(path)


def load(path: Path) -> dict[int, Seat]:
    """The table as it was; no file is an empty one."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return {}
    try:
        content: dict[str, Any] = json.loads(text)
        if content["v"] != VERSION:
            raise StoreError(f"{path} is of version {content['v']}, this build reads {VERSION}")
        seats = [_seat(fields) for fields in content["seats"]]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} is no table of seats: {error!r} in {text[:80]!r}") from error
    return {seat.job_id: seat for seat in seats}


def _seat(fields: dict[str, Any]) -> Seat:
    return Seat(
        **{
            **fields,
            "role": Role(fields["role"]),
            "gpu_uuids": tuple(fields["gpu_uuids"]),
            "tasks": tuple(Task(**task) for task in fields["tasks"]),
        }
    )
