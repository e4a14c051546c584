# SPDX-License-Identifier: Apache-2.0
"""A finished run: what was known of it before, and what was measured. Frozen data.

Words are here only as categories: nobody reads in a history what somebody passed to a program.
"""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 (msgspec reads them)
from dataclasses import dataclass, field, fields
from typing import Any, Final

import msgspec

_ENCODER: Final = msgspec.json.Encoder(order="sorted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One. `None` where nobody measured."""

    key: str
    """Slurm's name of the job and when it was submitted, as in 12_3@1700000000: numbers return."""
    ended_s: float
    family: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    categories: Mapping[str, int] = field(default_factory=dict)
    alone: bool = True
    """Whether it had its GPUs to itself."""
    gpus: int = 1
    gpu_memory_mib: float | None = None
    """Of the GPU on which it took most, at its highest."""
    gpu_use_pct: float | None = None
    gpu_use_spread_pct: float | None = None
    network_mbps: float | None = None
    cpus: int | None = None
    host_memory_mib: int | None = None
    run_s: float | None = None
    launch_s: float | None = None
    train_s: float | None = None
    save_s: float | None = None
    minibatch_ms: float | None = None
    """The mean, of its slowest process."""
    minibatches: int | None = None
    nodes: int | None = None
    ranks: int | None = None
    """Processes that trained."""
    cpu_s: float | None = None
    """Processor time of all its processes."""
    sent_mib: float | None = None
    """What all its nodes sent together."""
    device_s: float | None = None
    """How long a GPU of it was busy, in the mean over its GPUs."""


COLUMNS: Final = tuple(one.name for one in fields(Run))
JSON_COLUMNS: Final = frozenset({"numbers", "categories"})
Value = str | int | float | None


class RunError(ValueError):
    """A row that is no run; says why."""


def run_key(ref: str, submitted_at_s: float) -> str:
    """What a run is known by, whoever tells of it."""
    return f"{ref}@{int(submitted_at_s)}"


def to_json(values: Mapping[str, float]) -> str:
    """Features as they are stored."""
    return _ENCODER.encode(values).decode()


def from_json(text: str) -> Any:  # noqa: ANN401 (as it was stored)
    """And back."""
    return msgspec.json.decode(text)


def to_row(run: Run) -> tuple[Value, ...]:
    """Its columns."""
    return tuple(
        to_json(value) if name in JSON_COLUMNS else value
        for name, value in ((name, getattr(run, name)) for name in COLUMNS)
    )


def from_row(row: Mapping[str, Value]) -> Run:
    """The run of a row from a table or a file, where all is text and what is not known is empty."""
    if unknown := sorted(set(row) - set(COLUMNS)):
        raise RunError(f"columns {unknown} are not known, only {list(COLUMNS)}")
    try:
        told = {
            name: from_json(str(value)) if name in JSON_COLUMNS else value
            for name, value in row.items()
            if value is not None and value != ""
        }
        return msgspec.convert(told, Run, strict=False)
    except msgspec.MsgspecError as error:
        raise RunError(f"not understood ({error}): {str(dict(row))[:200]}") from error
