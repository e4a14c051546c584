# SPDX-License-Identifier: Apache-2.0
"""Readers of traces: Philly's CSV, what `sacct` prints, and a simple CSV of our own.

A trace tells when jobs came, how long they ran, on how many GPUs and whose they were; nothing else
is believed of it. What is not understood is an error that quotes it.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

_GPUS: Final = re.compile(r"gres/(?:gpu|slot)(?::[^=,]+)?=(\d+)")
"""A guest of ours holds seats (`slot`) in place of GPUs, as many as it uses."""
_ELAPSED: Final = re.compile(r"(?:(\d+)-)?(\d+):(\d\d):(\d\d)(?:\.\d+)?$")
_LIMITLESS: Final = frozenset({"", "UNLIMITED", "Partition_Limit"})

PHILLY_QUOTA_NODES: Final[Mapping[str, int]] = {
    "6214e9": 64,
    "b436b2": 64,
    "ee9e8c": 64,
    "7f04ca": 32,
    "6c71a0": 32,
    "0e4a51": 32,
    "11cb48": 16,
    "e13805": 16,
    "2869ce": 16,
    "ed69ec": 8,
    "103959": 8,
}
"""Nodes of each tenant of the Philly cluster: of them only the proportions are used."""


class TraceError(Exception):
    """A line that is not what its format says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceJob:
    """One job of a trace; times are seconds after the first job came."""

    ref: str
    tenant: str
    submitted_at_s: float
    run_s: float
    gpus: int
    limit_s: float | None = None


def read(path: Path, most: int | None = None) -> list[TraceJob]:
    """The jobs of a file in the order they came; its first line tells its format."""
    with path.open(newline="") as file:
        first = file.readline()
        file.seek(0)
        for sign, reader in _READERS.items():
            if sign in first:
                jobs = [job for job in reader(file) if job.gpus > 0 and job.run_s > 0]
                break
        else:
            raise TraceError(
                f"{path}: its first line {first.strip()!r} is none of: Philly's "
                "(timestamp,duration,num_gpus,cluster), sacct's (JobID|Account|Submit|…), "
                "ours (submitted_at_s,run_s,gpus,tenant)"
            )
    jobs.sort(key=lambda job: (job.submitted_at_s, job.ref))
    start_s = jobs[0].submitted_at_s if jobs else 0.0
    return [_later(job, -start_s) for job in jobs[:most]]


def _philly(lines: Iterable[str]) -> Iterable[TraceJob]:
    for number, row in enumerate(csv.DictReader(lines)):
        yield TraceJob(
            ref=str(number),
            tenant=_field(row, "cluster"),
            submitted_at_s=_stamp_s(_field(row, "timestamp")),
            run_s=_number(row, "duration"),
            gpus=int(_number(row, "num_gpus")),
        )


def _sacct(lines: Iterable[str]) -> Iterable[TraceJob]:
    """`sacct -aXP --format=JobID,Account,Submit,ElapsedRaw,Timelimit,AllocTRES`, columns as are."""
    for row in csv.DictReader(lines, delimiter="|"):
        found = _GPUS.search(_field(row, "AllocTRES"))
        if found is None or _field(row, "Submit") in {"", "Unknown"}:
            continue  # it has never had a GPU
        yield TraceJob(
            ref=_field(row, "JobID"),
            tenant=_field(row, "Account"),
            submitted_at_s=_stamp_s(_field(row, "Submit")),
            run_s=_number(row, "ElapsedRaw"),
            gpus=int(found[1]),
            limit_s=_limit_s(row.get("Timelimit") or ""),
        )


def _simple(lines: Iterable[str]) -> Iterable[TraceJob]:
    for number, row in enumerate(csv.DictReader(lines)):
        limit = row.get("limit_s") or ""
        yield TraceJob(
            ref=row.get("ref") or str(number),
            tenant=row.get("tenant") or "everybody",
            submitted_at_s=_number(row, "submitted_at_s"),
            run_s=_number(row, "run_s"),
            gpus=int(_number(row, "gpus")),
            limit_s=_number(row, "limit_s") if limit else None,
        )


_READERS: Final[Mapping[str, Callable[[Iterable[str]], Iterable[TraceJob]]]] = {
    "num_gpus": _philly,
    "JobID|": _sacct,
    "submitted_at_s": _simple,
}


def _later(job: TraceJob, by_s: float) -> TraceJob:
    return TraceJob(
        ref=job.ref,
        tenant=job.tenant,
        submitted_at_s=job.submitted_at_s + by_s,
        run_s=job.run_s,
        gpus=job.gpus,
        limit_s=job.limit_s,
    )


def _field(row: Mapping[str, str | None], name: str) -> str:
    value = row.get(name)
    if value is None:
        raise TraceError(f"no {name} in {dict(row)!r}")
    return value


def _number(row: Mapping[str, str | None], name: str) -> float:
    text = _field(row, name)
    try:
        return float(text)
    except ValueError:
        raise TraceError(f"{name} is {text!r}, which is no number, in {dict(row)!r}") from None


def _stamp_s(text: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise TraceError(f"{text!r} is no time of day as in 2017-09-04 10:30:41") from None


def _limit_s(text: str) -> float | None:
    if text in _LIMITLESS:
        return None
    found = _ELAPSED.match(text)
    if found is None:
        raise TraceError(f"{text!r} is no time limit as in 1-12:00:00")
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
