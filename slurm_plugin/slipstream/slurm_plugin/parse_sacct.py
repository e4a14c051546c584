# SPDX-License-Identifier: Apache-2.0
"""What `sacct --parsable2` prints, as finished jobs. Pure.

sacct does not escape its delimiter: a name with `|` in it can only be read as the last column, and
that is where JobName has to be. Memory is measured by step, so steps are read with their job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from slipstream.slurm_plugin.errors import SlurmParseError
from slipstream.slurm_plugin.quantities import (
    parse_elapsed_s,
    parse_memory_mib,
    parse_time_limit_s,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

COLUMNS: Final = (
    *("JobID", "UID", "Account", "Partition", "State", "Submit", "End", "Elapsed", "Timelimit"),
    *("NNodes", "AllocTRES", "MaxRSS", "TRESUsageInMax", "JobName"),
)
_DELIMITER: Final = "|"
Row = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedJob:
    """One job, or one task of an array, that ran to its end."""

    ref: str
    name: str
    uid: int
    account: str
    partition: str
    submitted_at_s: float
    ended_at_s: float
    run_s: int
    time_limit_s: int | None
    nodes: int
    cpus: int
    gpus: int
    slots: int
    memory_mib: int
    """Given to it, on all nodes."""
    used_memory_mib: int | None = None
    """The most any of its tasks used, where Slurm measured that."""
    gpu_memory_mib: int | None = None
    """The same of GPU memory."""


def parse_sacct(text: str) -> list[FinishedJob]:
    """The jobs that completed, in the order of the text; steps and other ends are left out."""
    lines = text.splitlines()
    header = tuple(lines[0].split(_DELIMITER)) if lines else ()
    if missing := [name for name in COLUMNS if name not in header]:
        raise SlurmParseError("sacct's header", ",".join(header), f"{missing} are missing in it")
    if header[-1] != "JobName":
        raise SlurmParseError(
            "sacct's header", ",".join(header), "JobName has to be the last column"
        )
    jobs: dict[str, FinishedJob] = {}
    for line in filter(None, lines[1:]):
        row = _row(header, line)
        ref, _, step = row["JobID"].partition(".")
        if step:
            if ref in jobs:
                jobs[ref] = _with_step(jobs[ref], row)
        elif row["State"] == "COMPLETED":
            jobs[ref] = _job(ref, row)
    return list(jobs.values())


def _row(header: tuple[str, ...], line: str) -> Row:
    values = line.split(_DELIMITER, len(header) - 1)
    if len(values) != len(header):
        raise SlurmParseError("line of sacct", line, f"{len(header)} columns are expected")
    return dict(zip(header, values, strict=True))


def _job(ref: str, row: Row) -> FinishedJob:
    held = _tres(row["AllocTRES"])
    return FinishedJob(
        ref=ref,
        name=row["JobName"],
        uid=_whole(row, "UID"),
        account=row["Account"],
        partition=row["Partition"],
        submitted_at_s=_time_s(row, "Submit"),
        ended_at_s=_time_s(row, "End"),
        run_s=parse_elapsed_s(row["Elapsed"]),
        time_limit_s=parse_time_limit_s(row["Timelimit"]),
        nodes=_whole(row, "NNodes"),
        cpus=int(held.get("cpu", "1")),
        gpus=int(held.get("gres/gpu", "0")),
        slots=int(held.get("gres/slot", "0")),
        memory_mib=parse_memory_mib(held["mem"]) if "mem" in held else 0,
    )


def _with_step(job: FinishedJob, row: Row) -> FinishedJob:
    used = _tres(row["TRESUsageInMax"])
    return replace(
        job,
        used_memory_mib=_larger(job.used_memory_mib, row["MaxRSS"]),
        gpu_memory_mib=_larger(job.gpu_memory_mib, used.get("gres/gpumem", "")),
    )


def _larger(before: int | None, text: str) -> int | None:
    if text in ("", "0"):
        return before
    return max(before or 0, parse_memory_mib(text))


def _tres(text: str) -> dict[str, str]:
    """cpu=1,gres/gpu=2,mem=100M as they are; types of GPUs (gres/gpu:a100=2) say it twice."""
    pairs: Iterable[tuple[str, str, str]] = (part.partition("=") for part in text.split(","))
    return {name: value for name, _, value in pairs if value}


def _whole(row: Row, name: str) -> int:
    if not row[name].isdecimal():
        raise SlurmParseError(f"{name} of sacct", row[name], "a whole number")
    return int(row[name])


def _time_s(row: Row, name: str) -> float:
    """In the time zone of this machine, as sacct prints it; or seconds (SLURM_TIME_FORMAT=%s)."""
    if row[name].isdecimal():
        return float(row[name])
    try:
        return datetime.fromisoformat(row[name]).astimezone().timestamp()
    except ValueError as error:
        raise SlurmParseError(f"{name} of sacct", row[name], "YYYY-MM-DDTHH:MM:SS") from error
