# SPDX-License-Identifier: Apache-2.0
"""The answers that are no JSON: job numbers, pings, process lists, versions. Pure."""

from __future__ import annotations

import re
from typing import Final

from slipstream.slurm_plugin.errors import SlurmParseError
from slipstream.slurm_plugin.quantities import parse_time_limit_s
from slipstream.slurm_plugin.records import Process
from slipstream.slurm_plugin.version import Version, parse_version

_SUBMITTED: Final = re.compile(r"([0-9]{1,10})(?:;\S*)?")
_PING: Final = re.compile(r"Slurmctld\([a-z0-9]+\) at .* is (UP|DOWN)")
_PROCESS: Final = re.compile(r"(-?[0-9]+)\s+([0-9]+)\s+(\S+)\s+([0-9]+|-)\s+([0-9]+|-)")
_MAX_TIME: Final = re.compile(r"\bMaxTime=(\S+)")
_CONTROLLER_VERSION: Final = re.compile(r"^SLURM_VERSION\s*=\s*(\S+)\s*$", re.MULTILINE)


def parse_submitted(text: str) -> int:
    """The answer of `sbatch --parsable`: a number, with the cluster's name behind it if asked."""
    if match := _SUBMITTED.fullmatch(text.strip()):
        return int(match[1])
    raise SlurmParseError("answer of sbatch", text.strip(), "a job's number is expected")


def parse_ping(text: str) -> bool:
    """Whether a controller, the primary or a backup, is up."""
    states = _PING.findall(text)
    if not states:
        raise SlurmParseError("answer of scontrol ping", text.strip(), "Slurmctld(…) at … is UP")
    return "UP" in states


def parse_pids(text: str) -> tuple[Process, ...]:
    """The table of `scontrol listpids`; a step without a process (-1) is left out."""
    header, *lines = text.strip().splitlines() or [""]
    if not header.startswith("PID"):
        raise SlurmParseError("process list", text.strip(), "a table that starts with PID")
    return tuple(process for line in lines if (process := _process(line)) is not None)


def parse_controller_version(text: str) -> Version:
    """The version slurmctld runs, from its configuration."""
    if match := _CONTROLLER_VERSION.search(text):
        return parse_version(match[1])
    raise SlurmParseError("controller's configuration", text, "a line SLURM_VERSION = …")


def parse_longest_s(text: str) -> int | None:
    """`MaxTime` of the one partition that is shown; None for no limit."""
    if match := _MAX_TIME.search(text):
        return parse_time_limit_s(match[1])
    raise SlurmParseError("partition", text.strip(), "MaxTime=…")


def _process(line: str) -> Process | None:
    match = _PROCESS.fullmatch(line.strip())
    if not match:
        raise SlurmParseError("line of the process list", line, "PID JOBID STEPID LOCALID GLOBALID")
    pid, _, step, local, _ = match.groups()
    if int(pid) <= 0:
        return None
    return Process(int(pid), step, None if local == "-" else int(local))
